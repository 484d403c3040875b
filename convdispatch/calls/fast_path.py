"""The short way of a warm call: what its arrays must be like was seen at the first one, so the others only look.

A fast path is ``path(lead, other, out, queue, bias, promise, residual)``: operands in the order of ``PLACES``, the
weights' promise. It answers the array that was written, or None before anything is done where an operand lies otherwise
than plainly (an offset, gaps, another queue, a recording): then the call goes the general way. What runs is the plan's
executable, from the first call on. A launch that fails is ``dispatch``'s matter, as there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..api.policy import current_policy
from ..device import runtime
from ..device.commands.host_memory import HostMemory, HostQueue
from ..device.commands.interface import Commands, thread
from ..device.executable import W
from ..device.places.host import HostPlace
from ..device.places.queue import QueueEnqueue, QueuePlace
from ..selection import dispatch
from ..selection.layer_chain import unpacked_weights
from ..selection.prepared import Constant

FastPath = Callable[..., Any]
_numbers = itertools.count()


def device_fast_path(call: Any, given: Sequence[Any]) -> FastPath | None:
    """For arrays on a device, where all operands (``given`` are the first call's) carry events or none does, and the
    weights are promised nothing."""
    problem, prepared, make = call.problem, call.prepared, None if current_policy().frozen else call.make
    if prepared is None or prepared.layered or problem.constant_weights:
        return None
    carries = hasattr(given[call.places[0]], "events")
    if any(
        hasattr(array, "events") is not carries for array in given if array is not None and type(array) is not Constant
    ):
        return None
    first, second, written = call.places
    lead_strides, other_strides, out_strides = (call.strides[place] for place in call.places)
    bias_strides = call.bias_strides
    shape, dtype, fuses_residual = call.out_shape, call.dtype, prepared.fuses_residual
    executable = prepared.executable(runtime.queue(call.context.devices[0]))
    known = call.known  # the path holds no call, which holds it: one that nobody holds is gone at once
    on_buffers = not isinstance(known, Commands)
    launches: Any = executable.bind(QueuePlace(call.context)) if on_buffers else QueueEnqueue(executable)
    # Who launches them without the look below has an operand for each of x, w, y and may launch again what failed.
    call.queue_launches = None if problem.bias or problem.residual or problem.accumulate else launches
    run = launches.run

    def beside(array: Any, strides: tuple[int, ...], queue: Any, before: list[Any] | None) -> Any:
        """The memory of a bias or a residual; None where it is not plain."""
        if type(array) is Constant:  # a quantized convolution's table
            return array.on_device(queue)
        if array.queue is not queue or array.offset or array.strides != strides:
            return None
        if carries:
            before += array.events  # type: ignore[operator]
        return array.base_data

    def fast_path(
        lead: Any, other: Any, out: Any, queue: Any, bias: Any = None, promise: Any = None, residual: Any = None
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
                before += out.events  # type: ignore[operator]
        try:
            event = run(queue, operands, before or None)
        except BaseException as error:
            wrong = isinstance(error, AttributeError | TypeError) and isinstance(queue, Commands)
            failed = prepared.misused(queue, error) if wrong else error
            event = dispatch.run(problem, prepared, queue, *operands, wait_for=before or None, failed=failed)
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
) -> FastPath | None:
    """For arrays on the host whose pointers the device takes; waits.

    ``address(array)`` is where an operand begins, ``written(array)`` where a result, 0 of one that kernels cannot take
    as it lies; ``make()`` a new result, and where that begins. With ``apart`` kernels run in PyTorch's threads if they
    can; it is called where they cannot, and threads of OpenCL's will. ``call`` is told its ``launches``, and by what
    (``packed_key``) packed weights are found in their promise.
    """
    problem, prepared = call.problem, call.prepared
    if prepared is None:
        return None
    device = prepared.context.devices[0]
    executable = prepared.executable(runtime.queue(device))
    lead_place, other_place, out_place = call.places
    of_bias = of_bias or address
    packs, key, weights_size = prepared.packed_size, next(_numbers), call.sizes[W]
    launches = call.launches = executable.bind(HostPlace(device, apart is not None))
    call.packed_key = key
    if apart is not None and not launches.intraop:
        apart()
    run = launches.run

    def memory(addresses: Sequence[int]) -> list[Any]:
        sizes = list(executable.operands)
        if packs:
            sizes[W] = weights_size
        return [
            None if size is None else HostMemory.at(place, size) for place, size in zip(addresses, sizes, strict=True)
        ]

    def packed_weights(promise: Any, at: int, queue: Any) -> Any:
        """The packed form of weights at an address; complete."""
        commands = HostQueue(queue)
        weights, event = promise.packed(prepared, commands, HostMemory.at(at, weights_size))
        if event is not None:
            event.wait()
        promise.addresses[key] = weights
        return weights

    def fast_path(
        lead: Any, other: Any, out: Any, queue: Any, bias: Any = None, promise: Any = None, residual: Any = None
    ) -> Any:
        addresses = [0, 0, 0, 0, 0]
        if out is None:
            out, addresses[out_place] = make()
        else:
            addresses[out_place] = written(out)
        addresses[lead_place] = address(lead)
        addresses[other_place] = address(other)
        if bias is not None:
            addresses[3] = of_bias(bias)
        if residual is not None:
            addresses[4] = address(residual)
        unpacked = addresses
        try:
            try:
                if packs:
                    packed = promise.addresses.get(key)  # held here: another thread may let go of it
                    if packed is None:
                        if not addresses[W]:
                            return None
                        packed = packed_weights(promise, addresses[W], queue)
                    addresses = [*addresses]
                    addresses[W] = packed.svm_ptr
                    if prepared.layered:
                        at = unpacked[W]
                        with unpacked_weights(HostMemory.at(at, weights_size) if at else None):
                            return out if run(queue, addresses) else None
                return out if run(queue, addresses) else None
            except BaseException as error:
                if not unpacked[W]:
                    raise
                commands = HostQueue(queue)
                commands.finish(
                    dispatch.run(problem, prepared, commands, *memory(unpacked), constant=promise, failed=error)
                )
                return out
        except BaseException:
            queue.finish()  # no command may use the host's memory any longer
            raise

    return fast_path


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
