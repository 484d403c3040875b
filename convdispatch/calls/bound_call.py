"""One bound call: problem, plan and array kind, decided once; ``operands`` brings each call's arrays to memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..api.dtypes import DTYPES, INTEGERS
from ..api.errors import InvalidArgument, MemoryLimit
from ..api.policy import forbid_when_frozen
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.commands import host_memory as host
from ..device.commands.interface import Commands
from ..measurement import first_sight
from ..selection import dispatch
from ..selection.prepared import Constant, operand_sizes
from ..selection.single_thread import prefers_one_thread
from .arguments import check_bias
from .arrays.accepted import is_array, refuse_mask
from .arrays.array_library import Library
from .arrays.known_libraries import library_of
from .arrays.operands import Operands, address, check_written, contiguous_strides, native, overlaps
from .arrays.results import maker_of
from .fast_path import FastPath, device_fast_path, host_fast_path, host_queue

_READ = {"fwd": (0, 1), "bwd_data": (2, 1), "bwd_weights": (0, 2)}
_WRITTEN = {"fwd": 2, "bwd_data": 0, "bwd_weights": 1}
PLACES = {direction: (*_READ[direction], _WRITTEN[direction]) for direction in _READ}
"""By direction: of the operands that are read, and of the result, among x, w, y."""


class Kind(NamedTuple):
    """What the operands of a call have in common."""

    host: bool
    """NumPy arrays; otherwise arrays on a device."""
    dtype: str


class Call:
    """One problem on one context for one kind of arrays; ``call(x, w, y, bias, residual, queue)`` runs it."""

    @staticmethod
    def kind_of(
        operands: Sequence[Any], bias: Any, residual: Any, direction: str, names: Sequence[str] = ("x", "w", "y")
    ) -> Kind:
        """Check that the arrays are of one dtype and one place. Raises InvalidArgument."""
        named = dict(zip(names, operands, strict=True)) | {"bias": bias, "residual": residual}
        if names[_WRITTEN[direction]] != "out":
            named["out"] = named.pop(names[_WRITTEN[direction]])
        if direction != "fwd" and "y" in named:
            named["dy"] = named.pop("y")
        present = {name: array for name, array in named.items() if array is not None}
        for name, array in present.items():
            refuse_mask(name, getattr(array, "array", array))
            if not is_array(array) or library_of(type(getattr(array, "array", array))) is not None:
                raise InvalidArgument(
                    f"{name} must be a NumPy array, a pyopencl.array.Array or a Tensor, got {type(array).__name__}"
                )
        first = names[_READ[direction][0]]
        first = "dy" if first == "y" else first
        lead = present[first]
        dtype, host = lead.dtype.name, isinstance(lead, np.ndarray)
        if dtype not in DTYPES:
            more = ""
            if dtype in INTEGERS:
                forward = "; integers of 8 bits take conv(..., quantization=Quantization(...))"
                more = forward if direction == "fwd" else "; of quantized convolutions there are no gradients"
            raise InvalidArgument(f"{first} must be of {', '.join(DTYPES)}, got {dtype}{more}")
        for name, array in present.items():
            if array.dtype.name != dtype:
                raise InvalidArgument(f"{name} must be {dtype} as {first} is, got {array.dtype.name}")
            inner = array.array if isinstance(array, Constant) else array
            on_host = isinstance(inner, np.ndarray)
            if on_host != host and not (on_host and isinstance(array, Constant)):
                places = {True: "NumPy", False: "on a device"}
                raise InvalidArgument(
                    f"{name} must be where {first} is: {first} is {places[host]}, {name} is {places[on_host]}"
                )
        return Kind(host, dtype)

    def __init__(
        self,
        problem: ConvProblem,
        kind: Kind,
        bias: Any,
        residual: Any,
        queue: Any,
        operands: Sequence[Any],
        names: Sequence[str] = ("x", "w", "y"),
    ) -> None:
        self.problem, self.host = problem, kind.host
        self.places = self._lead, self._other, self._out = PLACES[problem.direction]
        self._names = ["dy" if name == "y" else name for name in names]
        self.out_shape = problem.out_shape
        self.dtype = np.dtype(problem.out_dtype) if problem.quantized else operands[self._lead].dtype.newbyteorder("=")
        shapes, units = (problem.x_shape, problem.w_shape, problem.y_shape), [problem.itemsize] * 3
        units[self._out] = problem.out_itemsize
        self.strides = tuple(map(contiguous_strides, shapes, units))
        self.sizes = operand_sizes(problem)[:3]
        """Of x, w, y, in bytes."""
        self.bias_strides = (4 if problem.quantized else problem.itemsize,)
        self._out_strides, self._out_bytes = self.strides[self._out], self.sizes[self._out]
        self.empty = math.prod(self.out_shape) == 0 or problem.mb == 0
        if not problem.quantized:  # which has a table in the bias' place
            check_bias(bias, problem.channels_out)
        if residual is not None and tuple(residual.shape) != self.out_shape:
            shape = tuple(residual.shape)
            raise InvalidArgument(f"residual must have the result's shape {self.out_shape}, got {shape}")
        self._check_out(operands[self._out])
        lead = operands[self._lead]
        self.known: Any = None
        """The queue that was last seen to be of the context, and that the plan takes as it is."""
        read = (lead, operands[self._other], bias)
        self._native = all(array is None or array.dtype.isnative for array in read)
        self._promised = kind.host and type(operands[1]) is Constant
        self.make: Any = None if self.host else maker_of(type(lead), self.out_shape, self._out_strides, self.dtype)
        self.ask: Any = None
        """Answers the queue for host memory where the caller names none."""
        commands = self._queue(operands[self._lead], queue)
        self.context = commands.context
        self._pointers = self.host and host.has_system_svm(commands.device)
        unsupported = runtime.device_info(commands.device).supports(problem.dtype)
        if unsupported:
            raise InvalidArgument(unsupported)
        first_sight.seen(commands.device)
        self.prepared: Any = None if self.empty else dispatch.prepare(problem, self.context)
        if self._pointers and not self.empty:
            alone = prefers_one_thread(self.prepared)
            self.ask = host_queue(commands.device if alone else None, alone)
        self.queue_launches: Any = None
        """What the short way launches on a queue."""
        self._note_queue(commands)
        self._library: Library | None = None
        """Whose arrays it takes, if these are not NumPy's, OpenCL's or tensors of this package."""
        self._path: FastPath | None = None
        """On host memory: what runs the call on arrays that kernels take as they are."""
        self.fast_path = self._make_fast_path(operands, bias, residual)
        self.key: Any = None
        self.again: Any = None
        """Makes the call again, where it has been made twice in a row; see ``guarded_replay``."""

    def _make_fast_path(self, operands: Sequence[Any], bias: Any, residual: Any) -> FastPath | None:
        if not self.host:
            return device_fast_path(self, (*operands, bias, residual))
        if not self._pointers:
            return None
        shape, dtype, size, device = self.out_shape, self.dtype, self._out_bytes, self.context.devices[0]

        def written(array: Any) -> int:
            fits = array.shape == shape and array.dtype == dtype and array.flags.writeable
            return address(array) if fits else 0

        def table(bias: Any) -> int:
            return address(bias.array)

        def make() -> tuple[np.ndarray, int]:
            made = host.empty(device, shape, dtype, size)
            return made, address(made)

        self._path = host_fast_path(self, address, written, make, table if self.problem.quantized else address)
        return self._path if self._native else None

    def adopt(self, library: Library, lead: Any) -> None:
        """Take arrays of a library in host memory from now on, such as ``lead``, and return one of its own."""
        self._library = library
        self.fast_path = None
        address: Any = library.host_address
        if not (self._pointers and self._native) or address(lead) is None or self.empty:
            return
        shape, size, like, their_dtype = self.out_shape, self._out_bytes, lead[:0], lead.dtype
        device, dtype = self.context.devices[0], self.dtype

        def written(array: Any) -> int:
            return address(array) if array.shape == shape and array.dtype == their_dtype else 0

        def make() -> tuple[Any, int]:
            made = library.from_host(host.empty(device, shape, dtype, size), like)
            return made, address(made)

        self.fast_path = host_fast_path(self, address, written, make)

    def __call__(self, x: Any, w: Any, y: Any, bias: Any, residual: Any, queue: Any) -> Any:
        """Run; returns the array that was written."""
        if self.fast_path is not None:
            operands, promise = [x, w, y], None
            if queue is None and self.ask is not None:
                queue = self.ask()
            if self._promised:
                promise, operands[1] = view_of(self._library, w), w.array
            lead, other, out = self.places
            try:
                done = self.fast_path(operands[lead], operands[other], operands[out], queue, bias, promise, residual)
            except MemoryError as error:
                raise_no_room(self.out_shape, error)
            if done is not None:
                return done
        return self.generally(x, w, y, bias, residual, queue)

    def generally(self, x: Any, w: Any, y: Any, bias: Any, residual: Any, queue: Any) -> Any:
        """The same for operands that the fast path does not take."""
        library = self._library
        if library is None:
            return self._generally([x, w, y], bias, residual, queue)
        given = [x, w, y]
        *operands, bias, residual = (view_of(library, each) for each in (*given, bias, residual))
        result = self._generally(operands, bias, residual, queue)
        out = given[self._out]
        return library.from_host(result, given[self._lead]) if out is None else out

    def _generally(self, operands: list[Any], bias: Any, residual: Any, queue: Any) -> Any:
        try:
            out = operands[self._out]
            if out is not None and (out.shape != self.out_shape or out.dtype != self.dtype):
                self._check_out(out)
            run = self._run_host if self.host else self._run_device
            return run(operands, bias, residual, self._queue(operands[self._lead], queue))
        except MemoryError as error:
            raise_no_room(self.out_shape, error)

    def _queue(self, lead: Any, queue: Any) -> Any:
        if queue is None:
            if self.ask is not None:
                return self.ask()
            queue = runtime.queue() if self.host else lead.queue
        if queue is not None and queue is self.known:
            return queue
        if not hasattr(queue, "context"):
            if queue is not None:
                raise InvalidArgument(f"queue must be a pyopencl.CommandQueue, got {queue!r}")
            raise InvalidArgument("the array has no queue: pass queue=, or give the array one with with_queue()")
        return queue

    def _note_queue(self, queue: Any) -> None:
        """Remember a queue that the plan takes as it is. Raises InvalidArgument for one of another context."""
        if queue.context != self.context:
            raise InvalidArgument("queue belongs to another context than the arrays")
        if not isinstance(queue, Commands) or (self.prepared is not None and self.prepared.recordable):
            self.known = queue

    def _check_out(self, out: Any) -> None:
        if out is None:
            return
        if tuple(out.shape) != self.out_shape:
            raise InvalidArgument(f"out must have shape {self.out_shape}, got {tuple(out.shape)}")
        if out.dtype.newbyteorder("=") != self.dtype:
            raise InvalidArgument(f"out must be {self.dtype.name}, got {out.dtype.name}")
        if isinstance(out, np.ndarray):
            check_written(out)

    # --- NumPy -------------------------------------------------------------------------------------------------------

    def _run_host(self, operands: list[Any], bias: Any, residual: Any, queue: Any) -> np.ndarray:
        out = operands[self._out]
        if out is not None and not out.flags.carray:
            check_written(out)
        direct = out is not None and native(out) is out
        if direct:
            for array in (operands[self._lead], operands[self._other], bias, residual):
                if array is not None and np.may_share_memory(out, getattr(array, "array", array)):
                    direct = False  # an operand would change while it is still read
        result = out if direct else host.empty(queue.device, self.out_shape, self.dtype, self._out_bytes)
        if self.problem.accumulate and not direct:
            result[...] = out
        if self.empty:
            if self.problem.direction == "bwd_weights" and not self.problem.accumulate:
                result[...] = 0
        else:
            operands[self._out] = result
            run = self._enqueue if self._path is None else self._run_on_copies
            run(operands, bias, residual, queue)
        if out is not None and not direct:
            out[...] = result
            return out
        return result

    def _run_on_copies(self, operands: list[Any], bias: Any, residual: Any, queue: Any) -> None:
        """Run on copies of what kernels do not take as it is; the result is memory that they do."""
        bias, residual = (each if each is None or type(each) is Constant else native(each) for each in (bias, residual))
        promise = None
        if self._promised:
            promise = operands[1]
            if native(promise.array) is not promise.array:
                promise = promise.seen_as("native", lambda: native(operands[1].array))
            operands[1] = promise.array
        lead, other = (native(operands[place]) for place in (self._lead, self._other))
        done = self._path(lead, other, operands[self._out], queue, bias, promise, residual)  # type: ignore[misc]
        assert done is not None, "kernels take copies"

    # --- arrays on a device ------------------------------------------------------------------------------------------

    def _run_device(self, operands: list[Any], bias: Any, residual: Any, queue: Any) -> Any:
        if queue is not self.known:
            self._note_queue(queue)
        out = operands[self._out]
        if out is None:
            forbid_when_frozen("allocate the result (pass out=)")
            out = operands[self._out] = self.make(queue, operands[self._lead])
        else:
            read = {self._names[place]: operands[place] for place in (self._lead, self._other)} | {"bias": bias}
            for name, array in read.items():
                if array is not None and overlaps(out, array):
                    raise InvalidArgument(
                        f"out shares memory with {name}, which would change while it is read: pass an out of its own"
                    )
        if self.empty:
            return self._zero(out, queue)
        # A residual that lies in the result is overwritten before it is read, unless the kernel that writes an element
        # reads the residual's at the same place.
        shared = residual is not None and overlaps(out, residual)
        shared = shared and not (self.prepared.fuses_residual and residual.offset == out.offset)
        event = self._enqueue(operands, bias, residual, queue, shared)
        if hasattr(out, "events"):
            out.events[:] = (event,)
        return out

    def _enqueue(self, operands: list[Any], bias: Any, residual: Any, queue: Any, shared: bool = False) -> Any:
        """Enqueue the call; the event of its last command. ``shared`` copies the residual first."""
        brought, given = Operands(queue, self.context), [None, None, None]
        for place in (self._lead, self._other):
            given[place] = brought.read(operands[place], self.strides[place])
        if bias is not None:
            bias = brought.read(bias, self.bias_strides)
        if residual is not None:
            residual = brought.read(residual, self._out_strides)
            if shared:
                residual = brought.copied(residual, operands[self._out].nbytes)
        given[self._out] = brought.write(operands[self._out], self._out_strides, keep=self.problem.accumulate)
        promise = operands[1] if type(operands[1]) is Constant else None
        given += [bias, residual]
        return brought.finish(dispatch.run(self.prepared, queue, given, brought.events or None, promise))

    def _zero(self, out: Any, queue: Any) -> Any:
        """The gradient of no images is zero; every other empty result has nothing to write."""
        if self.problem.direction == "bwd_weights" and not self.problem.accumulate:
            brought = Operands(queue, self.context)
            memory = brought.write(out, self._out_strides)
            event = runtime.fill(queue, memory, np.zeros(1, np.uint8), 0, out.nbytes, brought.events)
            event = brought.finish(event)
            if hasattr(out, "events"):
                out.events[:] = (event,)
        return out


def view_of(library: Library | None, array: Any) -> Any:
    """NumPy's view of a library's array in host memory, or of constant weights; other things as they are."""
    if library is None or array is None or isinstance(array, np.ndarray):
        return array
    if isinstance(array, Constant):
        return array.seen_as("host", lambda: view_of(library, array.array))
    return library.host(array)


def raise_no_room(shape: tuple[int, ...], error: MemoryError) -> NoReturn:
    """Raises MemoryLimit where there was no memory for a result."""
    if isinstance(error, MemoryLimit):
        raise error
    raise MemoryLimit(f"the host has no memory left for a result of shape {shape}: {error}") from error
