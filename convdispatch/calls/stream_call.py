"""Calls on the memory of a device with streams: programs that OpenCL compiled, launched on the caller's stream by the
device's own driver (CUDA), without copy or wait.

Arrays of every library on such a device, PyTorch's operators and XLA's buffers go this way. Where a program cannot be
launched so, a call on a library's arrays goes through the host, with one warning that says why; a framework's call is
the framework's.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..api.errors import ConvDispatchError, ConvDispatchWarning
from ..api.policy import current_policy
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.executable import BIAS, RESIDUAL, W
from ..device.native import loading
from ..device.places.stream import Stream, StreamMemory, Unlaunchable
from ..device.programs.ptx_program import for_streams
from ..selection import dispatch
from ..selection.prepared import Constant, Prepared
from .arrays.stream_arrays import ALIGNMENT
from .call import Call, refuse_shared
from .framework.fallback import Fallback

_warned: set[tuple[str, str]] = set()
_numbers = itertools.count()


class StreamCall(Call):
    """The call of one problem on a device with streams, for one kind of arrays."""

    def __init__(
        self,
        problem: ConvProblem,
        stream: Stream,
        arrays: Any = None,
        *,
        names: Sequence[str] = ("x", "w", "y"),
        through_host: Callable[..., Any] | None = None,
        count: Callable[[str], Any] | None = None,
    ) -> None:
        """Plan, and load every program. ``arrays`` is a StreamArrays; without one ``launch`` is called with addresses
        alone. ``names`` are those of x, w, y for errors. ``through_host(problem, names, operands, bias, residual)``
        computes a call whose programs cannot be launched so; without it such a call is the framework's.

        Raises Fallback, or ConvDispatchError for a quantized call.
        """
        super().__init__(problem, stream.device, count)
        self.arrays, self.place, self._names, self._through_host = arrays, stream.place, names, through_host
        self.why_host: str | None = None
        """The reason why the call goes through the host; None where it does not."""
        self._read = [(place, self.sizes[place]) for place in self.places[:2]]
        if self.empty:
            return
        with stream.current(), for_streams():
            self.prepare(stream.context)
            self.packed_key = next(_numbers)
            try:
                self.launches = loaded_launches(self.prepared, stream)
            except Unlaunchable as error:
                self._give_up(error)

    def launch(self, stream: Stream, addresses: Sequence[int], constant: Constant | None = None) -> None:
        """Launch on ``addresses`` of x, w, y, bias and residual, 0 for those that there are not.

        Who calls keeps their memory until this returns. Raises Unlaunchable where weights cannot be packed, before
        anything else ran, and as ``dispatch.run``.
        """
        stream.place.recent.append(self.solver)
        given = [*addresses]
        if constant is not None and self.packs and self.launches is not None:
            given[W] = self.packed(constant, stream, given[W])
        if self.launches is None or not self.launches.run(stream, given):
            operands: list[Any] = [
                StreamMemory(address, size) if address else None
                for address, size in zip(addresses, self.sizes, strict=True)
            ]
            dispatch.run(self.prepared, stream, operands, None, constant)  # type: ignore[arg-type]
        stream.check()

    def packed(self, constant: Constant, stream: Stream, address: int) -> int:
        """The address of the packed form of weights at an address, made once. Raises Unlaunchable."""
        found = constant.addresses.get(self.packed_key)
        if found is None:
            weights: Any = StreamMemory(address, self.sizes[W])
            made: Any = constant.packed(self.prepared, stream, weights)[0]  # type: ignore[arg-type]
            found = constant.addresses[self.packed_key] = made.address
        return int(found)

    def pack(self, w: Any, constant: Constant) -> None:
        """Pack constant weights before a call needs the packed form. Raises as a call does."""
        if self.packs and self.packed_key not in constant.addresses:
            stream = self.arrays.stream(w)
            with stream.current():
                self.packed(constant, stream, self.arrays.memory(w, stream, self.sizes[W]).address)

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """See Call; PyTorch tensors use the native call path, where it is built and can make such a call."""
        plain = not self.problem.constant_weights and all(each is None for each in given[3:])
        if self.place.blocking or not (plain and library.records_gradients):
            return None
        launcher = loading.launcher()
        program = None if launcher is None or self.launches is None else self.program(launcher)
        if program is None:
            return None
        policy, kind = current_policy(), library.torch.Tensor
        like = tuple(None if place == self.written else each for place, each in enumerate(given[:3]))
        try:
            return launcher.replay(program, self.problem.direction, options, shape, policy, policy.frozen, kind, like)
        except RuntimeError:  # PyTorch's objects are not as the native call path expects them
            return None

    def program(self, launcher: Any) -> Any:
        if self.native is None:
            made = self.launches.program(launcher, self.solver, self.arrays.shape, self.arrays.strides)
            self.native = made or False
        return self.native or None

    def fast_path(
        self, lead: Any, other: Any, out: Any, queue: Any, bias: Any, constant: Constant | None, residual: Any
    ) -> Any:
        """See Call."""
        arrays, written, new = self.arrays, self.written, out is None
        if self.launches is None or arrays.copies or not (new or arrays.is_result(out)):
            return None
        if constant is not None and isinstance(lead if self.lead == W else other, np.ndarray):
            return None
        stream = arrays.stream(lead)
        if not arrays.is_current(stream):
            return None
        if new:
            out = arrays.allocate(lead, stream)
        operands: list[Any] = [out, out, out]
        operands[self.lead], operands[self.other] = lead, other
        addresses = arrays.addresses(operands, bias, residual, stream)
        if addresses is None:
            return None
        if constant is not None and self.packs:
            # Address 1 marks weights that are not packed yet: it fails the alignment check.
            addresses[W] = constant.addresses.get(self.packed_key, 1)
        first, second, third, fourth, fifth = addresses
        if (first | second | third | fourth | fifth) % ALIGNMENT:
            return None
        if not new:
            self._apart(addresses, bias)
            if residual is not None and self._overlapped(addresses[written], fifth, self.sizes[RESIDUAL]):
                return None
        stream.place.recent.append(self.solver)
        if not self.launches.run(stream, addresses):
            return None
        if stream.place.blocking:
            stream.wait()
        return out

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """See Call; nothing waits."""
        arrays, written, given = self.arrays, self.written, tuple(operands)
        lead, new = operands[self.lead], operands[self.written] is None
        stream = arrays.stream(lead)
        if new:
            operands[written] = arrays.allocate(lead, stream)
        else:
            arrays.check_result(operands[written], self.check_out)
        out, size = operands[written], self.sizes[written]
        with stream.current():
            if self.empty:
                if self.zeroes:
                    stream.fill(arrays.memory(out, stream, size, True), np.uint8(0), 0, size)
            else:
                if self.why_host is None:
                    try:
                        self._run(operands, bias, constant, residual, stream)
                    except Unlaunchable as error:  # packing of constant weights failed, before any other kernel ran
                        self._give_up(error)
                if self.why_host is not None:
                    assert self._through_host is not None, "a framework's call is its own"
                    result = self._through_host(self.problem, self._names, operands, bias, residual)
                    arrays.library.put(out, result)
            if new:
                out = arrays.finished(out, stream)
            arrays.keep(stream, (*given, bias, residual, out))
        return out

    def _run(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, stream: Stream) -> None:
        arrays, written = self.arrays, self.written
        given: list[Any] = [
            constant.on_device(stream)  # type: ignore[arg-type]
            if place == W and constant is not None and isinstance(array, np.ndarray)
            else arrays.memory(array, stream, self.sizes[place], place == written)
            for place, array in enumerate(operands)
        ]
        size, out = self.sizes[written], given[written]
        if type(bias) is Constant:  # the bias of a quantized convolution is its table, a Constant
            bias = bias.on_device(stream)  # type: ignore[arg-type]
        elif bias is not None:
            bias = arrays.memory(bias, stream, self.sizes[BIAS], of_bias=True)
        self._apart([memory.address for memory in given] + [0 if bias is None else bias.address], bias)
        if residual is not None:
            residual = arrays.memory(residual, stream, size)
            in_place = residual.address == out.address and self.prepared.fuses_residual
            if not in_place and self._overlapped(out.address, residual.address, size):
                same, residual = residual, stream.allocate(size)
                stream.copy(residual, same, size)
        if out.address % ALIGNMENT:
            given[written] = stream.allocate(size)
            if self.problem.accumulate:
                stream.copy(given[written], out, size)
        self.launch(stream, [0 if m is None else m.address for m in (*given, bias, residual)], constant)
        if out.address % ALIGNMENT:
            stream.copy(out, given[written], size)
            stream.check()

    def _apart(self, addresses: Sequence[int], bias: Any) -> None:
        """Raises InvalidArgument where the result overlaps with an operand that is still read."""
        for place, size in self._read:
            if self._overlapped(addresses[self.written], addresses[place], size):
                refuse_shared(self._names[place])
        if bias is not None and self._overlapped(addresses[self.written], addresses[BIAS], self.sizes[BIAS]):
            refuse_shared("bias")

    def _overlapped(self, out: int, at: int, size: int) -> bool:
        """Whether the result at ``out`` shares bytes with ``size`` bytes at ``at``."""
        return at < out + self.sizes[self.written] and out < at + size

    def _give_up(self, error: Unlaunchable) -> None:
        """Make the call go through the host from now on. Raises Fallback where it is a framework's call."""
        what = f"cannot run on a {self.place.kind.upper()} stream"
        if self.problem.quantized:
            raise ConvDispatchError(
                f"{self.solver} {what} ({self.problem}): {error}; call with NumPy's arrays or a pyopencl.array.Array"
            ) from error
        if self._through_host is None:
            raise Fallback(f"{self.solver} {what}: {error}") from None
        why = self.why_host = str(error)
        if (self.solver, why) not in _warned:
            _warned.add((self.solver, why))
            warnings.warn(
                f"{self.solver} {what}, its problems ({self.problem}) go through the host and OpenCL's queue, with "
                f"copies and waits: {why}",
                ConvDispatchWarning,
                stacklevel=4,
            )


def loaded_launches(prepared: Prepared, stream: Stream) -> Any:
    """Load every program of a plan for a stream's device, before any of its kernels runs; returns its launches, where
    it has no other commands.

    Raises Unlaunchable.
    """
    if not prepared.recordable:
        if prepared.takes(stream):
            return None
        why = "layers see OpenCL's queues" if prepared.layered else "it enqueues by its own means, on OpenCL's queues"
        raise Unlaunchable(why)
    queue = runtime.queue(stream.device)
    launches = prepared.executable(queue).bind(stream.place)
    if launches is None:
        for command in prepared.recorded(queue).commands:
            command.make(lambda slot: StreamMemory(0, slot.size), stream)
    return launches


def refuse_capture(problem: ConvProblem, stream: Stream) -> None:
    """Raises ConvDispatchError for a first call while a stream is captured."""
    with stream.current():
        if stream.capturing():
            raise ConvDispatchError(
                f"{problem} is new here: a first call chooses, compiles and loads its programs, which a graph "
                "cannot capture; make one call before the capture"
            )
