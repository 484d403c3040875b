"""Calls on host memory: kernels take the arrays' own memory where the device can, and the result is there on return.

Arrays of every library, PyTorch's tensors and XLA's buffers go this way. A device without fine-grained system SVM gets
copies (``device/places/copies``).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..api.problem import ConvProblem
from ..device import runtime
from ..device.commands.host_memory import has_system_svm
from ..device.executable import BIAS, RESIDUAL, W
from ..device.places import intraop
from ..device.places.copies import CopyPlace
from ..device.places.host import HostPlace
from ..selection import dispatch
from ..selection.layer_chain import unpacked_weights
from ..selection.prepared import Constant
from ..selection.single_thread import prefers_one_thread
from .arrays.host_arrays import HostArrays
from .arrays.operands import check_written, native
from .call import Call
from .guarded_replay import replay_on_host

if TYPE_CHECKING:
    import pyopencl as cl

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
        alone = pointers and self.prepared is not None and prefers_one_thread(self.prepared)
        self.ask = host_queue(self.device, alone)
        self.launch: Any = None
        """``launch(addresses, queue, constant)`` runs the call on addresses of x, w, y, bias and residual, 0 for a
        missing one; returns False, before anything is done, where an operand has no address or overlaps with the
        result."""
        if self.prepared is None:
            return
        place: Any = HostPlace(self.device, in_pytorch) if pointers else CopyPlace(context, problem.accumulate)
        executable = self.prepared.executable(runtime.queue(self.device))
        self.launches, self.packed_key = executable.bind(place), next(_numbers)
        self.overlaps = executable.overlaps
        run, recover = _run_and_recover(self, place)

        def launch(addresses: list[int], queue: Any, constant: Constant | None = None) -> Any:
            try:
                return run(queue, addresses, constant)
            except BaseException as error:
                return recover(error, addresses, queue, constant)

        self.launch = launch
        if arrays is not None:
            self.fast_path = _fast_path(self, run, recover)

    def generally(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, queue: Any) -> Any:
        arrays, out, held = self.arrays, operands[self.written], []
        if out is not None:
            self._check_out(out)
        if self.empty:
            made = arrays.allocate()[0] if out is None else out
            if self.zeroes:
                arrays.view(made)[...] = 0
            return arrays.finished(made, operands[self.lead]) if out is None else out

        def readable(array: Any, address: Callable[[Any], int] = arrays.input_address) -> int:
            at = 0 if array is None else address(array)
            if not at and array is not None:
                copy, at = arrays.compact(array)
                held.append(copy)
            return at

        addresses = [0] * 5
        given = list(operands)
        weights = None if constant is None else constant.array
        if constant is not None and weights is not None and not arrays.input_address(given[W]):
            constant = constant.seen_as("native", lambda: native(arrays.view(weights)))
            given[W] = constant.array
        addresses[self.lead], addresses[self.other] = readable(given[self.lead]), readable(given[self.other])
        addresses[BIAS], addresses[RESIDUAL] = readable(bias, arrays.bias_address), readable(residual)
        addresses[self.written] = 0 if out is None else arrays.output_address(out)
        if addresses[self.written] and not self.overlaps(addresses):
            made = out
        else:
            made, addresses[self.written] = arrays.allocate()
            if self.problem.accumulate:
                arrays.view(made)[...] = arrays.view(out)
        done = self.launch(addresses, queue, constant)
        assert done, "kernels take copies"
        if out is not None and made is not out:
            arrays.view(out)[...] = arrays.view(made)
        return arrays.finished(made, operands[self.lead]) if out is None else out

    def _check_out(self, out: Any) -> None:
        view = self.arrays.view(out)
        self.check_out(tuple(view.shape), view.dtype.newbyteorder("=").name, self.arrays.dtype.name)
        check_written(view)

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """See Call; among other libraries only PyTorch's arrays can be checked so quickly."""
        alike = library is None or (library.records_gradients and type(given[self.other]) is not Constant)
        return replay_on_host(self, given, options, shape) if self.fast_path is not None and alike else None

    def program(self, launcher: Any) -> Any:
        if self.native is None:
            laid = self.arrays.shape, self.arrays.strides
            made = None if self.arrays.strides is None else self.launches.program(launcher, self.solver, *laid)
            self.native = made or False
        if self.native:
            intraop.lend_queues(self.device)
        return self.native or None


def _run_and_recover(call: HostCall, place: HostPlace | CopyPlace) -> tuple[Callable[..., Any], Callable[..., bool]]:
    """``run(queue, addresses, constant)``, which returns what ``launch`` does, and ``recover(error, addresses, queue,
    constant)`` for what it raised: another solver's plan. They hold no call: one that nobody holds is gone at once."""
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

    def run_packed(queue: Any, addresses: list[int], constant: Constant) -> Any:
        packed = constant.addresses.get(key)  # this reference keeps the packed weights, which another thread may drop
        if packed is None:
            if not addresses[W]:
                return False
            packed = pack(constant, queue, addresses[W])
        given = [*addresses]
        given[W] = place.operand(packed)
        if not prepared.layered:
            return launched(queue, given)
        with unpacked_weights(place.memory(queue, addresses[W], sizes[W]) if addresses[W] else None):
            return launched(queue, given)

    def recover(error: BaseException, addresses: list[int], queue: Any, constant: Constant | None) -> bool:
        try:
            if not addresses[W]:
                raise error

            def again(commands: Any, *operands: Any) -> Any:
                return dispatch.run(prepared, commands, operands, constant=constant, failed=error)

            place.enqueue(again, queue, addresses, sizes, (written,))
            return True
        except BaseException:
            queue.finish()  # after this no command uses the caller's host memory any longer
            raise

    return run_packed if call.packs else lambda queue, addresses, constant: launched(queue, addresses), recover


def _fast_path(call: HostCall, run: Callable[..., Any], recover: Callable[..., bool]) -> Callable[..., Any]:
    """Returns the function ``path(lead, other, out, queue, bias, constant, residual)``, the call's fast path; it does
    not reference the call."""
    arrays: HostArrays = call.arrays
    address, of_bias = arrays.input_address, arrays.bias_address
    output, allocate = arrays.output_address, arrays.allocate
    packs, launched, (lead_place, other_place, out_place) = call.packs, call.launches.run, call.places

    def fast_path(
        lead: Any, other: Any, out: Any, queue: Any, bias: Any = None, constant: Any = None, residual: Any = None
    ) -> Any:
        addresses = [0, 0, 0, 0, 0]
        if out is None:
            out, addresses[out_place] = allocate()
        else:
            addresses[out_place] = output(out)
        addresses[lead_place] = address(lead)
        addresses[other_place] = address(other)
        if bias is not None:
            addresses[3] = of_bias(bias)
        if residual is not None:
            addresses[4] = address(residual)
        try:
            if packs:
                return out if run(queue, addresses, constant) else None
            return out if launched(queue, addresses) else None
        except BaseException as error:
            return out if recover(error, addresses, queue, constant) else None

    return fast_path


def host_queue(device: Any, alone: bool = False) -> Callable[[], Any]:
    """A function that returns the calling thread's queue for host memory; with ``alone``, the queue whose commands the
    thread computes itself, where there is one."""
    own = threading.local()

    def ask() -> Any:
        try:
            return own.queue
        except AttributeError:
            own.queue = (alone and runtime.serial_queue(device)) or runtime.queue(device)
            return own.queue

    return ask
