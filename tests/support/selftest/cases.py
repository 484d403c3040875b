"""What the self-test asks: kernel families at widths from 1 to 35, solvers on shapes that leave something over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from convdispatch.selection.plugins.loader import plugins

from .families import FAMILIES

WIDTHS = range(1, 36)
KNOWN = [
    {"family": "max_pool", "width": width, "options": {"kind": "max", "layout": "nchw", "dtype": dtype, **window}}
    for window in ({"kernel": 3, "stride": 1, "padding": 1}, {"kernel": 3, "stride": 2, "padding": 1})
    for dtype, width in (("float32", 12), ("float32", 17), ("float64", 20), ("float16", 29))
]
"""Asked always: what compilers have got wrong."""
PROBLEMS = [
    "mb1ic3ih7iw13oc5kh3ph1",
    "mb2ic17ih9iw12oc15kh3ph1sh2",
    "mb1ic7ih5iw20oc9kh1",
    "nhwc_mb1ic7ih5iw20oc9kh1",
    "g7mb1ic7ih6iw17oc7kh3ph1",
    "nhwc_g7mb1ic7ih6iw17oc7kh3ph1",
    "f16_nhwc_g8mb1ic8ih9iw17oc8kh3ph1",
    "mb1ic4ih9iw15oc6kh5kw3ph2pw1",
    "nhwc_mb1ic4ih11iw19oc18kh3ph1",
    "mb1ic3ih21iw19oc4kh7ph3",
    "bwd_data_mb1ic5ih9iw14oc7kh3ph1sh2",
    "bwd_data_nhwc_mb1ic17ih9iw12oc15kh3ph1",
    "bwd_weights_mb2ic5ih8iw13oc6kh3ph1",
    "bwd_weights_nhwc_mb1ic18ih7iw11oc17kh3ph1",
    "bwd_weights_g7mb1ic7ih9iw13oc7kh3ph1",
]
"""Asked of every solver."""


def families(turn: int = 0) -> Iterator[dict[str, Any]]:
    """Each form of each family once; ``turn`` moves their widths, so that 35 turns make every width of each."""
    for family, (_, forms) in FAMILIES.items():
        for number, options in enumerate(forms):
            yield {"family": family, "options": options, "width": 1 + (number * 11 + turn * 8) % len(WIDTHS)}


def solvers() -> list[dict[str, Any]]:
    """Every solver on every problem."""
    names = sorted(plugins().plugin_of)
    return [{"solver": name, "problem": problem} for problem in PROBLEMS for name in names]


def selection(part: int, parts: int) -> list[dict[str, Any]]:
    """What is known to be hostile, and one of ``parts`` equal shares of families and of solvers, which may refuse."""
    shares = (random.Random(0).sample(kind, len(kind))[part % parts :: parts] for kind in ([*families()], solvers()))
    return [*KNOWN, *(case for share in shares for case in share)]


def every(turns: int = len(WIDTHS)) -> list[dict[str, Any]]:
    """All of it, so many widths a form, in an order that has met most kinds early."""
    shuffled = []
    for turn in range(turns):
        mixed = [*families(turn), *(solvers() if turn == 0 else [])]
        shuffled += random.Random(turn).sample(mixed, len(mixed))
    return [*KNOWN, *shuffled]
