"""Runs a net on NumPy's arrays without copies, on a CPU device that accepts host pointers.

The device's own threads run its launches, or PyTorch's threads do. Those spin after each of PyTorch's operators, on
the cores that other threads would need: so a net that is called between PyTorch's operators runs in PyTorch's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ..calls.arrays.operands import address
from ..device import runtime
from ..device.commands import host_memory
from ..device.commands.recording import Command, Recording, Slot
from ..device.executable import Executable
from ..device.places import intraop
from ..device.places.host import HostLaunches, HostPlace
from ..device.programs.strided_copy import copy_bytes
from ..elementwise.tensor import Tensor
from .graph import map_operands, operands

if TYPE_CHECKING:
    from .lower import Lowered

OWN, PYTORCH = THREADS = "own", "pytorch"
"""The threads that run a net on a CPU: those of the OpenCL runtime, or PyTorch's intra-op threads."""
ALIGNMENT_BYTES = 16
"""The alignment in bytes that layers' kernels require of arrays, that of their largest vector loads; NumPy's arrays
have it."""
_ndarray = np.ndarray


class HostNet:
    """Runs a net's executable on arrays in place of its inputs, and writes its results to new arrays. Waits.

    Safe from several threads, each with scratch memory of its own. ``of`` makes one.
    """

    def __init__(self, launches: HostLaunches, queue: cl.CommandQueue, inputs: Sequence[Tensor], output: Any) -> None:
        self._launches, self._queue, self._output = launches, queue, output
        self._given = [(tensor.shape, tensor.dtype) for tensor in inputs]
        self._results = [(tensor.shape, tensor.dtype, tensor.nbytes) for tensor in operands(output)]

    @classmethod
    def of(cls, lowered: Lowered, threads: str = OWN) -> tuple[HostNet | None, str | None]:
        """The net in ``threads``, of ``THREADS``, and why it runs in the device's own; these run what PyTorch's cannot.

        There is none where the device takes no pointers, where a result is no memory of its own, and where a command is
        no kernel with the same numbers in every call.
        """
        queue, results = lowered.recording.queue, list(operands(lowered.output))
        tensors = [*lowered.inputs, *results]
        slots = [tensor.base_data for tensor in tensors]
        roots = {slot.root for slot in slots if isinstance(slot, Slot)}
        are_whole_buffers = all(
            each.contiguous and each.nbytes == each.base_data.root.size for each in tensors if roots
        )
        if not host_memory.has_system_svm(queue.device) or len(roots) != len(tensors) or not are_whole_buffers:
            return None, "the device takes no pointers, or a result is an input"
        commands = [_by_kernel(command, queue) for command in lowered.recording.commands]
        for command in commands:
            if command.kernel is None:
                return None, f"the command {command.what} is no kernel"
        own_threads: str | None = "the net was built so"
        if threads == PYTORCH:
            own_threads = intraop.refusal(queue.device, [command.kernel for command in commands if command.kernel])
        outputs = range(len(lowered.inputs), len(tensors))
        launches = [(command.kernel, command.arguments) for command in commands if command.kernel]
        place = HostPlace(queue.device, in_pytorch=own_threads is None, keeps_scratch=True)
        return cls(Executable(launches, slots, outputs).bind(place), queue, lowered.inputs, lowered.output), own_threads

    def __call__(self, arrays: Sequence[Any], change: Callable[[np.ndarray], Any] | None = None) -> Any:
        """The results for NumPy's arrays of the inputs' shapes and dtypes, new arrays, or what ``change`` makes of
        each; None, before anything is done, for other inputs."""
        if len(arrays) != len(self._given):
            return None
        operands = []
        for array, (shape, dtype) in zip(arrays, self._given, strict=True):
            if type(array) is not _ndarray or array.shape != shape or array.dtype != dtype:
                return None
            start = address(array)
            operands.append(array if start and start % ALIGNMENT_BYTES == 0 else array.copy())
        results = iter(self._run(operands))
        results = results if change is None else map(change, results)
        return next(results) if type(self._output) is Tensor else map_operands(lambda _: next(results), self._output)

    def _run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        runtime.refuse_forked()
        outputs = [host_memory.empty(self._queue.device, *form) for form in self._results]
        try:
            self._launches.run(self._queue, [*map(address, arrays), *map(address, outputs)])
        except BaseException:
            self._queue.finish()  # After an error no command may use the arrays any longer.
            raise
        return outputs


def _by_kernel(command: Command, queue: cl.CommandQueue) -> Command:
    """A copy as the kernel that copies the same; other commands unchanged."""
    if command.kernel is not None or not command.arguments:
        return command
    target, source, size, *offsets = command.arguments
    for index, memory in enumerate((source, target)):
        offsets[index] += memory.offset if type(memory) is Slot else 0
    recording = Recording(queue)
    roots = (memory.root if type(memory) is Slot else memory for memory in (target, source))
    copy_bytes(recording, *roots, size, *offsets)
    return recording.commands[0]
