"""Calls on the memory of a device with streams: programs that OpenCL compiled, launched on the caller's stream by the
device's own driver (CUDA), without copy or wait.

Arrays of every library on such a device, PyTorch's operators and XLA's buffers are computed so. If the driver cannot
launch a solver's program, the next solver computes a call on a library's arrays, with one warning that says why, and a
framework's call is left to the framework's own kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..api.errors import ConvDispatchError
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
        has_fallback: bool = True,
        count: Callable[[str], Any] | None = None,
    ) -> None:
        """Plan, and load every program. ``arrays`` is a StreamArrays; without one ``launch`` is called with addresses
        alone. ``names`` are those of x, w, y for errors. ``has_fallback``: the caller has a kernel of its own for a
        problem whose programs the driver cannot launch, for which Fallback is raised; else the next solver is taken.

        Raises Fallback, and as ``dispatch.prepare``.
        """
        super().__init__(problem, stream.device, count)
        self.arrays, self.place, self._names = arrays, stream.place, names
        self._has_fallback = has_fallback and not problem.quantized
        self._read = [(place, self.sizes[place]) for place in self.places[:2]]
        if self.empty:
            return
        self._plan(stream)

    def _plan(self, stream: Stream) -> None:
        """Make the first candidate's plan whose programs can all be loaded for the stream. Raises as ``__init__``."""
        with stream.current(), for_streams():
            while self.launches is None:
                self.prepare(stream.context)
                self.packed_key = next(_numbers)
                try:
                    self.launches = loaded_launches(self.prepared, stream)
                    return
                except Unlaunchable as error:
                    self._refuse(error)

    def launch(self, stream: Stream, addresses: Sequence[int], constant: Constant | None = None) -> None:
        """Launch on ``addresses`` of x, w, y, bias and residual, 0 for missing operands.

        The caller keeps their memory alive until this returns. Raises as ``dispatch.run``, and Unlaunchable if weights
        cannot be packed, before anything else has run.
        """
        stream.place.recent.append(self.solver)
        operand_addresses = [*addresses]
        if constant is not None and self.packs and self.launches is not None:
            operand_addresses[W] = self.packed(constant, stream, operand_addresses[W])
        if self.launches is None or not self.launches.run(stream, operand_addresses):
            operands: list[Any] = [
                StreamMemory(address, size) if address else None
                for address, size in zip(addresses, self.sizes, strict=True)
            ]
            dispatch.run(self.prepared, stream, operands, None, constant)  # type: ignore[arg-type]
        stream.check()

    def packed(self, constant: Constant, stream: Stream, address: int) -> int:
        """The address of the packed form, cached by ``constant``, of weights at an address. Raises Unlaunchable."""
        address_of_packed = constant.addresses.get(self.packed_key)
        if address_of_packed is None:
            weights: Any = StreamMemory(address, self.sizes[W])
            packed_memory: Any = constant.packed(self.prepared, stream, weights)[0]  # type: ignore[arg-type]
            address_of_packed = constant.addresses[self.packed_key] = packed_memory.address
        return int(address_of_packed)

    def pack(self, w: Any, constant: Constant) -> None:
        """Pack constant weights before a call needs the packed form. Raises as a call does."""
        if self.packs and self.packed_key not in constant.addresses:
            stream = self.arrays.stream(w)
            with stream.current():
                self.packed(constant, stream, self.arrays.memory(w, stream, self.sizes[W]).address)

    def replay(self, library: Any, given: Sequence[Any], options: tuple[Any, ...], shape: Any) -> Any:
        """See Call; PyTorch tensors use the native call path, if it is built and can make such a call."""
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
            return launcher.replay(program, options, shape, policy, policy.frozen, kind, like)
        except RuntimeError:  # PyTorch's objects do not have the layout that the native call path expects
            return None

    def fast_path(
        self, input1: Any, input2: Any, out: Any, queue: Any, bias: Any, constant: Constant | None, residual: Any
    ) -> Any:
        """See Call."""
        arrays, written, is_new = self.arrays, self.written, out is None
        if self.launches is None or arrays.copies or not (is_new or arrays.is_result(out)):
            return None
        if constant is not None and isinstance(input1 if self.first == W else input2, np.ndarray):
            return None
        stream = arrays.stream(input1)
        if not arrays.is_current(stream):
            return None
        if is_new:
            out = arrays.allocate(input1, stream)
        operands: list[Any] = [out, out, out]
        operands[self.first], operands[self.second] = input1, input2
        addresses = arrays.addresses(operands, bias, residual, stream)
        if addresses is None:
            return None
        if constant is not None and self.packs:
            # Address 1 marks weights that are not packed yet: it fails the alignment check.
            addresses[W] = constant.addresses.get(self.packed_key, 1)
        first, second, third, fourth, fifth = addresses
        if (first | second | third | fourth | fifth) % ALIGNMENT:
            return None
        if not is_new:
            self._refuse_overlap(addresses, bias)
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
        arrays, written, caller_operands = self.arrays, self.written, tuple(operands)
        input1, is_new = operands[self.first], operands[self.written] is None
        stream = arrays.stream(input1)
        if is_new:
            operands[written] = arrays.allocate(input1, stream)
        else:
            arrays.check_result(operands[written], self.check_out)
        out, size = operands[written], self.sizes[written]
        with stream.current():
            if self.empty:
                if self.zeroes:
                    stream.fill(arrays.memory(out, stream, size, True), np.uint8(0), 0, size)
            else:
                while True:
                    try:
                        self._run(operands, bias, constant, residual, stream)
                        break
                    except Unlaunchable as error:  # packing of constant weights failed, before any other kernel ran
                        self._refuse(error)
                        self.launches = None
                        self._plan(stream)
            if is_new:
                out = arrays.finished(out, stream)
            arrays.keep(stream, (*caller_operands, bias, residual, out))
        return out

    def _run(self, operands: list[Any], bias: Any, constant: Constant | None, residual: Any, stream: Stream) -> None:
        arrays, written = self.arrays, self.written
        regions: list[Any] = [
            constant.on_device(stream)  # type: ignore[arg-type]
            if place == W and constant is not None and isinstance(array, np.ndarray)
            else arrays.memory(array, stream, self.sizes[place], place == written)
            for place, array in enumerate(operands)
        ]
        size, out = self.sizes[written], regions[written]
        if type(bias) is Constant:  # the bias of a quantized convolution is its table, a Constant
            bias = bias.on_device(stream)  # type: ignore[arg-type]
        elif bias is not None:
            bias = arrays.memory(bias, stream, self.sizes[BIAS], of_bias=True)
        self._refuse_overlap([memory.address for memory in regions] + [0 if bias is None else bias.address], bias)
        if residual is not None:
            residual = arrays.memory(residual, stream, size)
            in_place = residual.address == out.address and self.prepared.fuses_residual
            if not in_place and self._overlapped(out.address, residual.address, size):
                original, residual = residual, stream.allocate(size)
                stream.copy(residual, original, size)
        if out.address % ALIGNMENT:
            regions[written] = stream.allocate(size)
            if self.problem.accumulate:
                stream.copy(regions[written], out, size)
        self.launch(stream, [0 if m is None else m.address for m in (*regions, bias, residual)], constant)
        if out.address % ALIGNMENT:
            stream.copy(out, regions[written], size)
            stream.check()

    def _refuse_overlap(self, addresses: Sequence[int], bias: Any) -> None:
        for place, size in self._read:
            if self._overlapped(addresses[self.written], addresses[place], size):
                refuse_shared(self._names[place])
        if bias is not None and self._overlapped(addresses[self.written], addresses[BIAS], self.sizes[BIAS]):
            refuse_shared("bias")

    def _overlapped(self, out: int, address: int, size: int) -> bool:
        """Whether the result at ``out`` shares bytes with ``size`` bytes at ``address``."""
        return address < out + self.sizes[self.written] and out < address + size

    def _refuse(self, error: Unlaunchable) -> None:
        """Set the solver aside for the problem and device, so that the next one is taken. Raises Fallback for a caller
        that has a kernel of its own, ConvDispatchError where layers would refuse every solver."""
        reason = f"{self.solver} cannot run on a {self.place.kind.upper()} stream: {error}"
        if self._has_fallback:
            raise Fallback(reason) from None
        if self.prepared.layered:
            raise ConvDispatchError(f"{reason}; call with NumPy's arrays or a pyopencl.array.Array") from error
        reason = reason.removeprefix(f"{self.solver} ")
        dispatch.quarantine(
            self.problem, runtime.device_info(self.device), self.solver, reason, current_policy(), error
        )


def loaded_launches(prepared: Prepared, stream: Stream) -> Any:
    """Load every program of a plan for a stream's device, before any of its kernels runs; returns its launches, or
    None if it has other commands.

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
