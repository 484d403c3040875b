"""The short way of a warm call: what its arrays must be like was seen at the first one, so the others only look.

A road is ``road(operands, queue)`` with operands x, w, y, whose place for the result it fills. It answers the array
that was written, or None before anything is done where an operand lies otherwise than plainly (an offset, gaps, another
queue, a recording): then the call goes the general way. A plan that fails is ``dispatch``'s matter, as there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..api.policy import current_policy
from ..device import runtime
from ..device.commands import Commands, thread
from ..device.host import HostQueue
from ..selection import dispatch

__all__ = ["Road", "device_road", "host_queue", "host_road"]

Road = Callable[..., Any]


def _plain(call: Any) -> bool:
    """Whether the plan's own enqueue is all that a call does, on operands that are only read or only written."""
    problem, prepared = call.problem, call.prepared
    if prepared is None or problem.accumulate or problem.bias or problem.residual:
        return False
    return prepared.bare and current_policy().tune is None


def device_road(call: Any) -> Road | None:
    """For arrays on a device, without bias, residual and promises."""
    if not _plain(call) or call.problem.constant_weights:
        return None
    problem, prepared, make = call.problem, call.prepared, None if current_policy().frozen else call.make
    lead_at, other_at, out_at = call.places
    lead_strides, other_strides, out_strides = (call.strides[place] for place in call.places)
    shape, dtype = call.out_shape, call.dtype
    enqueue, size, allocate = prepared.plan.enqueue, prepared.workspace_size, runtime.allocate

    def road(operands: list[Any], queue: Any) -> Any:
        lead, other, out = operands[lead_at], operands[other_at], operands[out_at]
        if queue is None:
            queue = lead.queue
        if (
            queue is not call.known
            or lead.queue is not queue
            or other.queue is not queue
            or lead.offset
            or other.offset
            or lead.strides != lead_strides
            or other.strides != other_strides
            or thread.capturing is not None
        ):
            return None
        first, second = lead.base_data, other.base_data
        if out is None:
            if make is None:
                return None
            out, wait = make(queue, lead), None
            third = out.base_data
        else:
            if out.queue is not queue or out.offset or out.strides != out_strides:
                return None
            if out.shape != shape or out.dtype != dtype:
                return None
            third = out.base_data
            if third is first or third is second or third.int_ptr in (first.int_ptr, second.int_ptr):
                return None
            wait = getattr(out, "events", None)
        before = getattr(lead, "events", None)
        if before is not None:
            before = [*before, *other.events, *(wait or ())]
        operands[lead_at], operands[other_at], operands[out_at] = first, second, third
        x, w, y = operands
        try:
            event = enqueue(queue, x, w, y, allocate(queue, size) if size else None, before or None)
            if not hasattr(event, "wait"):
                raise dispatch.no_event(prepared, event)
        except BaseException as error:
            wrong = isinstance(error, AttributeError | TypeError) and isinstance(queue, Commands)
            failed = prepared.misused(queue, error) if wrong else error
            event = dispatch.run(problem, prepared, queue, x, w, y, wait_for=before or None, failed=failed)
        if before is not None:
            out.events[:] = (event,)
        return out

    return road


def host_road(
    call: Any, memory_of: Callable[[int], Callable[[Any], Any]], fits: Callable[[int], Any], make: Callable[..., Any]
) -> Road | None:
    """For arrays on the host whose pointers the device takes; waits. Takes a third argument: the weights' promise.

    ``memory_of(place)`` answers what takes an array of that place as a kernel does, ``fits(place)`` what tells whether
    it may, ``make()`` a new result and its memory.
    """
    if not _plain(call) or not call.prepared.recordable:
        return None
    problem, prepared = call.problem, call.prepared
    lead_at, other_at, out_at = call.places
    lead_fits, other_fits, out_fits = map(fits, call.places)
    lead_of, other_of, out_of = map(memory_of, call.places)
    lead_size, other_size, out_size = (call.sizes[place] for place in call.places)
    enqueue, size, packs = prepared.plan.enqueue, prepared.workspace_size, prepared.packed_size

    def road(operands: list[Any], queue: Any, promise: Any = None) -> Any:
        lead, other, out = operands[lead_at], operands[other_at], operands[out_at]
        if not (lead_fits(lead) and other_fits(other)) or thread.capturing is not None:
            return None
        if out is None:
            (out, third), first, second = make(), lead_of(lead), other_of(other)
        elif not out_fits(out):
            return None
        else:
            first, second, third = lead_of(lead), other_of(other), out_of(out)
            begin, one, two = third.svm_ptr, first.svm_ptr, second.svm_ptr
            end = begin + out_size
            if (begin < one + lead_size and one < end) or (begin < two + other_size and two < end):
                return None
        operands[lead_at], operands[other_at], operands[out_at] = first, second, third
        x, w, y = operands
        commands = HostQueue(queue)
        try:
            try:
                wait, weights = None, w
                if packs:
                    weights, packed = promise.packed(prepared, commands, w)
                    wait = None if packed is None else [packed]
                event = enqueue(commands, x, weights, y, commands.allocate(size) if size else None, wait)
                if not hasattr(event, "wait"):
                    raise dispatch.no_event(prepared, event)
            except BaseException as error:
                wrong = isinstance(error, AttributeError | TypeError)
                failed = prepared.misused(commands, error) if wrong else error
                event = dispatch.run(problem, prepared, commands, x, w, y, constant=promise, failed=failed)
            commands.finish(event)
        except BaseException:
            queue.finish()  # no command may use the host's memory any longer
            raise
        return out

    return road


def host_queue(device: Any = None, alone: bool = False) -> Callable[[], Any]:
    """What answers the calling thread's queue for host memory, of the default device without ``device``; ``alone``,
    the one whose commands the thread computes itself, where there is one."""
    own = threading.local()

    def ask() -> Any:
        try:
            return own.queue
        except AttributeError:
            own.queue = (alone and runtime.serial_queue(device)) or runtime.queue(device)
            return own.queue

    return ask
