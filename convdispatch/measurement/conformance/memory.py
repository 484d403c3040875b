"""The memory of one run: operands, output and workspace, each between guard zones, and checks of them after the run.

The guard zones of inputs hold NaN, so that a result which uses them is NaN. Output and workspace, with their guard
zones, are filled before a run with NaN in one run and with a number in another. That shows elements that are not
written or are read before they are written; the number also shows additions to a guard zone, which leave NaN unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.dtypes import numpy_dtype
from ...api.problem import EXTRAS, ConvProblem
from ...selection.prepared import enqueue_plan
from ...selection.visible_problem import operand_bytes
from .. import reference

NAN = 0x7FC1
"""A 16-bit pattern that, repeated, is a NaN in every dtype, with bits that no arithmetic produces."""
FINITE = 0x4640
"""A 16-bit pattern that, repeated, is a number of moderate size in every dtype."""
ZERO = 0x0000
GUARD = 4096
"""Bytes before and after a guarded buffer; a multiple of every device's sub-buffer alignment."""


class Fault(Exception):
    """A check failed; ``check`` is its name in checks.CHECKS."""

    def __init__(self, check: str, message: str) -> None:
        self.check, self.message = check, message
        super().__init__(f"{check}: {message}")


def _pattern(word: int, size: int) -> np.ndarray:
    return np.full(-(-size // 2), word, "<u2").view(np.uint8)[:size]


def holds(values: np.ndarray, word: int) -> np.ndarray:
    """Whether each element holds the bits of a fill, as booleans of the same shape."""
    same = np.ascontiguousarray(values).reshape(-1).view(np.uint8) == _pattern(word, values.nbytes)
    return same.reshape(values.size, -1).all(axis=1).reshape(values.shape)


class Guarded:
    """``size`` bytes of device memory between guard zones; ``memory`` is the buffer that a plan gets."""

    def __init__(
        self, context: cl.Context, size: int, content: np.ndarray | None = None, fill: int = NAN, shift: int = 0
    ) -> None:
        self.size, self.start = size, GUARD + shift
        self._before = _pattern(fill, self.start + -(-max(size, 1) // GUARD) * GUARD + GUARD)
        if content is not None:
            self._before[self.start : self.start + size] = content.reshape(-1).view(np.uint8)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self._whole = cl.Buffer(context, flags, hostbuf=self._before)
        self.memory = self._whole.get_sub_region(self.start, max(size, 1))

    def read(self, queue: cl.CommandQueue, what: str, check: str = "guards") -> np.ndarray:
        """The bytes between the guard zones. Raises Fault if a guard byte changed."""
        now = np.empty_like(self._before)
        cl.enqueue_copy(queue, now, self._whole)
        end = self.start + self.size
        if any(now[zone].tobytes() != self._before[zone].tobytes() for zone in (slice(self.start), slice(end, None))):
            changed = np.flatnonzero(now != self._before) - self.start
            outside = changed[(changed < 0) | (changed >= self.size)]
            first = int(outside[0])
            position = f"{-first} bytes before its start" if first < 0 else f"at byte {first}"
            count = outside.size
            raise Fault(check, f"{count} bytes written outside the {what} of {self.size} bytes, first {position}")
        return now[self.start : end]

    def unchanged(self, queue: cl.CommandQueue, what: str) -> None:
        """Raise Fault if a byte between the guard zones changed."""
        now = self.read(queue, what, "inputs")
        then = self._before[self.start : self.start + self.size]
        if not np.array_equal(now, then):
            changed = np.flatnonzero(now != then)
            first = int(changed[0])
            raise Fault("inputs", f"{changed.size} bytes of its input {what} were changed, first byte {first}")


class Tray:
    """All memory that one run of a plan reads and writes."""

    _late = False

    def __init__(
        self,
        context: cl.Context,
        problem: ConvProblem,
        plan: Any,
        operands: Mapping[str, np.ndarray],
        *,
        fill: int = NAN,
        shift: int = 0,
    ) -> None:
        self.context, self.problem, self.plan, self._operands = context, problem, plan, operands
        self.inputs = {
            name: Guarded(context, array.nbytes, None if self._late else array, shift=shift)
            for name, array in operands.items()
            if name != "initial"
        }
        bytes_out = int(np.prod(problem.out_shape)) * problem.out_itemsize
        self._fill = fill
        self.output = Guarded(context, bytes_out, operands.get("initial"), fill, shift)
        self.sums = Guarded(context, operand_bytes(problem, "sums"), fill=fill, shift=shift) if problem.sums else None
        size = plan.workspace_size
        self.workspace = Guarded(context, size, fill=fill, shift=shift) if size else None
        self._packed: Any = None

    def pack(self, queue: cl.CommandQueue) -> None:
        """Pack constant weights, if the plan has a packed form."""
        size = getattr(self.plan, "packed_size", 0) if self.problem.constant_weights else 0
        if not size:
            return
        packed = Guarded(self.context, size, fill=self._fill)
        self.plan.pack(queue, self.inputs["w"].memory, packed.memory).wait()
        content = packed.read(queue, "packed weights")
        self.inputs["w"].unchanged(queue, "w")
        self._packed = Guarded(self.context, size, content.copy())

    def enqueue(self, queue: cl.CommandQueue, wait_for: Sequence[cl.Event] | None = None) -> cl.Event:
        """Enqueue the plan."""
        memory = {name: guarded.memory for name, guarded in self.inputs.items()}
        memory[self.problem.written] = self.output.memory
        if self.sums is not None:
            memory["sums"] = self.sums.memory
        if self._packed is not None:
            memory["w"] = self._packed.memory
        scratch = self.workspace.memory if self.workspace else None
        operands = [memory.get(name) for name in ("x", "w", "y", *EXTRAS)]
        return enqueue_plan(self.problem, self.plan, queue, operands, scratch, wait_for)

    def result(self, queue: cl.CommandQueue) -> np.ndarray:
        """The output's values. Raises Fault for a guard or an input that changed, and for wrong sums of channels."""
        content = self.output.read(queue, "output")
        if self.workspace is not None:
            self.workspace.read(queue, "workspace", "workspace")
        for name, guarded in self.inputs.items():
            guarded.unchanged(queue, name)
        if self._packed is not None:
            self._packed.unchanged(queue, "packed weights")
        values = content.view(numpy_dtype(self.problem.written_dtype)).reshape(self.problem.out_shape)
        if self.sums is not None:
            shape, dtype = self.problem.form("sums")
            sums = self.sums.read(queue, "sums").view(numpy_dtype(dtype)).reshape(shape)
            fault = (
                reference.sums_fault(self.problem, values, sums, self._operands) if np.isfinite(values).all() else None
            )
            if fault:
                raise Fault("sums", fault)
        return values


class LateTray(Tray):
    """A tray whose inputs are NaN until ``deliver``."""

    _late = True

    def deliver(self, queue: cl.CommandQueue, after: Sequence[cl.Event]) -> list[cl.Event]:
        """Enqueue copies of the operands into the inputs that were left out; they wait for ``after``."""
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        events = []
        for name, guarded in self.inputs.items():
            array = np.ascontiguousarray(self._operands[name])
            staged = cl.Buffer(self.context, flags, hostbuf=array)
            events.append(cl.enqueue_copy(queue, guarded.memory, staged, byte_count=array.nbytes, wait_for=list(after)))
            guarded._before[guarded.start : guarded.start + guarded.size] = array.reshape(-1).view(np.uint8)
        queue.flush()
        return events
