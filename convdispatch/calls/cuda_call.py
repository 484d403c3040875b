"""Calls on arrays of other libraries on a CUDA device, on the caller's stream.

The programs are OpenCL's, launched by CUDA on the arrays' own memory: no copy and no wait. Where a program
cannot be launched so, the call goes through the host and OpenCL's queue, with one warning that says why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.dtypes import DTYPES
from ..api.errors import ConvDispatchError, ConvDispatchWarning, InvalidArgument
from ..api.policy import forbid_when_frozen
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.cuda.ptx import Unlaunchable
from ..device.cuda.stream import BLOCKED, CudaMemory, CudaStream
from ..device.executable import BIAS
from ..device.places.stream import StreamLaunches
from ..selection.prepared import Constant, operand_sizes
from .arrays.array_library import Library
from .arrays.known_libraries import library_of
from .bound_call import PLACES, Call
from .stream_plan import ALIGNMENT, StreamPlan, launched

_warned: set[tuple[str, str]] = set()


class CudaCall:
    """One problem on one CUDA device for one library's arrays; ``call(x, w, y, bias, residual)`` runs it.

    ``roles`` names x, w, y for errors, ``written`` is the place of the result.
    """

    host = False

    def __init__(
        self,
        problem: ConvProblem,
        library: Library,
        number: int,
        written: int,
        roles: Sequence[str],
        stream: CudaStream,
    ) -> None:
        if problem.dtype not in DTYPES and not problem.quantized:
            raise InvalidArgument(f"arrays must be of {', '.join(DTYPES)}, got {problem.dtype}")
        self.problem, self.library, self.number, self.written, self.roles = problem, library, number, written, roles
        self.key: Any = None
        self.again: Any = None
        self.place = stream.place
        unsupported = runtime.device_info(self.place.device).supports(problem.dtype)
        if unsupported:
            raise InvalidArgument(unsupported)
        self.sizes = operand_sizes(problem)
        self._dtype = problem.out_dtype or problem.dtype
        self.empty = math.prod(problem.out_shape) == 0 or problem.mb == 0
        self.out_shape, self.name = problem.out_shape, ""
        self._out_size = self.sizes[written]
        self._read = [(place, size) for place, size in enumerate(self.sizes[:3]) if place != written]
        self.plan: StreamPlan | None = None
        self.plain = False
        """Whether launches on three operands are all of it."""
        self.through_host: str | None = None
        if self.empty:
            return
        with stream.current():
            if stream.capturing():
                raise ConvDispatchError(
                    f"{problem} is new here: a first call chooses, compiles and loads its programs, which a CUDA graph "
                    "cannot capture; make one call before the capture"
                )
            self.plan = StreamPlan(problem, stream)
            self.name = self.plan.name
            try:
                self.plan.load(stream)
            except Unlaunchable as error:
                if problem.quantized:
                    raise ConvDispatchError(
                        f"{self.name} cannot run {problem} on a CUDA stream: {error}; call with NumPy's arrays or a "
                        "pyopencl.array.Array"
                    ) from error
                self._give_up(str(error))
        beside = problem.bias or problem.residual or problem.constant_weights or problem.quantized
        self.plain = self.launches is not None and not (beside or library.copies)

    @property
    def launches(self) -> StreamLaunches | None:
        """What the plan's executable launches; None for a plan that enqueues anew at each call."""
        return None if self.plan is None else self.plan.launches

    def _give_up(self, why: str) -> None:
        """From now on through the host."""
        self.through_host = why
        solver = self.name
        if (solver, why) not in _warned:
            _warned.add((solver, why))
            warnings.warn(
                f"{solver} cannot run on a CUDA stream, its problems ({self.problem}) go through the host and OpenCL's "
                f"queue, with copies and waits: {why}",
                ConvDispatchWarning,
                stacklevel=4,
            )

    def __call__(self, x: Any, w: Any, y: Any, bias: Any, residual: Any) -> Any:
        """Give the call to the caller's stream; the array that will be written."""
        if self.plain:
            done = self._at_once(x, w, y)
            if done is not None:
                return done
        library, written, operands = self.library, self.written, [x, w, y]
        lead = x if written else y
        out = operands[written]
        stream, new = library.stream(lead, self.number), out is None
        if new:
            forbid_when_frozen("allocate the result (pass out=)")
            dtype = self._dtype if self.problem.quantized else None
            out = operands[written] = library.empty(self.out_shape, lead, stream, dtype)
        elif library.immutable:
            raise InvalidArgument(f"a {library.name} cannot be written to: pass no out")
        elif tuple(out.shape) != self.out_shape or library.dtype(out) != self._dtype:
            raise InvalidArgument(
                f"out must have shape {self.out_shape} and be {self._dtype}, got {tuple(out.shape)} and "
                f"{library.dtype(out)}"
            )
        with stream.current():
            if self.empty:
                if self.problem.direction == "bwd_weights" and not self.problem.accumulate:
                    memory = self._memory(out, stream, self.sizes[written], True)
                    stream.fill(memory, np.uint8(0), 0, self.sizes[written])
            else:
                if self.through_host is None:
                    try:
                        self._run(operands, bias, residual, stream)
                    except Unlaunchable as error:  # of constant weights' packing, before anything else ran
                        self._give_up(str(error))
                if self.through_host is not None:
                    self._run_through_host(operands, bias, residual)
            if new:
                out = library.finished(out, stream)
            library.keep(stream, (x, w, y, bias, residual, out))
        return out

    def _at_once(self, x: Any, w: Any, y: Any) -> Any:
        """The written array of operands that lie as kernels take them, with nothing beside; None for other calls."""
        library, written = self.library, self.written
        lead, out = x if written else y, (x, w, y)[written]
        if out is not None and (out.shape != self.out_shape or out.dtype != lead.dtype or library.immutable):
            return None
        stream = library.stream(lead, self.number)
        if not library.is_current(stream):
            return None
        operands = [x, w, y]
        if out is None:
            forbid_when_frozen("allocate the result (pass out=)")
            out = operands[written] = library.empty(self.out_shape, lead, stream)
        addresses = library.pointers(operands, stream)
        first, second, third = addresses
        if not (first and second and third) or (first | second | third) % ALIGNMENT:
            return None
        self._apart(addresses)
        return out if self.given(stream, [*addresses, 0, 0]) else None

    def given(self, stream: CudaStream, addresses: list[int]) -> bool:
        """Whether the launches were given on the operands' addresses; none was where memory or a context is lacking."""
        stream.place.recent.append(self.name)
        if not launched(self.launches, stream, addresses):
            return False
        if BLOCKED:
            stream.check()
        return True

    def _apart(self, addresses: Sequence[int]) -> None:
        """Raises InvalidArgument where the result would lie over an operand that is still read."""
        for place, size in self._read:
            if self._overlapped(addresses[self.written], addresses[place], size):
                self._refuse_shared(self.roles[place])

    def _overlapped(self, out: int, at: int, size: int) -> bool:
        """Whether the result at ``out`` shares bytes with ``size`` bytes at ``at``."""
        return at < out + self._out_size and out < at + size

    @staticmethod
    def _refuse_shared(name: str) -> None:
        raise InvalidArgument(
            f"out shares memory with {name}, which would change while it is read: pass an out of its own"
        )

    def _run(self, operands: list[Any], bias: Any, residual: Any, stream: CudaStream) -> None:
        promise = operands[1] if type(operands[1]) is Constant else None
        given: list[Any] = [None, None, None]
        for place, array in enumerate(operands):
            if type(array) is Constant:
                given[place] = self._constant(array, stream)
            else:
                given[place] = self._memory(array, stream, self.sizes[place], place == self.written)
        size, out = self.sizes[self.written], given[self.written]
        self._apart([memory.address for memory in given])
        if type(bias) is Constant:  # a quantized convolution's table
            bias = bias.on_device(stream)  # type: ignore[arg-type]
        elif bias is not None:
            bias = self._memory(bias, stream, self.sizes[BIAS])
            if self._overlapped(out.address, bias.address, self.sizes[BIAS]):
                self._refuse_shared("bias")
        if residual is not None:
            residual = self._memory(residual, stream, size)
            in_place = residual.address == out.address and self.plan.prepared.fuses_residual
            if not in_place and self._overlapped(out.address, residual.address, size):
                same, residual = residual, stream.allocate(size)
                stream.copy(residual, same, size)
        if out.address % ALIGNMENT:
            given[self.written] = stream.allocate(size)
            if self.problem.accumulate:
                stream.copy(given[self.written], out, size)
        self.plan.run(stream, [0 if m is None else m.address for m in (*given, bias, residual)], promise)  # type: ignore[union-attr]
        if out.address % ALIGNMENT:
            stream.copy(out, given[self.written], size)
            stream.check()

    def _memory(self, array: Any, stream: CudaStream, size: int, out: bool = False) -> CudaMemory:
        return memory_of(self.library, array, stream, size, out)

    def _constant(self, weights: Constant, stream: CudaStream) -> Any:
        if isinstance(weights.array, np.ndarray):
            return weights.on_device(stream)
        return self._memory(weights.array, stream, self.sizes[1])

    def _run_through_host(self, operands: list[Any], bias: Any, residual: Any) -> None:
        """Copies to the host, the call on OpenCL's queue, a copy back; waits."""

        def host(array: Any) -> Any:
            if isinstance(array, Constant):
                array = array.array
            return array if array is None or isinstance(array, np.ndarray) else self.library.fetch(array)

        x, w, y = values = [host(array) for array in operands]
        problem = self.problem.replace(constant_weights=False)
        bias, residual = host(bias), host(residual)
        kind = Call.kind_of(values, bias, residual, problem.direction, self.roles)
        queue = runtime.queue(self.place.device)
        result = Call(problem, kind, bias, residual, queue, values)(x, w, y, bias, residual, queue)
        self.library.put(operands[self.written], result)


def memory_of(library: Library, array: Any, stream: CudaStream, size: int, out: bool = False) -> CudaMemory:
    """An array's memory, or that of a copy in the stream's order: contiguous, and aligned as vector loads ask."""
    address, held = library.pointer(array, stream)
    if not address:
        if out and not library.contiguous(array):
            raise InvalidArgument(f"out must be contiguous, got one of shape {tuple(array.shape)} with gaps")
        address, held = library.address(array if library.contiguous(array) else library.compact(array), stream)
    found = CudaMemory(address, size, held)
    if out or address % ALIGNMENT == 0:
        return found
    aligned = stream.allocate(size)
    stream.copy(aligned, found, size)
    return aligned


def one_library(
    library: Library, direction: str, given: Sequence[Any], places: Sequence[Any], names: Sequence[str]
) -> tuple[list[str], str]:
    """The operands' names and dtype. Raises InvalidArgument where they are not of one library, place and dtype."""
    read, _, written = PLACES[direction]
    roles = ["dy" if name == "y" and direction != "fwd" else name for name in names]
    roles[written] = "out"
    lead, dtype = roles[read], library.dtype(given[read])
    for name, array, place in zip((*roles, "bias", "residual"), given, places, strict=True):
        inner = array.array if type(array) is Constant else array
        if array is None:
            continue
        if isinstance(inner, np.ndarray) and type(array) is Constant:
            found = inner.dtype.name
        elif library_of(type(inner)) is not library:
            raise InvalidArgument(f"{name} must be a {library.name} as {lead} is, got {type(inner).__name__}")
        elif place != places[read]:
            here, there = ("on the host" if n is None else f"on CUDA's device {n}" for n in (places[read], place))
            raise InvalidArgument(f"{name} must be where {lead} is: {lead} is {here}, {name} is {there}")
        else:
            found = library.dtype(inner)
        if found != dtype:
            raise InvalidArgument(f"{name} must be {dtype} as {lead} is, got {found}")
    return roles, dtype
