"""One bound call: problem, plan and array kind, decided once; ``operands`` brings each call's arrays to memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..api.dtypes import DTYPES
from ..api.errors import InvalidArgument, MemoryLimit
from ..api.policy import current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..device import host, memory, runtime
from ..device.host import HostQueue
from ..selection import dispatch
from ..selection.prepared import Constant
from .libraries import library_of
from .operands import Operands, contiguous_strides, host_memory, native, overlaps

__all__ = ["Call", "Kind"]

_READ = {"fwd": (0, 1), "bwd_data": (2, 1), "bwd_weights": (0, 2)}
_WRITTEN = {"fwd": 2, "bwd_data": 0, "bwd_weights": 1}


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
            if not is_array(array) or library_of(type(getattr(array, "array", array))) is not None:
                raise InvalidArgument(
                    f"{name} must be a NumPy array, a pyopencl.array.Array or a Tensor, got {type(array).__name__}"
                )
        first = names[_READ[direction][0]]
        first = "dy" if first == "y" else first
        lead = present[first]
        dtype, host = lead.dtype.name, isinstance(lead, np.ndarray)
        if dtype not in DTYPES:
            raise InvalidArgument(f"{first} must be of {', '.join(DTYPES)}, got {dtype}")
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
        self._lead, self._other = _READ[problem.direction]
        self._out = _WRITTEN[problem.direction]
        self._names = ["dy" if name == "y" else name for name in names]
        self.out_shape, self.dtype = problem.out_shape, operands[self._lead].dtype.newbyteorder("=")
        self._shapes = (problem.x_shape, problem.w_shape, problem.y_shape)
        self._strides = tuple(contiguous_strides(shape, problem.itemsize) for shape in self._shapes)
        self._out_strides, self._bias_strides = self._strides[self._out], (problem.itemsize,)
        self._out_bytes = math.prod(self.out_shape) * problem.itemsize
        self.empty = math.prod(self.out_shape) == 0 or problem.mb == 0
        if bias is not None and tuple(bias.shape) != (problem.channels_out,):
            raise InvalidArgument(f"bias must have shape ({problem.channels_out},), got {tuple(bias.shape)}")
        if residual is not None and tuple(residual.shape) != self.out_shape:
            shape = tuple(residual.shape)
            raise InvalidArgument(f"residual must have the result's shape {self.out_shape}, got {shape}")
        self._check_out(operands[self._out])
        lead = operands[self._lead]
        self._known: Any = None
        """The queue that was last seen to be of the context."""
        self._native = lead.dtype.isnative and operands[self._other].dtype.isnative
        self._make: Any = None if self.host else maker_of(type(lead), self.out_shape, self._out_strides, self.dtype)
        commands = self._queue(operands[self._lead], queue)
        self.context = commands.context
        self._pointers = self.host and host.has_system_svm(commands.device)
        unsupported = runtime.device_info(commands.device).supports(problem.dtype)
        if unsupported:
            raise InvalidArgument(unsupported)
        if current_policy().tune is not None:
            from ..measurement.online import switch_on

            switch_on()
        self.prepared: Any = None if self.empty else dispatch.prepare(problem, self.context)
        self._plain = not (self.empty or problem.bias or problem.residual or problem.constant_weights)
        """Whether two arrays come in, one goes out, and no more."""

    def __call__(self, x: Any, w: Any, y: Any, bias: Any, residual: Any, queue: Any) -> Any:
        """Run; returns the array that was written."""
        operands = [x, w, y]
        out = operands[self._out]
        if out is not None and (out.shape != self.out_shape or out.dtype != self.dtype):
            self._check_out(out)
        run = self._run_host if self.host else self._run_device
        try:
            return run(operands, bias, residual, self._queue(operands[self._lead], queue))
        except MemoryError as error:
            if isinstance(error, MemoryLimit):
                raise
            shape = self.out_shape
            raise MemoryLimit(f"the host has no memory left for a result of shape {shape}: {error}") from error

    def _queue(self, lead: Any, queue: Any) -> Any:
        queue = queue if queue is not None else runtime.queue() if self.host else lead.queue
        if queue is self._known:
            return queue
        if not hasattr(queue, "context"):
            if queue is not None:
                raise InvalidArgument(f"queue must be a pyopencl.CommandQueue, got {queue!r}")
            raise InvalidArgument("the array has no queue: pass queue=, or give the array one with with_queue()")
        return queue

    def _check_out(self, out: Any) -> None:
        if out is None:
            return
        if tuple(out.shape) != self.out_shape:
            raise InvalidArgument(f"out must have shape {self.out_shape}, got {tuple(out.shape)}")
        if out.dtype.newbyteorder("=") != self.dtype:
            raise InvalidArgument(f"out must be {self.dtype.name}, got {out.dtype.name}")
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise InvalidArgument("out must be writeable, got a read-only array")

    # --- NumPy -------------------------------------------------------------------------------------------------------

    def _run_host_plain(self, operands: list[Any], queue: Any) -> np.ndarray | None:
        """The result of arrays whose memory kernels take as it is, with nothing beside; None for other calls."""
        lead, other, out = operands[self._lead], operands[self._other], operands[self._out]
        if not (lead.flags.carray and other.flags.carray):
            return None
        if out is None:
            out = operands[self._out] = host.empty(queue.device, self.out_shape, self.dtype, self._out_bytes)
        elif not out.flags.carray or out.dtype != self.dtype or _shared(out, lead) or _shared(out, other):
            return None
        self._known, commands = queue, HostQueue(queue)
        x, w, y = operands
        try:
            given = host_memory(x), host_memory(w), host_memory(y)
            commands.finish(dispatch.run(self.problem, self.prepared, commands, *given))
        except BaseException:
            queue.finish()  # no command may use the host's memory any longer
            raise
        return out

    def _run_host(self, operands: list[Any], bias: Any, residual: Any, queue: Any) -> np.ndarray:
        if self._plain and self._pointers and self._native:
            done = self._run_host_plain(operands, queue)
            if done is not None:
                return done
        out = operands[self._out]
        if out is not None and not out.flags.writeable:
            self._check_out(out)
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
            self._enqueue(operands, bias, residual, queue, False)
        if out is not None and not direct:
            out[...] = result
            return out
        return result

    # --- arrays on a device ------------------------------------------------------------------------------------------

    def _run_device(self, operands: list[Any], bias: Any, residual: Any, queue: Any) -> Any:
        if queue is not self._known:
            if queue.context != self.context:
                raise InvalidArgument("queue belongs to another context than the arrays")
            self._known = queue
        out = operands[self._out]
        if out is None:
            forbid_when_frozen("allocate the result (pass out=)")
            out = operands[self._out] = self._make(queue, operands[self._lead])
        else:
            for place in (self._lead, self._other):
                if overlaps(out, operands[place]):
                    raise InvalidArgument(
                        f"out shares memory with {self._names[place]}, which would change while it is read: pass an "
                        "out of its own"
                    )
        if self.empty:
            return self._zero(out, queue)
        if self._plain:
            event = self._enqueue_plain(operands, queue)
            if event is not None:
                if hasattr(out, "events"):
                    out.events[:] = (event,)
                return out
        # The convolution would overwrite a residual that lies in the result before the epilogue's own pass reads it.
        shared = residual is not None and residual.base_data == out.base_data and not self.prepared.fuses_residual
        event = self._enqueue(operands, bias, residual, queue, shared)
        if hasattr(out, "events"):
            out.events[:] = (event,)
        return out

    def _enqueue_plain(self, operands: list[Any], queue: Any) -> Any:
        """The event of a call whose arrays are whole buffers of its queue, with nothing beside; None otherwise."""
        given, events = [], []
        for array, strides in zip(operands, self._strides, strict=True):
            if array.queue is not queue or array.offset or array.strides != strides:
                return None
            given.append(array.base_data)
            before = getattr(array, "events", None)
            if before:
                events += before
        return dispatch.run(self.problem, self.prepared, queue, *given, wait_for=events or None)

    def _enqueue(self, operands: list[Any], bias: Any, residual: Any, queue: Any, shared: bool) -> Any:
        """Enqueue the call; the event of its last command. ``shared`` copies the residual first."""
        brought, given = Operands(queue, self.context, self._pointers), [None, None, None]
        for place in (self._lead, self._other):
            given[place] = brought.read(operands[place], self._strides[place])
        if bias is not None:
            bias = brought.read(bias, self._bias_strides)
        if residual is not None:
            residual = brought.read(residual, self._out_strides)
            if shared:
                residual = brought.copied(residual, operands[self._out].nbytes)
        given[self._out] = brought.write(operands[self._out], self._out_strides, keep=self.problem.accumulate)
        x, w, y = given
        promise = operands[1] if type(operands[1]) is Constant else None
        rest = bias, residual, brought.events or None, promise
        try:
            return brought.finish(dispatch.run(self.problem, self.prepared, brought.commands, x, w, y, *rest))
        except BaseException:
            brought.abandon()
            raise

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


_shared = np.may_share_memory


def is_array(value: Any) -> bool:
    """Whether ``value`` is one of the arrays that the calls take, or constant weights."""
    return (
        isinstance(value, np.ndarray | Constant) or hasattr(value, "base_data") or library_of(type(value)) is not None
    )


def maker_of(kind: type, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype) -> Any:
    """``make(queue, like)``: an uninitialised C-contiguous array of class ``kind``; sizes are worked out once."""
    count = math.prod(shape)
    if hasattr(kind, "empty"):  # Tensor, also of a subclass: a result is no parameter
        base, nbytes = next(each for each in kind.__mro__ if "empty" in vars(each)), count * dtype.itemsize
        return lambda queue, like: base(runtime.allocate(queue, nbytes), shape, dtype, queue, strides)
    size, allocate = max(1, count * dtype.itemsize), memory.allocate

    def make(queue: Any, like: Any) -> Any:
        allocator, context = like.allocator, like.context
        # The queue's pool, where the caller brought none: the driver's memory costs a page fault for every 4 KB.
        block = memory.with_room(queue.device, lambda: allocator(size)) if allocator else allocate(queue, size)
        try:  # the checks of Array's constructor cost six times what the rest of a warm call does
            return kind(
                queue, shape, dtype, allocator=allocator, data=block, strides=strides,
                _fast=True, _size=count, _context=context, _queue=queue,
            )  # fmt: skip
        except TypeError:  # a pyopencl without this road, or a subclass that closed it
            return kind(queue, shape, dtype, allocator=allocator, data=block, strides=strides)

    return make
