"""A program on NumPy's arrays where they lie: nothing is copied on a CPU device that takes pointers of the host's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ..calls.arrays.operands import address, host_memory
from ..device.commands import host_memory as host
from ..device.commands.interface import Late
from ..device.commands.recording import Command, Slot
from ..tensor import Tensor
from .graph import map_operands, operands

if TYPE_CHECKING:
    from ..device.replay.program import Program

_ALIGN = 16
"""Bytes of the largest vector that kernels of layers load as one value; NumPy's own arrays begin at such places."""
_byte, _ndarray, _SVM = ctypes.c_ubyte, np.ndarray, cl.SVM


class HostProgram:
    """Runs a program that reads arrays in place of its inputs and writes its results to new arrays.

    Waits. Safe from several threads. ``of`` makes one.
    """

    def __init__(self, program: Program, commands: Sequence[Command], inputs: Sequence[Tensor], output: Any) -> None:
        results = list(operands(output))
        self._program, self._output = program, output
        self._given = [(tensor.shape, tensor.dtype) for tensor in inputs]
        self._results = [(tensor.shape, tensor.dtype, tensor.nbytes) for tensor in results]
        roots = [tensor.base_data.root for tensor in (*inputs, *results)]
        found: list[tuple[int, int, Late]] = []

        def memory(slot: Slot) -> Any:
            if slot.root not in roots:
                return program.memory(slot)
            found.append((roots.index(slot.root), slot.offset, Late(_unasked)))
            return found[-1][2]

        runs = program.bound(memory, set(roots))
        # The first commands are given before there is memory for results: Python's work then goes beside theirs.
        written = set(roots[len(inputs) :])
        places = (i for i, command in enumerate(commands) if any(slot.root in written for slot in command.slots))
        early = next(places, 0) if program.schedule.queues == 1 else 0
        self._early, self._late = runs[:early], runs[early:]
        self._reads = [each for each in found if each[0] < len(inputs)]
        """The place of an array among inputs and results, the byte of it at which a command begins, its address."""
        self._writes = [(place - len(inputs), *rest) for place, *rest in found if place >= len(inputs)]

    @classmethod
    def of(
        cls, program: Program, commands: Sequence[Command], inputs: Sequence[Tensor], output: Any
    ) -> HostProgram | None:
        """None where the device takes no pointers, where a result is no memory of its own, and where something else
        than a kernel reads an input or writes a result."""
        tensors = [*inputs, *operands(output)]
        given = {tensor.base_data.root for tensor in tensors if isinstance(tensor.base_data, Slot)}
        if not host.has_system_svm(program.queue.device) or len(given) != len(tensors):
            return None
        if not all(each.contiguous and each.nbytes == each.base_data.root.size for each in tensors):
            return None
        touching = (command for command in commands if any(slot.root in given for slot in command.slots))
        if any(command.kernel is None or command.late for command in touching):
            return None
        return cls(program, commands, inputs, output)

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
        memory = []
        for array, (shape, dtype) in zip(arrays, self._given, strict=True):
            if type(array) is not _ndarray or array.shape != shape or array.dtype != dtype:
                return None
            start = address(array)
            memory.append(host_memory(array if start and start % _ALIGN == 0 else array.copy()))
        return self._run(memory, change, [None] * len(self._results) if out is None else out)

    def takes(self, place: int, array: np.ndarray) -> bool:
        """Whether kernels may write the result at ``place`` to an array as it lies."""
        shape, dtype, _ = self._results[place]
        plain = array.flags.c_contiguous and array.flags.writeable and bool(address(array))
        return bool(array.shape == shape and array.dtype == dtype and plain and address(array) % _ALIGN == 0)

    def _run(
        self, memory: list[Any], change: Callable[[np.ndarray], Any] | None, out: Sequence[np.ndarray | None]
    ) -> Any:
        program = self._program
        try:
            with program.lock:
                _point(self._reads, memory)
                if self._early:
                    program.enqueue(self._early)
                made = [
                    host.empty(program.queue.device, *each) if given is None else given
                    for each, given in zip(self._results, out, strict=True)
                ]
                written = [host_memory(array) for array in made]
                _point(self._writes, written)
                event = program.enqueue(self._late)
                for _, _, pointer in (*self._reads, *self._writes):
                    pointer.value = None
            event.wait()
        except BaseException:
            program.queue.finish()  # no command may use the arrays any longer
            raise
        answers = iter(made if change is None else map(change, made))
        if type(self._output) is Tensor:
            return next(answers)
        return map_operands(lambda _: next(answers), self._output)


def _point(places: Sequence[tuple[int, int, Late]], memory: Sequence[Any]) -> None:
    """Set what commands that are enqueued from now on take."""
    for place, offset, pointer in places:
        whole = memory[place]
        pointer.value = _SVM(_byte.from_address(whole.svm_ptr + offset)) if offset else whole


def _unasked() -> None:
    """What a pointer is, a call says."""
