"""What a command's argument names, as problems: one resolver for all commands, so that each knows the same nets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..api.errors import InvalidArgument, InvalidPolicy, InvalidProblem
from ..api.problem import ConvProblem
from ..measurement import grammar, shapes
from ..measurement.shapes import Entry

PICTURE_SIDE = 224
"""The height and width of a picture if the model file leaves them open."""


def known_nets() -> list[str]:
    """The names of nets: tables of problems, and nets of ``convdispatch.models``."""
    from ..models import catalogue

    return sorted({*shapes.names(), *catalogue.names()})


def read_entries(
    names: Iterable[str], files: Iterable[Path] = (), batch: int | None = None, layout: str | None = None
) -> list[Entry]:
    """Named problems: each of ``names`` is a shape table's name, a net's of ``convdispatch.models``, a lock file, a
    problem in any dialect, or an ONNX file, whose convolutions are read as it runs with ``batch`` pictures, in one
    layout or both; files hold problems likewise, and a name that is no file stands for what it names.

    Raises InvalidArgument or InvalidProblem.
    """
    entries: list[Entry] = []
    for name in names:
        entries += _named(str(name), batch, layout)
    for file in files:
        entries += (
            grammar.read_file(file) if _is_file(file) and not is_model(str(file)) else _named(str(file), batch, layout)
        )
    if not entries:
        raise InvalidArgument(f"name a problem, a file (--from) or a net: {', '.join(known_nets())}")
    return entries


def _named(name: str, batch: int | None, layout: str | None) -> list[Entry]:
    if name in shapes.names():
        return list(shapes.load(name))
    if is_model(name):
        return entries_of_model(name, batch=batch, layout=layout)
    if name in known_nets():
        from ..inference import problems
        from ..models import catalogue

        net = catalogue.create(name)
        return counted(problems(net, (batch or 1, net.CHANNELS, net.SIZE, net.SIZE), layout=layout))
    if _is_file(name) and (locked := _lock_file_problems(Path(name))) is not None:
        return locked
    return [Entry(str(problem), problem, 1) for problem in _problems(name)]


def _is_file(name: Path | str) -> bool:
    """Whether a file has the name, which may be any text."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # The text is longer than a file name may be, or contains a NUL character.
        return False


def _lock_file_problems(file: Path) -> list[Entry] | None:
    """The problems of a lock file; None for another file."""
    from ..selection.choice import lockfile

    try:
        return [Entry(text, ConvProblem.parse(text), 1) for text in lockfile.read(str(file))]
    except InvalidPolicy:
        return None


def _problems(name: str) -> list[ConvProblem]:
    """The problems that an argument states; a word without a problem's letters is reported as an unknown net."""
    try:
        return grammar.read_all(name)
    except InvalidProblem as error:
        if _is_file(name):
            raise InvalidArgument(f"{name} is a file: name it with --from") from error
        if re.search(r"i[cdhw]\d|[\s{-]", name):
            raise
        similar = difflib.get_close_matches(name, known_nets(), 1)
        meant = f"; did you mean {similar[0]}?" if similar else ""
        raise InvalidArgument(f"no net is named {name[:60]!r}; there are {', '.join(known_nets())}{meant}") from error


# --- model files -----------------------------------------------------------------------------------------------------


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


def entries_of_model(path: Path | str, *, batch: int | None = None, layout: str | None = None) -> list[Entry]:
    """The convolutions of a model as it runs, with what is fused into them, named in order; equal ones are counted.

    In both layouts where ``layout`` is None, since the net takes the faster one. Raises InvalidArgument.
    """
    from ..onnx import load

    net = load(path)
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
