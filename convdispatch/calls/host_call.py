"""Calls on host memory: kernels use the arrays' own memory if the device can, and a call returns a finished result.

Arrays of every library, PyTorch's tensors and XLA's buffers are computed so. A device without fine-grained system SVM
gets copies (``device/places/copies``).
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.cpu import Balance
from ..api.policy import current_policy
from ..api.problem import ConvProblem
from ..device import runtime
from ..device.commands.host_memory import has_system_svm
from ..device.executable import BIAS, RESIDUAL, W
from ..device.places import intraop
from ..device.places.copies import CopyPlace
from ..device.places.host import HostPlace
from ..device.rates import LAUNCH, rates
from ..selection import dispatch
from ..selection.layer_chain import unpacked_weights
from ..selection.prepared import Constant, Prepared
from ..selection.solver_query import predicted
from .arrays.host_arrays import HostArrays
from .arrays.operands import check_written, native
from .call import Call, raise_no_room

_numbers = itertools.count()


class HostCall(Call):
    """The call of one problem on a device, for one kind of arrays in host memory."""

    host = True

    def __init__(
        self,
        problem: ConvProblem,
        context: cl.Context,
        arrays: Any = None,
        *,
        in_pytorch: bool = False,
        count: Callable[[str], Any] | None = None,
    ) -> None:
        """``arrays`` is a HostArrays; without one ``launch`` is called with addresses alone. ``in_pytorch``: kernels
        run in PyTorch's threads, if they can."""
        super().__init__(problem, context.devices[0], count)
        self.context, self.arrays = context, arrays
        pointers = has_system_svm(self.device)
        if not self.empty:
            self.prepare(context)
        one_thread = pointers and self.prepared is not None and prefers_one_thread(self.prepared)
        self.ask = host_queue(self.device, one_thread)
        self.launch: Any = None
        """``launch(addresses, queue, constant)`` runs the call on addresses of x, w, y, bias and residual, 0 for a
        missing operand; returns False, and launches nothing, if an operand has no address or overlaps with the
        result."""
        if self.prepared is None:
            return
        place: Any = HostPlace(self.device, in_pytorch) if pointers else CopyPlace(context, problem.accumulate)
        executable = self.prepared.executable(runtime.queue(self.device))
        self.launches, self.packed_key = executable.bind(place), next(_numbers)
        self.overlaps = executable.overlaps
        self.launch = _launch(self, place)
        if arrays is not None:
            self.fast_path = _fast_path(self, self.launch)

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        arrays, out, copies = self.arrays, operands[self.written], []
        if out is not None:
            view = arrays.view(out)
            self.check_out(tuple(view.shape), view.dtype.newbyteorder("=").name, arrays.dtype.name)
            check_written(view)
        if self.empty:
            result = arrays.allocate()[0] if out is None else out
            if self.zeroes:
                arrays.view(result)[...] = 0
            return arrays.finished(result, operands[self.first]) if out is None else out

        def readable(array: Any, address: Callable[[Any], int] = arrays.input_address) -> int:
            array_address = 0 if array is None else address(array)
            if not array_address and array is not None:
                copy, array_address = arrays.compact(array)
                copies.append(copy)
            return array_address

        addresses = [0] * 5
        inputs = list(operands)
        weights = None if constant is None else constant.array
        if constant is not None and weights is not None and not arrays.input_address(inputs[W]):
            constant = constant.seen_as("native", lambda: native(arrays.view(weights)))
            inputs[W] = constant.array
        addresses[self.first], addresses[self.second] = readable(inputs[self.first]), readable(inputs[self.second])
        addresses[BIAS], addresses[RESIDUAL] = readable(bias, arrays.bias_address), readable(residual)
        addresses[self.written] = 0 if out is None else arrays.output_address(out)
        if addresses[self.written] and not self.overlaps(addresses):
            result = out
        else:
            result, addresses[self.written] = arrays.allocate()
            if self.problem.accumulate:
                arrays.view(result)[...] = arrays.view(out)
        launched = self.launch(addresses, queue, constant)
        assert launched, "kernels take copies"
        if out is not None and result is not out:
            arrays.view(out)[...] = arrays.view(result)
        return arrays.finished(result, operands[self.first]) if out is None else out

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """See Call; among other libraries only PyTorch's arrays can be checked so quickly. The function does not keep
        the call alive."""
        can_check = library is None or (library.records_gradients and type(given[self.second]) is not Constant)
        if self.fast_path is None or not can_check:
            return None
        (first, second, written), ask, fast_path = self.places, self.ask, self.fast_path
        input1, input2, (bias, residual, queue) = given[first], given[second], given[3:]
        first_kind, second_kind, is_constant = type(input1), type(input2), type(input2) is Constant
        dtype, dtype2, first_shape, second_shape = input1.dtype, input2.dtype, input1.shape, input2.shape
        of_bias, of_residual, policies, out_shape = _facts(bias), _facts(residual), (current_policy(),), self.out_shape
        are_tensors, call_reference = not issubclass(first_kind, np.ndarray), weakref.ref(self)

        def repeat(
            operands: Sequence[Any],
            given_options: tuple[Any, ...],
            sizes: Any,
            bias: Any = None,
            residual: Any = None,
            given_queue: Any = None,
        ) -> Any:
            x, w, out = operands[first], operands[second], operands[written]
            try:
                if given_options != options or sizes != shape:
                    return None
            except ValueError:  # options that contain an array cannot be compared
                return None
            if (
                type(x) is not first_kind
                or type(w) is not second_kind
                or (out is not None and type(out) is not first_kind)
                or x.shape != first_shape
                or w.shape != second_shape
                or x.dtype is not dtype
                or w.dtype is not dtype2
                or given_queue is not queue
                or current_policy() not in policies  # `in` compares by identity before it compares by value
                or runtime.forked
            ):
                return None
            if (bias is not None or of_bias) and _facts(bias) != of_bias:
                return None
            if (residual is not None or of_residual) and _facts(residual) != of_residual:
                return None
            if are_tensors and not all(_plain(each) for each in (x, w, out, bias, residual)):
                return None
            promise = None
            if is_constant:
                promise, w = w, w.array
            try:
                done = fast_path(x, w, out, queue or ask(), bias, promise, residual)
                if done is None and (held := call_reference()) is not None:
                    arrays = list(operands)
                    arrays[second] = w
                    return held.generally(arrays, bias, promise, residual, queue or ask())
            except MemoryError as error:
                raise_no_room(out_shape, error)
            return done

        return repeat

    def program(self, launcher: Any) -> Any:
        program = super().program(launcher)
        if program is not None:
            intraop.lend_queues(self.device)
        return program


def _facts(array: Any) -> Any:
    """The attributes in which a bias or a residual must equal that of the recorded call; an object that is no array
    never does."""
    if array is None:
        return None
    dtype = getattr(array, "dtype", None)
    return object() if dtype is None else (type(array), dtype, array.shape)


def _plain(array: Any) -> bool:
    """Whether an array, if it is a PyTorch tensor, is in host memory and records no gradient."""
    return array is None or type(array) is Constant or bool(array.is_cpu and not array.requires_grad)


def _launch(call: HostCall, place: HostPlace | CopyPlace) -> Callable[..., Any]:
    """Returns the call's ``launch``, which runs another solver's plan after an error; it does not keep the call
    alive."""
    prepared, launched, key = call.prepared, call.launches.run, call.packed_key
    sizes = [size if number < BIAS else size or None for number, size in enumerate(call.sizes)]
    written = call.written

    def pack(promise: Constant, queue: Any, address: int) -> Any:
        """Packs the weights at an address and waits; returns an operand for the place where kernels run."""

        def work(commands: Any, weights: Any) -> Any:
            memory, event = promise.packed(prepared, commands, weights)
            promise.addresses[key] = memory
            return event

        place.enqueue(work, queue, [address], [sizes[W]])
        return promise.addresses[key]

    def run_packed(queue: Any, addresses: list[int], constant: Any) -> Any:
        packed = constant.addresses.get(key)  # the reference keeps the weights alive if another thread drops them
        if packed is None:
            if not addresses[W]:
                return False
            packed = pack(constant, queue, addresses[W])
        operands = [*addresses]
        operands[W] = place.operand(packed)
        if not prepared.layered:
            return launched(queue, operands)
        with unpacked_weights(place.memory(queue, addresses[W], sizes[W]) if addresses[W] else None):
            return launched(queue, operands)

    def recover(error: BaseException, addresses: list[int], queue: Any, constant: Constant | None) -> bool:
        try:
            if not addresses[W]:
                raise error

            def again(commands: Any, *operands: Any) -> Any:
                return dispatch.run(prepared, commands, operands, constant=constant, failed=error)

            place.enqueue(again, queue, addresses, sizes, (written,))
            return True
        except BaseException:
            queue.finish()  # no command may still use the caller's host memory after this
            raise

    packs = call.packs

    def launch(addresses: list[int], queue: Any, constant: Constant | None = None) -> Any:
        try:
            return run_packed(queue, addresses, constant) if packs else launched(queue, addresses)
        except BaseException as error:
            return recover(error, addresses, queue, constant)

    return launch


def _fast_path(call: HostCall, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``path(input1, input2, out, queue, bias, constant, residual)``, the call's fast path. It does not keep
    the call alive."""
    arrays: HostArrays = call.arrays
    address, of_bias = arrays.input_address, arrays.bias_address
    output, allocate = arrays.output_address, arrays.allocate
    first_place, second_place, out_place = call.places

    def fast_path(
        input1: Any, input2: Any, out: Any, queue: Any, bias: Any = None, constant: Any = None, residual: Any = None
    ) -> Any:
        addresses = [0, 0, 0, 0, 0]
        if out is None:
            out, addresses[out_place] = allocate()
        else:
            addresses[out_place] = output(out)
        addresses[first_place] = address(input1)
        addresses[second_place] = address(input2)
        if bias is not None:
            addresses[3] = of_bias(bias)
        if residual is not None:
            addresses[4] = address(residual)
        return out if launch(addresses, queue, constant) else None

    return fast_path


def host_queue(device: Any, alone: bool = False) -> Callable[[], Any]:
    """A function that returns the calling thread's queue for host memory; with ``alone``, the queue whose commands the
    thread computes itself, if the device has one."""
    thread_state = threading.local()

    def ask() -> Any:
        try:
            return thread_state.queue
        except AttributeError:
            thread_state.queue = (alone and runtime.serial_queue(device)) or runtime.queue(device)
            return thread_state.queue

    return ask


_WAKING_OPERATIONS = 2.25e6
"""The cost of waking other threads, in operations at the device's peak speed; n cores save (n - 1)/n of a call's work.
Measured on two cores: layers of 4.5 million predicted operations took equally long on one and on both, smaller ones
1.07 to 2.2 times as long on both."""


def prefers_one_thread(prepared: Prepared) -> bool:
    """Whether a prepared call is, by its solver's prediction, too short for several threads."""
    device = runtime.device_info(prepared.context.devices[0])
    cost = predicted(prepared.solver, prepared.problem, device, prepared.config, prepared.math)
    if cost is None:
        return False
    cores, device_rates = device.compute_units, rates(device)
    work = cost * device_rates.flops - LAUNCH * Balance.of(device_rates).launch
    return work <= _WAKING_OPERATIONS * cores / max(cores - 1, 1)
