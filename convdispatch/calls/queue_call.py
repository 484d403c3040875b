"""Calls on arrays of OpenCL queues: commands are enqueued on the arrays' queue, and the call returns at once.

The fast path takes arrays that start at their buffers' first byte, are contiguous, and are on the queue of earlier
calls. The slow path for all others, and for calls inside a capture, uses ``arrays/operands``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..api.policy import current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.commands.interface import Commands
from ..device.executable import W
from ..device.places.queue import QueueEnqueue, QueuePlace
from ..selection import dispatch
from ..selection.prepared import Constant
from .arrays.operands import Operands, contiguous_strides, maker_of, overlaps
from .call import Call, refuse_shared


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
        """``kind`` is the class of the results; ``names`` are those of x, w, y for error messages; ``events``: whether
        arrays carry events, None if only some of them do."""
        super().__init__(problem, queue.device, count)
        self.context, self._names, self._carries = queue.context, names, events
        self.dtype = numpy_dtype(problem.written_dtype)
        shapes, itemsizes = (problem.x_shape, problem.w_shape, problem.y_shape), [problem.itemsize] * 3
        itemsizes[self.written] = problem.out_itemsize
        self.strides = tuple(map(contiguous_strides, shapes, itemsizes))
        self._out_strides, self._out_bytes = self.strides[self.written], self.sizes[self.written]
        self._bias_strides = (4 if problem.quantized else problem.itemsize,)
        self.make = maker_of(kind, self.out_shape, self._out_strides, self.dtype)
        if not self.empty:
            self.prepare(self.context)
        self.known: Any = None
        """The last queue of the call's context that the plan can use directly."""
        self._note_queue(queue)
        self.queue_launches: Any = None
        """The launches of the fast path, if their only operands are x, w and y; else None."""
        self.fast_path = self._make_fast_path()

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """See Call; for calls without bias, residual and queue. Most of a warm call's time goes to reading its arrays'
        attributes: each is read once."""
        if self.fast_path is None or any(each is not None for each in given[3:]):
            return None
        (first, second, written), fast_path = self.places, self.fast_path
        input1, input2 = given[first], given[second]
        first_kind, second_kind, out_kind = type(input1), type(input2), type(given[written])
        dtype, dtype2, first_shape, second_shape = input1.dtype, input2.dtype, input1.shape, input2.shape
        known, launches, policies = self.known, self.queue_launches, (current_policy(),)
        compares_tuples = launches is not None and hasattr(input1, "events") and out_kind is first_kind
        strides = [self.strides[place] for place in self.places]
        kinds, shapes = (dtype, dtype2, dtype), (first_shape, second_shape, self.out_shape)
        expected = (*kinds, *shapes, *strides, known, known, known, 0, 0, 0)

        def repeat(operands: Sequence[Any], given_options: tuple[Any, ...], sizes: Any) -> Any:
            x, w, out = operands[first], operands[second], operands[written]
            try:
                if given_options != options or sizes != shape:
                    return None
            except ValueError:  # options that contain an array cannot be compared
                return None
            if type(x) is not first_kind or type(w) is not second_kind or type(out) is not out_kind:
                return None
            if current_policy() not in policies:  # `in` compares by identity before it compares by value
                return None
            # This does all checks of the fast path as one comparison of tuples, which tests identity before equality.
            if compares_tuples and expected == (
                x.dtype, w.dtype, out.dtype, x.shape, w.shape, out.shape, x.strides, w.strides, out.strides,
                x.queue, w.queue, out.queue, x.offset, w.offset, out.offset,
            ):  # fmt: skip
                memory = operands[0].base_data, operands[1].base_data, operands[2].base_data
                if memory[written] in (memory[first], memory[second]):
                    return None
                before = out.events
                wait_for = x.events + w.events + before if x.events or w.events else before
                try:
                    event = launches.run(known, memory, wait_for or None)
                except Exception:  # the fast path gets the same error, and handles it
                    return fast_path(x, w, out, None)
                if len(before) == 1:  # replacing one element takes a third of the time that assigning a slice takes
                    before[0] = event
                else:
                    before[:] = (event,)
                return out
            if x.dtype is not dtype or w.dtype is not dtype2 or x.shape != first_shape or w.shape != second_shape:
                return None
            return fast_path(x, w, out, None)

        return repeat

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """See Call; enqueued on a queue of the context."""
        if queue is None:
            queue = operands[self.first].queue
        if queue is not self.known:
            checked_queue(queue)
            self._note_queue(queue)
        out = operands[self.written]
        if out is None:
            forbid_when_frozen("allocate the result (pass out=)")
            out = operands[self.written] = self.make(queue, operands[self.first])
        else:
            self.check_out(tuple(out.shape), out.dtype.name, self.dtype.name)
            read = {self._names[place]: operands[place] for place in (self.first, self.second)} | {"bias": bias}
            for name, array in read.items():
                if array is not None and overlaps(out, array):
                    refuse_shared(name)
        event = self._zero(out, queue) if self.empty else self._enqueue(operands, bias, constant, residual, queue)
        if hasattr(out, "events") and event is not None:
            out.events[:] = (event,)
        return out

    def _note_queue(self, queue: Any) -> None:
        """Remember a queue that the plan can use directly. Raises InvalidArgument for a queue of another context."""
        if queue.context != self.context:
            raise InvalidArgument("queue belongs to another context than the arrays")
        if not isinstance(queue, Commands) or (self.prepared is not None and self.prepared.recordable):
            self.known = queue

    def _enqueue(self, operands: Sequence[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        """Enqueue the call; returns the event of its last command."""
        reader, out = Operands(queue, self.context), operands[self.written]
        memory: list[Any] = [None, None, None]
        for place in (self.first, self.second):
            array = constant if place == W and constant is not None else operands[place]
            memory[place] = reader.read(array, self.strides[place])
        if bias is not None:
            bias = reader.read(bias, self._bias_strides)
        if residual is not None:
            # A residual that shares memory with the result is overwritten before it is read, unless the kernel reads
            # each element of the residual at the address at which it writes that element of the result.
            in_place = self.prepared.fuses_residual and residual.offset == out.offset
            is_overwritten = overlaps(out, residual) and not in_place
            residual = reader.read(residual, self._out_strides)
            if is_overwritten:
                residual = reader.copied(residual, out.nbytes)
        memory[self.written] = reader.write(out, self._out_strides, keep=self.problem.accumulate)
        memory += [bias, residual]
        return reader.finish(dispatch.run(self.prepared, queue, memory, reader.events or None, constant))

    def _zero(self, out: Any, queue: Any) -> Any:
        """Fill the weights' gradient of no images with zeros; any other empty result has no elements to write."""
        if not self.zeroes:
            return None
        writer = Operands(queue, self.context)
        memory = writer.write(out, self._out_strides)
        return writer.finish(runtime.fill(queue, memory, np.zeros(1, np.uint8), 0, out.nbytes, writer.events))

    def _make_fast_path(self) -> Callable[..., Any] | None:
        """The fast path; None if only some operands carry events, or if weights are constant."""
        problem, prepared, carries = self.problem, self.prepared, self._carries
        if prepared is None or prepared.layered or problem.constant_weights or carries is None:
            return None
        make = None if current_policy().frozen else self.make
        first, second, written = self.places
        first_strides, second_strides, out_strides = (self.strides[place] for place in self.places)
        bias_strides = self._bias_strides
        shape, dtype, fuses_residual = self.out_shape, self.dtype, prepared.fuses_residual
        executable = prepared.executable(runtime.queue(self.device))
        # The fast path references `known` and not the call, so that no reference cycle keeps an unused call alive.
        known = self.known
        on_buffers = not isinstance(known, Commands)
        launches: Any = executable.bind(QueuePlace(self.context)) if on_buffers else QueueEnqueue(executable)
        # Callers of queue_launches skip the checks below: they pass x, w and y, and repeat a failed launch themselves.
        self.queue_launches = None if problem.bias or problem.residual or problem.accumulate else launches
        run = launches.run

        def beside(array: Any, strides: tuple[int, ...], queue: Any, before: Any) -> Any:
            """The memory of a bias or a residual; None if it is not contiguous, has an offset or is on another
            queue."""
            if type(array) is Constant:  # the bias of a quantized convolution is its table, a Constant
                return array.on_device(queue)
            if array.queue is not queue or array.offset or array.strides != strides:
                return None
            if carries:
                before += array.events
            return array.base_data

        def fast_path(
            input1: Any, input2: Any, out: Any, queue: Any, bias: Any = None, constant: Any = None, residual: Any = None
        ) -> Any:
            if queue is None:
                queue = input1.queue
            if (
                queue is not known
                or input1.queue is not queue
                or input2.queue is not queue
                or input1.offset
                or input2.offset
                or input1.strides != first_strides
                or input2.strides != second_strides
            ):
                return None
            operands: list[Any] = [None, None, None, None, None]
            a, b = operands[first], operands[second] = input1.base_data, input2.base_data
            events = input1.events + input2.events if carries else None
            if bias is not None:
                operands[3] = beside(bias, bias_strides, queue, events)
                if operands[3] is None:
                    return None
            if residual is not None:
                operands[4] = beside(residual, out_strides, queue, events)
                if operands[4] is None:
                    return None
            if out is None:
                if make is None:
                    return None
                out = make(queue, input1)
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
                    events += out.events
            try:
                event = run(queue, operands, events or None)
            except BaseException as error:
                misused = isinstance(error, AttributeError | TypeError) and isinstance(queue, Commands)
                failed = prepared.misused(queue, error) if misused else error
                event = dispatch.run(prepared, queue, operands, events or None, failed=failed)
            if carries:
                out.events[:] = (event,)
            return out

        return fast_path


def checked_queue(queue: Any) -> Any:
    """``queue``, if commands can be enqueued on it. Raises InvalidArgument."""
    if hasattr(queue, "context"):
        return queue
    if queue is not None:
        raise InvalidArgument(f"queue must be a pyopencl.CommandQueue, got {queue!r}")
    raise InvalidArgument("the array has no queue: pass queue=, or give the array one with with_queue()")
