"""A program on NumPy's arrays where they lie: nothing is copied on a CPU device that takes pointers of the host's.

The device's own threads run its commands, or PyTorch's threads do. Those spin after each of PyTorch's operators, on
the cores that other threads would need: so a net that is called between PyTorch's operators runs in PyTorch's threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ..calls.arrays.operands import address, host_memory
from ..device import runtime
from ..device.commands import host_memory as host
from ..device.commands.interface import Late
from ..device.commands.recording import Command, Recording, Slot, with_numbers
from ..device.places import intraop
from ..device.programs.strided_copy import copy_bytes
from ..tensor import Tensor
from .graph import map_operands, operands

if TYPE_CHECKING:
    from ..device.replay.program import Program

OWN, PYTORCH = THREADS = "own", "pytorch"
"""Whose threads run a net on a CPU: those of the device's runtime, or PyTorch's intra-op threads."""
_ALIGN = 16
"""Bytes of the largest vector that kernels of layers load as one value; NumPy's own arrays begin at such places."""
_byte, _ndarray, _SVM = ctypes.c_ubyte, np.ndarray, cl.SVM


class HostProgram:
    """Runs a program that reads arrays in place of its inputs and writes its results to new arrays.

    Waits. Safe from several threads. ``of`` makes one.
    """

    def __init__(
        self,
        program: Program,
        commands: Sequence[Command],
        inputs: Sequence[Tensor],
        output: Any,
        own_threads: str | None,
    ) -> None:
        results = list(operands(output))
        self._program, self._output = program, output
        self._given = [(tensor.shape, tensor.dtype) for tensor in inputs]
        self._results = [(tensor.shape, tensor.dtype, tensor.nbytes) for tensor in results]
        roots = [tensor.base_data.root for tensor in (*inputs, *results)]
        self.own_threads = own_threads
        """Why the device's own threads run it; None where PyTorch's do."""
        self._runner = (_OnQueue if own_threads else _InPyTorch)(program, commands, roots, len(inputs))

    @classmethod
    def of(
        cls, program: Program, commands: Sequence[Command], inputs: Sequence[Tensor], output: Any, threads: str = OWN
    ) -> HostProgram | None:
        """``threads`` run it, of ``THREADS``; the device's own where PyTorch's cannot.

        None where the device takes no pointers, where a result is no memory of its own, and where something else
        than a kernel reads an input or writes a result."""
        tensors = [*inputs, *operands(output)]
        given = {tensor.base_data.root for tensor in tensors if isinstance(tensor.base_data, Slot)}
        if not host.has_system_svm(program.queue.device) or len(given) != len(tensors):
            return None
        if not all(each.contiguous and each.nbytes == each.base_data.root.size for each in tensors):
            return None
        own_threads: str | None = "the net was built so"
        if threads == PYTORCH:
            kernels = [_by_kernel(command, program.queue) for command in commands]
            own_threads = _refusal(program.queue.device, kernels)
            commands = commands if own_threads else kernels
        touching = (command for command in commands if any(slot.root in given for slot in command.slots))
        if any(command.kernel is None or command.late for command in touching):
            return None
        return cls(program, commands, inputs, output, own_threads)

    def __call__(
        self,
        arrays: Sequence[Any],
        change: Callable[[np.ndarray], Any] | None = None,
        out: Sequence[np.ndarray | None] | None = None,
    ) -> Any:
        """The results for NumPy's arrays of the inputs' shapes and dtypes, or what ``change`` makes of each; None,
        before anything is done, for other inputs. A result goes to its array of ``out`` where there is one: of its
        shape and dtype, without gaps, and no part of another operand.

        Both cores stand still until the first command is given, and computing has driven Python out of the caches.
        """
        if len(arrays) != len(self._given):
            return None
        taken = []
        for array, (shape, dtype) in zip(arrays, self._given, strict=True):
            if type(array) is not _ndarray or array.shape != shape or array.dtype != dtype:
                return None
            start = address(array)
            taken.append(array if start and start % _ALIGN == 0 else array.copy())
        return self._run(taken, change, [None] * len(self._results) if out is None else out)

    def takes(self, place: int, array: np.ndarray) -> bool:
        """Whether kernels may write the result at ``place`` to an array as it lies."""
        shape, dtype, _ = self._results[place]
        plain = array.flags.c_contiguous and array.flags.writeable and bool(address(array))
        return bool(array.shape == shape and array.dtype == dtype and plain and address(array) % _ALIGN == 0)

    def _run(
        self, arrays: list[np.ndarray], change: Callable[[np.ndarray], Any] | None, out: Sequence[np.ndarray | None]
    ) -> Any:
        runtime.refuse_forked()

        def results() -> list[np.ndarray]:
            return [
                host.empty(self._program.queue.device, *each) if given is None else given
                for each, given in zip(self._results, out, strict=True)
            ]

        made = self._runner(arrays, results)
        answers = iter(made if change is None else map(change, made))
        if type(self._output) is Tensor:
            return next(answers)
        return map_operands(lambda _: next(answers), self._output)


class _OnQueue:
    """Runs a program in its queue's order, on memory of the roots: those of ``inputs`` arrays, then of results."""

    def __init__(self, program: Program, commands: Sequence[Command], roots: Sequence[Slot], inputs: int) -> None:
        self._program = program
        found: list[tuple[int, int, Late]] = []

        def memory(slot: Slot) -> Any:
            if slot.root not in roots:
                return program.memory(slot)
            found.append((roots.index(slot.root), slot.offset, Late(_unasked)))
            return found[-1][2]

        runs = program.bound(memory, set(roots))
        # The first commands are given before there is memory for results: Python's work then goes beside theirs.
        written = set(roots[inputs:])
        places = (i for i, command in enumerate(commands) if any(slot.root in written for slot in command.slots))
        early = next(places, 0) if program.schedule.queues == 1 else 0
        self._early, self._late = runs[:early], runs[early:]
        self._reads = [each for each in found if each[0] < inputs]
        """The place of an array among inputs and results, the byte of it at which a command begins, its address."""
        self._writes = [(place - inputs, *rest) for place, *rest in found if place >= inputs]

    def __call__(self, arrays: Sequence[np.ndarray], results: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        program = self._program
        try:
            with program.lock:
                _point(self._reads, [*map(host_memory, arrays)])
                if self._early:
                    program.enqueue(self._early)
                made = results()
                written = [*map(host_memory, made)]
                _point(self._writes, written)
                event = program.enqueue(self._late)
                for _, _, pointer in (*self._reads, *self._writes):
                    pointer.value = None
            event.wait()
        except BaseException:
            program.queue.finish()  # no command may use the arrays any longer
            raise
        return made


class _InPyTorch:
    """The same in PyTorch's threads, by one native call: commands are kernels that can be launched in parts."""

    def __init__(self, program: Program, commands: Sequence[Command], roots: Sequence[Slot], inputs: int) -> None:
        self._program, launches = program, []
        for command in commands:
            own, places = with_numbers(command.kernel, command.arguments), []
            for at, slot in enumerate(command.arguments):
                if type(slot) is not Slot:
                    continue
                if slot.root in roots:
                    places.append((at, roots.index(slot.root), slot.offset))
                else:
                    own.set_arg(at, program.memory(slot))
            launches.append((command.kernel, own, places))
        self._launches = intraop.IntraOpLaunches(program.queue.device, launches)
        self._held = commands  # kernels do not keep their arguments' memory alive

    def __call__(self, arrays: Sequence[np.ndarray], results: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        made, program = results(), self._program
        addresses = [*map(address, arrays), *map(address, made)]
        with program.lock:
            program.queue.finish()  # what was enqueued before uses the same memory
            self._launches.run(addresses)
        return made


def _by_kernel(command: Command, queue: cl.CommandQueue) -> Command:
    """A copy as the kernel that copies the same; other commands as they are."""
    if command.kernel is not None or not command.arguments:
        return command
    target, source, size, *offsets = command.arguments
    for at, memory in enumerate((source, target)):
        offsets[at] += memory.offset if type(memory) is Slot else 0
    recording = Recording(queue)
    roots = (memory.root if type(memory) is Slot else memory for memory in (target, source))
    copy_bytes(recording, *roots, size, *offsets)
    return recording.commands[0]


def _refusal(device: cl.Device, commands: Sequence[Command]) -> str | None:
    """Why PyTorch's threads cannot run the commands."""
    for command in commands:
        if command.kernel is None or command.late:
            return f"the command {command.what} is no kernel with the same numbers in every call"
    return intraop.refusal(device, [command.kernel for command in commands if command.kernel is not None])


def _point(places: Sequence[tuple[int, int, Late]], memory: Sequence[Any]) -> None:
    """Set what commands that are enqueued from now on take."""
    for place, offset, pointer in places:
        whole = memory[place]
        pointer.value = _SVM(_byte.from_address(whole.svm_ptr + offset)) if offset else whole


def _unasked() -> None:
    """What a pointer is, a call says."""
