"""A program on NumPy's arrays where they lie: nothing is copied on a CPU device that takes pointers of the host's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from ..calls.operands import address
from ..device import host
from ..device.commands import Late
from ..device.recording import Command, Slot
from ..tensor import Tensor

if TYPE_CHECKING:
    from .program import Program

__all__ = ["OnHost"]

_ALIGN = 16
"""Bytes of the largest vector that kernels of layers load as one value; NumPy's own arrays begin at such places."""
_byte, _SVM = ctypes.c_ubyte, cl.SVM


class OnHost:
    """``on_host(arrays)`` runs a program that reads these in place of its inputs and writes its results to new arrays.

    Waits. Safe from several threads. ``of`` makes one.
    """

    def __init__(
        self, program: Program, commands: Sequence[Command], inputs: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        self._program = program
        self._dtypes = [tensor.dtype for tensor in inputs]
        self._results = [(tensor.shape, tensor.dtype, tensor.nbytes) for tensor in results]
        roots = [tensor.base_data.root for tensor in (*inputs, *results)]
        self._pointers: list[tuple[int, int, Late]] = []
        """The place of an array among inputs and results, the byte of it at which a command begins, its address."""

        def memory(slot: Slot) -> Any:
            if slot.root not in roots:
                return program.memory(slot)
            pointer = Late(_unasked)
            self._pointers.append((roots.index(slot.root), slot.offset, pointer))
            return pointer

        self._runs = program.bound(memory, set(roots))

    @classmethod
    def of(
        cls, program: Program, commands: Sequence[Command], inputs: Sequence[Tensor], results: Sequence[Tensor]
    ) -> OnHost | None:
        """None where the device takes no pointers, where a result is no memory of its own, and where something else
        than a kernel reads an input or writes a result."""
        roots = [tensor.base_data.root for tensor in (*inputs, *results) if isinstance(tensor.base_data, Slot)]
        given = set(roots)
        if not host.has_system_svm(program.queue.device) or len(given) != len(inputs) + len(results):
            return None
        if not all(each.contiguous and each.nbytes == each.base_data.root.size for each in (*inputs, *results)):
            return None
        touching = (command for command in commands if any(slot.root in given for slot in command.slots))
        if any(command.kernel is None or command.late for command in touching):
            return None
        return cls(program, commands, inputs, results)

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results for ``arrays`` of the inputs' shapes."""
        queue, addresses, held = self._program.queue, [], []
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            start = address(array) if array.dtype == dtype else 0
            if not start or start % _ALIGN:
                held.append(np.array(array, dtype, order="C"))
                start = address(held[-1])
            addresses.append(start)
        made = [host.empty(queue.device, *each) for each in self._results]
        addresses += map(address, made)
        try:
            with self._program.lock:
                for place, offset, pointer in self._pointers:
                    pointer.value = _SVM(_byte.from_address(addresses[place] + offset))
                event = self._program.enqueue(self._runs)
            event.wait()
        except BaseException:
            queue.finish()  # no command may use the arrays any longer
            raise
        return made


def _unasked() -> None:
    """What a pointer is, a call says."""
