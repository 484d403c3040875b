"""Views as few axes as they need: neighbouring axes that every operand walks alike become one."""

from __future__ import annotations

from collections.abc import Sequence

from ...api.errors import InvalidArgument


def broadcast(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape of named operands by NumPy's rule. Raises InvalidArgument that names all shapes."""
    ndim = max((len(shape) for shape in shapes.values()), default=0)
    result = [1] * ndim
    for shape in shapes.values():
        for axis, size in enumerate(shape, ndim - len(shape)):
            if size != 1 and result[axis] != size:
                if result[axis] != 1:
                    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                    raise InvalidArgument(f"shapes do not fit each other: {listed}")
                result[axis] = size
    return tuple(result)


def stretched(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Strides of an operand seen in the broadcast shape ``to``: 0 along axes that repeat."""
    extra = len(to) - len(shape)
    return (0,) * extra + tuple(
        0 if size == 1 and want != 1 else step for size, step, want in zip(shape, strides, to[extra:], strict=True)
    )


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]], groups: Sequence[object] | None = None
) -> tuple[list[int], list[list[int]], list[object]]:
    """``(sizes, strides of each operand, groups)`` without axes of size 1, mergeable neighbours merged.

    Axes of different ``groups`` (kept and reduced ones) stay apart.
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    kinds: list[object] = []
    for axis, size in enumerate(shape):
        kind = None if groups is None else groups[axis]
        if size == 1:
            continue
        if (
            sizes
            and kinds[-1] == kind
            and all(
                collapsed_steps[-1] == operand_strides[axis] * size
                for collapsed_steps, operand_strides in zip(steps, strides, strict=True)
            )
        ):
            sizes[-1] *= size
            for collapsed_steps, operand_strides in zip(steps, strides, strict=True):
                collapsed_steps[-1] = operand_strides[axis]
            continue
        sizes.append(size)
        kinds.append(kind)
        for collapsed_steps, operand_strides in zip(steps, strides, strict=True):
            collapsed_steps.append(operand_strides[axis])
    return sizes, steps, kinds
