"""The short way of a warm call: what its arrays must be like was seen at the first one, so the others only look.

A fast path is ``path(lead, other, out, queue, bias, promise)``: operands in the order of ``PLACES``, the weights'
promise. It answers the array that was written, or None before anything is done where an operand lies otherwise than
plainly (an offset, gaps, another queue, a recording): then the call goes the general way. A plan that fails is
``dispatch``'s matter, as there.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..api.policy import current_policy
from ..device import runtime
from ..device.commands.host_memory import HostMemory, HostQueue
from ..device.commands.interface import Commands, thread
from ..device.plans.host_launches import HostLaunches
from ..device.plans.queue_launches import QueueLaunches
from ..selection import dispatch

FastPath = Callable[..., Any]
_OTHER, _OUT, _BIAS, _RESIDUAL = 1, 2, 3, 4
"""Their places among a fast path's operands; weights that are read are always the other."""
_numbers = itertools.count()


def _plain(call: Any) -> bool:
    """Whether operands are only read or only written, and nobody looks on."""
    return call.prepared is not None and not (call.problem.accumulate or current_policy().tune)


def device_fast_path(call: Any, given: Sequence[Any]) -> FastPath | None:
    """For arrays on a device, without bias, residual and promises, where the plan's own enqueue is all of a call, and
    all operands (``given`` are the first call's) carry events or none does.

    The first call goes by the plan's enqueue, the others by the launches that it gave, where these are all
    it gives.
    """
    if not _plain(call) or call.problem.residual or not call.prepared.bare or call.problem.constant_weights:
        return None
    problem, prepared, make = call.problem, call.prepared, None if current_policy().frozen else call.make
    carries = hasattr(given[call.places[0]], "events")
    if any(hasattr(array, "events") is not carries for array in given if array is not None):
        return None
    lead_strides, other_strides, out_strides = (call.strides[place] for place in call.places)
    shape, dtype = call.out_shape, call.dtype
    enqueue, size, allocate = prepared.plan.enqueue, prepared.workspace_size, runtime.allocate
    launches: QueueLaunches | None = None
    tried = False
    places, owner = call.places, weakref.ref(call)

    def order(*memory: Any) -> list[Any]:
        return [memory[places.index(place)] for place in range(3)]

    def fast_path(lead: Any, other: Any, out: Any, queue: Any, bias: Any = None, promise: Any = None) -> Any:
        nonlocal launches, tried
        if queue is None:
            queue = lead.queue
        call = owner()
        if (
            call is None
            or queue is not call.known
            or lead.queue is not queue
            or other.queue is not queue
            or lead.offset
            or other.offset
            or lead.strides != lead_strides
            or other.strides != other_strides
            or thread.capturing is not None
        ):
            return None
        first, second, before = lead.base_data, other.base_data, None
        if carries:
            before = lead.events + other.events
        if out is None:
            if make is None:
                return None
            out = make(queue, lead)
            third = out.base_data
        else:
            if out.queue is not queue or out.offset or out.strides != out_strides:
                return None
            if out.shape != shape or out.dtype != dtype:
                return None
            third = out.base_data
            if third is first or third is second or third.int_ptr in (first.int_ptr, second.int_ptr):
                return None
            if carries:
                before += out.events
        try:
            if launches is not None:
                event = launches.give(queue, (first, second, third), before or None)
            else:
                x, w, y = order(first, second, third)
                event = enqueue(queue, x, w, y, allocate(queue, size) if size else None, before or None)
                if not hasattr(event, "wait"):
                    raise dispatch.no_event(prepared, event)
                if not tried:
                    tried = True
                    launches = _queue_launches(prepared, places, queue)
                    call.queue_launches = launches
        except BaseException as error:
            wrong = isinstance(error, AttributeError | TypeError) and isinstance(queue, Commands)
            failed = prepared.misused(queue, error) if wrong else error
            x, w, y = order(first, second, third)
            event = dispatch.run(problem, prepared, queue, x, w, y, wait_for=before or None, failed=failed)
        if carries:
            out.events[:] = (event,)
        return out

    return fast_path


def host_fast_path(
    call: Any,
    address: Callable[[Any], int],
    written: Callable[[Any], int],
    make: Callable[[], tuple[Any, int]],
    of_bias: Callable[[Any], int] | None = None,
    apart: Callable[[], Any] | None = None,
    adds: bool = False,
) -> FastPath | None:
    """For arrays on the host whose pointers the device takes; waits.

    ``address(array)`` is where an operand begins, ``written(array)`` where a result, 0 of one that kernels cannot take
    as it lies; ``make()`` a new result, and where that begins. The first call goes by the plan's enqueue, the others by
    the launches that it gave, where these are all it gives. With ``apart`` they run in PyTorch's threads if they can;
    it is called where they cannot, and threads of OpenCL's will. ``call`` is told its ``launches``, and by what
    (``packed_key``) packed weights are found in their promise. ``adds``: the caller gives a residual where the problem
    has one.
    """
    if not _plain(call) or not call.prepared.recordable or (call.problem.residual and not adds):
        return None
    problem, prepared, places = call.problem, call.prepared, call.places
    sizes = [call.sizes[place] for place in places]
    if problem.bias:
        sizes.append(problem.channels_out * problem.itemsize)
    if problem.residual:
        sizes.append(call.sizes[2])
    of_bias = of_bias or address
    packs, launches, tried = prepared.packed_size, None, False
    key = call.packed_key = next(_numbers)
    owner = weakref.ref(call)  # which holds this path: a call that nobody holds is gone at once

    def fit(addresses: list[int]) -> bool:
        """Whether all operands lie plainly, and the result over none of them."""
        begin = addresses[_OUT]
        end = begin + sizes[_OUT]
        over = [at for at, size in zip(addresses, sizes, strict=False) if begin < at + size and at < end]
        return 0 not in addresses and over == [begin]

    def by_plan(addresses: list[int], queue: Any, promise: Any, failed: BaseException | None = None) -> None:
        nonlocal launches, tried
        commands, operands = HostQueue(queue), list(map(HostMemory.at, addresses, sizes))
        x, w, y = (operands[places.index(place)] for place in range(3))
        bias: Any = operands[_BIAS] if problem.bias else None
        residual: Any = operands[-1] if problem.residual else None
        if failed is None:
            try:
                weights, wait = w, None
                if packs:
                    weights, packed = promise.packed(prepared, commands, w)
                    wait = None if packed is None else [packed]
                event = prepared.enqueue(commands, x, weights, y, bias, residual, wait)
                if not hasattr(event, "wait"):
                    raise dispatch.no_event(prepared, event)
            except BaseException as error:
                failed = error
        if failed is not None:
            event = dispatch.run(problem, prepared, commands, x, w, y, bias, residual, None, promise, failed)
        commands.finish(event)
        if failed is not None:
            return
        if not tried:
            tried = True
            launches = _launches(prepared, places, queue, fit, apart is not None)
            if (told := owner()) is not None:
                told.launches = launches
            if apart is not None and not (launches is not None and launches.intraop):
                apart()
        if packs and launches is not None:
            promise.addresses[key] = weights

    def fast_path(
        lead: Any, other: Any, out: Any, queue: Any, bias: Any = None, promise: Any = None, residual: Any = None
    ) -> Any:
        if thread.capturing is not None:
            return None
        if out is None:
            out, begin = make()
        else:
            begin = written(out)
        token = promise.token if packs else 0  # before the memory: another thread may let go of that
        packed = promise.addresses.get(key) if packs else None
        addresses = [address(lead), address(other) if packed is None else token, begin]
        if bias is not None:
            addresses.append(of_bias(bias))
        if residual is not None:
            addresses.append(address(residual))
        try:
            if launches is None or (packs and packed is None):
                if not fit(addresses):
                    return None
                by_plan(addresses, queue, promise)
                return out
            try:
                given = launches.give(queue, addresses, packed)
            except BaseException as error:
                addresses[_OTHER] = address(other)
                if not addresses[_OTHER]:
                    raise
                by_plan(addresses, queue, promise, error)
                return out
            if given is None:
                return None
            if given[0] is not None:
                given[0].wait()
        except BaseException:
            queue.finish()  # no command may use the host's memory any longer
            raise
        return out

    return fast_path


def _queue_launches(prepared: Any, places: Sequence[int], queue: Any) -> QueueLaunches | None:
    """As ``_launches`` for buffers on an OpenCL queue."""
    if isinstance(queue, Commands) or not prepared.recordable:
        return None
    try:
        recording, slots = prepared.recorded(queue)
        return QueueLaunches.of(recording, [slots[place] for place in places])
    except KeyboardInterrupt:
        raise
    except BaseException:  # it goes by its enqueue, as it did
        return None


def _launches(
    prepared: Any, places: Sequence[int], queue: Any, fit: Callable[[list[int]], bool], in_pytorch: bool = False
) -> HostLaunches | None:
    """The launches of a plan that just ran, in the order of a path's operands; None where it gives other commands."""
    try:
        recording, slots = prepared.recorded(queue)
        return HostLaunches.of(recording, [slots[place] for place in (*places, _BIAS, _RESIDUAL)], fit, in_pytorch)
    except KeyboardInterrupt:
        raise
    except BaseException:  # it goes by its enqueue, as it did
        return None


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
