"""Checks whether a call's operands fit in a device's memory, before anything is planned or allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..api.device import DeviceInfo
from ..api.errors import MemoryLimit
from ..api.problem import ConvProblem

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1, "bytes"))


def must_fit(device: DeviceInfo, itemsize: int, shapes: Mapping[str, Sequence[int]]) -> None:
    """Compare tensors with the device's largest allocation, and their sum with its memory; a limit of 0 is unknown.

    ``shapes`` are by the tensors' names, with elements of ``itemsize`` bytes. Raises MemoryLimit.
    """
    sizes = {name: math.prod(shape) * itemsize for name, shape in shapes.items()}
    name = max(sizes, key=sizes.__getitem__)
    if device.max_alloc_size and sizes[name] > device.max_alloc_size:
        raise MemoryLimit(
            f"{name} of shape {tuple(shapes[name])} takes {size_text(sizes[name])}, but {device.name} allocates "
            f"{size_text(device.max_alloc_size)} at most: take smaller batches, images or padding"
        )
    total = sum(sizes.values())
    if device.global_mem_size and total > device.global_mem_size:
        sizes_text = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items())
        raise MemoryLimit(
            f"operands and result take {size_text(total)} ({sizes_text}), but {device.name} has "
            f"{size_text(device.global_mem_size)}: take smaller batches, images or padding"
        )


def problem_must_fit(problem: ConvProblem, device: DeviceInfo) -> None:
    """Checks a convolution's operands and result as ``must_fit`` does."""
    must_fit(device, max(problem.itemsize, problem.out_itemsize), _operands(problem))


def _operands(problem: ConvProblem) -> dict[str, Sequence[int]]:
    shapes = {name: getattr(problem, name + "_shape") for name in "xwy"}
    if problem.residual:
        shapes["the residual"] = problem.out_shape
    return shapes


def workspace_room(problem: ConvProblem, device: DeviceInfo) -> int | None:
    """The most bytes of an allocation that fits beside a problem's operands and result; None if unknown."""
    limits = [device.max_alloc_size] if device.max_alloc_size else []
    if device.global_mem_size:
        operand_elements = sum(math.prod(shape) for shape in _operands(problem).values())
        limits.append(max(0, device.global_mem_size - operand_elements * problem.itemsize))
    return min(limits, default=None)


def size_text(size: int) -> str:
    """A size in bytes as text with a binary unit."""
    unit, name = next(entry for entry in _UNITS if size >= entry[0] or entry[0] == 1)
    return f"{size} bytes" if unit == 1 else f"{size / unit:.3g} {name}"
