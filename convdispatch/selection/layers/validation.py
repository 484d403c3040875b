"""Checks each plan as it runs: buffer sizes, every output written, nothing written beyond output and workspace; and
the first time that a solver computes a problem, a sample of its result against float64.

The plan gets buffers of this layer's own between guard zones, the output filled with NaN; afterwards the guard zones
are compared and the output is copied to the caller's memory. If a plan fails, its solver is set aside, and the next one
computes. The layer is slow and waits for each call: it is meant for finding faults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from convdispatch.api import PluginError, hookimpl, sampled_fault
from convdispatch.api.dtypes import numpy_dtype

GUARD = 4096
"""Bytes before and after a guarded buffer; a multiple of every device's sub-buffer alignment."""
PATTERN = np.uint32(0x7FC0DEAD)
"""A NaN in float32 and in the upper half of float64; its halves are NaN in float16 and bfloat16."""


class ValidationFailed(PluginError):
    """A plan broke its contract; the message names plan, problem and byte."""


@hookimpl(tryfirst=True)
def convdispatch_enqueue(
    queue: Any,
    problem: Any,
    solver: Any,
    plan: Any,
    x: Any,
    w: Any,
    y: Any,
    workspace: Any,
    wait_for: Any,
    bias: Any,
    residual: Any,
    weights: Any,
) -> Any:
    """Run the plan between guard zones; raises ValidationFailed."""
    operands = {"x": x, "w": w, "y": y}
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "y": problem.y_shape}
    packed = getattr(plan, "packed_size", 0) if problem.constant_weights else 0
    for name, shape in shapes.items():
        itemsize = problem.out_itemsize if name == problem.written else problem.itemsize
        least_bytes = packed if name == "w" and packed else math.prod(shape) * itemsize
        if operands[name].size < least_bytes:
            raise ValidationFailed(
                f"{name} has {operands[name].size} bytes, {problem} needs {least_bytes} ({solver.name} was not run)"
            )
    if wait_for:
        cl.wait_for_events(list(wait_for))  # The operands' contents must be complete before they are copied below.
    size = math.prod(problem.out_shape) * problem.out_itemsize
    output = _Guarded(queue, size, "output")
    scratch = _Guarded(queue, plan.workspace_size, "workspace") if plan.workspace_size else None
    inputs = {name: _snapshot(queue, memory) for name, memory in operands.items() if name != problem.written}
    initial = None
    if problem.accumulate:
        cl.enqueue_copy(queue, output.memory, operands[problem.written], byte_count=size, wait_for=wait_for)
        initial = _snapshot(queue, output.memory)
    arguments = operands | {problem.written: output.memory}
    extras = {"bias": bias} if problem.bias else {}
    if problem.residual:
        extras["residual"] = residual
    plan.enqueue(
        queue, arguments["x"], arguments["w"], arguments["y"], scratch and scratch.memory, wait_for, **extras
    ).wait()
    plan_and_problem = f"{solver.name} on {problem}"
    output.check(queue, plan_and_problem)
    if scratch is not None:
        scratch.check(queue, plan_and_problem)
    # A NaN pattern marks unwritten elements; one-byte dtypes have none, as each value of a byte is a valid number.
    if not problem.accumulate and problem.out_itemsize > 1:
        _check_written(queue, output.memory, size, plan_and_problem, problem.out_itemsize)
    for name, snapshot in inputs.items():
        if not np.array_equal(snapshot, _snapshot(queue, operands[name])):
            # The altered input is restored, because the caller and the next solver read it.
            cl.enqueue_copy(queue, operands[name], snapshot).wait()
            raise ValidationFailed(f"{plan_and_problem} changed its input {name}")
    # The reference needs the tables of a norm, which this layer does not get.
    if problem.norm is None and _is_first_run(problem, solver):
        arrays = inputs | {name: _snapshot(queue, memory) for name, memory in extras.items()}
        arrays |= {} if initial is None else {"initial": initial}
        if packed:
            arrays["w"] = None if weights is None else _snapshot(queue, weights)
        # The result cannot be compared with the reference where only the packed form of the weights is known.
        if arrays.get("w", arrays) is not None:
            _compare(problem, _snapshot(queue, output.memory), arrays, plan_and_problem)
    return cl.enqueue_copy(queue, operands[problem.written], output.memory, byte_count=size)


_sampled: dict[tuple[Any, Any], None] = {}
_MAX_SAMPLED = 4096


def _is_first_run(problem: Any, solver: Any) -> bool:
    """Whether this solver's result was not compared for the problem before, among the last _MAX_SAMPLED ones."""
    if (problem, solver) in _sampled:
        return False
    _sampled[problem, solver] = None
    while len(_sampled) > _MAX_SAMPLED:
        _sampled.pop(next(iter(_sampled)))
    return True


def _compare(problem: Any, output: np.ndarray, operands: dict[str, np.ndarray], where: str) -> None:
    """Raise ValidationFailed if a sample of the output differs from the float64 reference."""

    def seen(name: str, values: np.ndarray) -> np.ndarray:
        shape, dtype_name = problem.form(name)
        dtype = numpy_dtype(dtype_name)
        return values[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    arrays = {name: seen(name, values) for name, values in operands.items()}
    fault = sampled_fault(problem, seen(problem.written, output), **arrays)
    if fault:
        raise ValidationFailed(f"{where} computed wrong: {fault}")


class _Guarded:
    """Memory with a guard zone on each side, all of it filled with PATTERN."""

    def __init__(self, queue: Any, size: int, name: str) -> None:
        self.size, self.name = size, name
        padded = -(-max(size, 1) // 4) * 4
        self._whole = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, padded + 2 * GUARD)
        cl.enqueue_fill_buffer(queue, self._whole, PATTERN, 0, padded + 2 * GUARD)
        self.memory = self._whole.get_sub_region(GUARD, max(size, 1))

    def check(self, queue: Any, where: str) -> None:
        """Raise ValidationFailed if a guard byte changed."""
        content = _snapshot(queue, self._whole)
        expected = np.resize(np.frombuffer(PATTERN.tobytes(), np.uint8), content.size)
        changed = np.flatnonzero(content != expected)
        outside = changed[(changed < GUARD) | (changed >= GUARD + self.size)]
        if outside.size:
            raise ValidationFailed(
                f"{where} wrote outside its {self.name} of {self.size} bytes: at byte {int(outside[0]) - GUARD}"
            )


def _snapshot(queue: Any, memory: Any) -> np.ndarray:
    # Memory that is no OpenCL object belongs to the host and is copied directly.
    if not isinstance(memory, cl.MemoryObject):
        return memory.bytes(0, memory.size).copy()
    content = np.empty(memory.size, np.uint8)
    cl.enqueue_copy(queue, content, memory)
    return content


def _check_written(queue: Any, memory: Any, size: int, where: str, itemsize: int) -> None:
    content = _snapshot(queue, memory)[:size]
    pattern = np.resize(np.frombuffer(PATTERN.tobytes(), np.uint8), max(size, 4))[:size]
    is_unwritten: Sequence[Any] = (content == pattern).reshape(-1, itemsize).all(axis=1)
    unwritten = np.flatnonzero(is_unwritten)
    if unwritten.size:
        first = int(unwritten[0])
        raise ValidationFailed(f"{where} left {unwritten.size} outputs unwritten, the first at element {first}")
