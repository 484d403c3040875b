"""A model file on the command line: the shapes of its inputs, its convolutions as named problems."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..api.errors import InvalidArgument
from ..measurement.shapes import Entry

PICTURE_SIDE = 224
"""The height and width of a picture if the model file leaves them open."""


def is_model(name: str) -> bool:
    """Whether a command's argument names an ONNX file."""
    return str(name).endswith(".onnx")


def input_shapes(net: Any, batch: int | None) -> list[tuple[int, ...]]:
    """A shape for each input: the file's, its open sizes 1 for the first axis (or ``batch``), 224 for a picture's sides
    and 1 elsewhere."""
    shapes = []
    for port in net.inputs:
        if port.shape is None:
            raise InvalidArgument(f"the file does not say the shape of {port.name!r}")
        shape = []
        for axis, size in enumerate(port.shape):
            if axis == 0 and batch is not None and port.shape:
                shape.append(batch)
            elif isinstance(size, int):
                shape.append(size)
            else:
                shape.append(PICTURE_SIDE if len(port.shape) == 4 and axis > 0 else 1)
        shapes.append(tuple(shape))
    return shapes


def entries_of_model(
    path: Path | str, *, batch: int | None = None, layout: str | None = None, device: Any = None
) -> list[Entry]:
    """The convolutions of a model as it runs, with what is fused into them, named in order; equal ones are counted.

    In both layouts where ``layout`` is None, since the net takes the faster one. Raises InvalidArgument.
    """
    from ..onnx import load

    net = load(path, device=device)
    entries = counted(net.problems(*input_shapes(net, batch), layout=layout))
    if not entries:
        raise InvalidArgument(f"{path} has no convolutions with constant weights")
    return entries


def counted(problems: Iterable[Any]) -> list[Entry]:
    """An entry per distinct problem, named by the number of its first layer, with how many layers have it."""
    counts: dict[Any, Entry] = {}
    for number, problem in enumerate(problems, 1):
        equal = counts.get(problem)
        counts[problem] = Entry(f"conv{number}", problem, 1) if equal is None else equal._replace(count=equal.count + 1)
    return list(counts.values())
