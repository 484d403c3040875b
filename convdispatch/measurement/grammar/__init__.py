"""Reads problems in every dialect of the field.

============= =========================================================================================================
convdispatch  ``fwd_f32_mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3+bias``; also a line of the trace layer
benchdnn      ``--dir=FWD_D --dt=f32 g2mb256ic96ih27oc256oh27kh5ph2n"conv2*3"``; dilation 0 is dense, mb 2 where missing
miopen        ``MIOpenDriver convfp16 -n 1 -c 3 -H 224 -W 224 -k 64 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2 -F 1``
deepbench     ``(w, h, c, n, k, filter_w, filter_h, pad_w, pad_h, stride_w, stride_h)``
============= =========================================================================================================

A text without a direction means forward without bias, whatever the dialect's own tool would run. Letters alone
(``mb1ic3ih8oc4kh3``) are this project's own text. What cannot be read is refused with a reason.

- ``benchdnn``: oneDNN's benchdnn.
- ``miopen``: MIOpenDriver's command lines.
- ``deepbench``: DeepBench's tuples.
- ``files``: files of any dialect, which is recognised from the text; this project's own, and traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...api.errors import InvalidArgument, InvalidProblem
from ...api.problem import ConvProblem
from . import deepbench
from .files import DIALECTS, Entry, detect, read_file, read_line

__all__ = ["DIALECTS", "Entry", "detect", "read", "read_all", "read_file"]


def read_all(source: Any, dialect: str | None = None) -> list[ConvProblem]:
    """The problems of one text or tuple; several if a line names several directions or types.

    Without ``dialect`` it is recognised from the text. Raises InvalidProblem.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise InvalidArgument(f"dialect must be one of {', '.join(DIALECTS)}, got {dialect!r}")
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [deepbench.read_tuple(source)]
    if not isinstance(source, str):
        raise InvalidProblem(f"a problem is read from text or a tuple, got {type(source).__name__}")
    entries = read_line(source.strip(), dialect or detect(source))
    if not entries:
        raise InvalidProblem(f"no problem in {source!r}")
    return [entry.problem for entry in entries]


def read(source: Any, dialect: str | None = None) -> ConvProblem:
    """The one problem that a text or tuple states; see ``read_all``. Raises InvalidProblem."""
    problems = read_all(source, dialect)
    if len(problems) > 1:
        listed = ", ".join(map(str, problems))
        raise InvalidProblem(f"{source!r} asks for {len(problems)} problems, where one is wanted: {listed}")
    return problems[0]
