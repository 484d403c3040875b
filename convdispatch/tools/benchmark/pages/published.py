"""Published times of 2015 and 2016 to set beside today's: another card, other software, the same nets."""

from __future__ import annotations

import functools
import importlib.resources
from typing import NamedTuple

CARD = "NVIDIA Titan X (Maxwell, 2015)"
SOURCE = "soumith/convnet-benchmarks, MIT"


class Published(NamedTuple):
    """One library's times for a net, milliseconds; backward is both gradients."""

    net: str
    library: str
    forward_ms: float
    backward_ms: float


@functools.cache
def titanx() -> tuple[Published, ...]:
    """Every row of ``titanx.txt``."""
    text = importlib.resources.files(__package__).joinpath("titanx.txt").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            net, forward, backward, library = line.split(maxsplit=3)
            rows.append(Published(net, library, float(forward), float(backward)))
    return tuple(rows)
