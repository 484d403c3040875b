"""Calls on arrays of OpenCL queues: commands are given to the arrays' queue, and the call returns at once.

The fast path takes arrays that begin with their buffers, are contiguous and on the queue of the calls before. Others,
and calls inside a capture, go by ``arrays/operands``: parts of buffers, events, other queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..api.policy import current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.commands.interface import Commands, thread
from ..device.executable import W
from ..device.places.queue import QueueEnqueue, QueuePlace
from ..selection import dispatch
from ..selection.prepared import Constant
from .arrays.operands import Operands, contiguous_strides, overlaps
from .arrays.results import maker_of
from .call import Call, refuse_shared
from .guarded_replay import replay_on_queue

if TYPE_CHECKING:
    import pyopencl as cl


class QueueCall(Call):
    """The call of one problem on an OpenCL context, for one kind of arrays."""

    def __init__(
        self,
        problem: ConvProblem,
        queue: cl.CommandQueue,
        kind: type,
        names: Sequence[str] = ("x", "w", "y"),
        *,
        events: bool | None = False,
        count: Callable[[str], Any] | None = None,
    ) -> None:
        """``kind`` is the class of its results; ``names`` are those of x, w, y for errors; ``events``: whether arrays
        carry events, None where some do and some do not."""
        super().__init__(problem, queue.device, count)
        self.context, self._names, self._carries = queue.context, names, events
        self.dtype = numpy_dtype(problem.written_dtype)
        shapes, units = (problem.x_shape, problem.w_shape, problem.y_shape), [problem.itemsize] * 3
        units[self.written] = problem.out_itemsize
        self.strides = tuple(map(contiguous_strides, shapes, units))
        self._out_strides, self._out_bytes = self.strides[self.written], self.sizes[self.written]
        self._bias_strides = (4 if problem.quantized else problem.itemsize,)
        self.make = maker_of(kind, self.out_shape, self._out_strides, self.dtype)
        if not self.empty:
            self.prepare(self.context)
        self.known: Any = None
        """The last queue that belongs to the context, and that the plan uses as it is."""
        self._note_queue(queue)
        self.queue_launches: Any = None
        """The launches of the fast path, where their only operands are x, w and y."""
        self.fast_path = self._make_fast_path()

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        plain = self.fast_path is not None and all(each is None for each in given[3:])
        return replay_on_queue(self, given[:3], options, shape) if plain else None

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """See Call; enqueued on a queue of the context."""
        if queue is None:
            queue = operands[self.lead].queue
        if queue is not self.known:
            checked_queue(queue)
            self._note_queue(queue)
        out = operands[self.written]
        if out is None:
            forbid_when_frozen("allocate the result (pass out=)")
            out = operands[self.written] = self.make(queue, operands[self.lead])
        else:
            self.check_out(tuple(out.shape), out.dtype.name, self.dtype.name)
            read = {self._names[place]: operands[place] for place in (self.lead, self.other)} | {"bias": bias}
            for name, array in read.items():
                if array is not None and overlaps(out, array):
                    refuse_shared(name)
        event = self._zero(out, queue) if self.empty else self._enqueue(operands, bias, constant, residual, queue)
        if hasattr(out, "events") and event is not None:
            out.events[:] = (event,)
        return out

    def _note_queue(self, queue: Any) -> None:
        """Remember a queue that the plan takes as it is. Raises InvalidArgument for one of another context."""
        if queue.context != self.context:
            raise InvalidArgument("queue belongs to another context than the arrays")
        if not isinstance(queue, Commands) or (self.prepared is not None and self.prepared.recordable):
            self.known = queue

    def _enqueue(self, operands: Sequence[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """Enqueue the call; returns the event of its last command."""
        brought, out = Operands(queue, self.context), operands[self.written]
        given: list[Any] = [None, None, None]
        for place in (self.lead, self.other):
            array = constant if place == W and constant is not None else operands[place]
            given[place] = brought.read(array, self.strides[place])
        if bias is not None:
            bias = brought.read(bias, self._bias_strides)
        if residual is not None:
            # A residual that shares memory with the result is overwritten before it is read, unless the kernel reads
            # each element of the residual at the address at which it writes that element of the result.
            in_place = self.prepared.fuses_residual and residual.offset == out.offset
            shared = overlaps(out, residual) and not in_place
            residual = brought.read(residual, self._out_strides)
            if shared:
                residual = brought.copied(residual, out.nbytes)
        given[self.written] = brought.write(out, self._out_strides, keep=self.problem.accumulate)
        given += [bias, residual]
        return brought.finish(dispatch.run(self.prepared, queue, given, brought.events or None, constant))

    def _zero(self, out: Any, queue: Any) -> Any:
        """Fill the result with zeros where it is the gradient of no images; any other empty result has nothing to
        write."""
        if not self.zeroes:
            return None
        brought = Operands(queue, self.context)
        memory = brought.write(out, self._out_strides)
        return brought.finish(runtime.fill(queue, memory, np.zeros(1, np.uint8), 0, out.nbytes, brought.events))

    def _make_fast_path(self) -> Callable[..., Any] | None:
        """The fast path, where all operands carry events or none does, and of the weights nothing is promised."""
        problem, prepared, carries = self.problem, self.prepared, self._carries
        if prepared is None or prepared.layered or problem.constant_weights or carries is None:
            return None
        make = None if current_policy().frozen else self.make
        first, second, written = self.places
        lead_strides, other_strides, out_strides = (self.strides[place] for place in self.places)
        bias_strides = self._bias_strides
        shape, dtype, fuses_residual = self.out_shape, self.dtype, prepared.fuses_residual
        executable = prepared.executable(runtime.queue(self.device))
        # The fast path holds `known` and not the call, so that no reference cycle delays the end of an unused call.
        known = self.known
        on_buffers = not isinstance(known, Commands)
        launches: Any = executable.bind(QueuePlace(self.context)) if on_buffers else QueueEnqueue(executable)
        # Callers of queue_launches skip the checks below: x, w and y are given, and a failed launch may be repeated.
        self.queue_launches = None if problem.bias or problem.residual or problem.accumulate else launches
        run = launches.run

        def beside(array: Any, strides: tuple[int, ...], queue: Any, before: Any) -> Any:
            """The memory of a bias or a residual; None where it is on another queue, has an offset or is not
            contiguous."""
            if type(array) is Constant:  # the bias of a quantized convolution is its table, a Constant
                return array.on_device(queue)
            if array.queue is not queue or array.offset or array.strides != strides:
                return None
            if carries:
                before += array.events
            return array.base_data

        def fast_path(
            lead: Any, other: Any, out: Any, queue: Any, bias: Any = None, constant: Any = None, residual: Any = None
        ) -> Any:
            if queue is None:
                queue = lead.queue
            if (
                queue is not known
                or lead.queue is not queue
                or other.queue is not queue
                or lead.offset
                or other.offset
                or lead.strides != lead_strides
                or other.strides != other_strides
                or thread.capturing is not None
            ):
                return None
            operands: list[Any] = [None, None, None, None, None]
            a, b = operands[first], operands[second] = lead.base_data, other.base_data
            before = lead.events + other.events if carries else None
            if bias is not None:
                operands[3] = beside(bias, bias_strides, queue, before)
                if operands[3] is None:
                    return None
            if residual is not None:
                operands[4] = beside(residual, out_strides, queue, before)
                if operands[4] is None:
                    return None
            if out is None:
                if make is None:
                    return None
                out = make(queue, lead)
                operands[written] = out.base_data
            else:
                if out.queue is not queue or out.offset or out.strides != out_strides:
                    return None
                if out.shape != shape or out.dtype != dtype:
                    return None
                c = operands[written] = out.base_data
                if c is a or c is b or c.int_ptr in (a.int_ptr, b.int_ptr):
                    return None
                if bias is not None and c.int_ptr == operands[3].int_ptr:
                    return None
                if residual is not None and not fuses_residual and c.int_ptr == operands[4].int_ptr:
                    return None
                if carries:
                    before += out.events
            try:
                event = run(queue, operands, before or None)
            except BaseException as error:
                wrong = isinstance(error, AttributeError | TypeError) and isinstance(queue, Commands)
                failed = prepared.misused(queue, error) if wrong else error
                event = dispatch.run(prepared, queue, operands, before or None, failed=failed)
            if carries:
                out.events[:] = (event,)
            return out

        return fast_path


def checked_queue(queue: Any) -> Any:
    """A queue that commands can be given to. Raises InvalidArgument."""
    if hasattr(queue, "context"):
        return queue
    if queue is not None:
        raise InvalidArgument(f"queue must be a pyopencl.CommandQueue, got {queue!r}")
    raise InvalidArgument("the array has no queue: pass queue=, or give the array one with with_queue()")
