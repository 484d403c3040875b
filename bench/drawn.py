"""Problems that nobody chose: drawn from families of layers by a seed, for ``regret.py``.

A family says what a layer is (kernel, stride, dilation, groups, number of axes); sizes, batch, direction, the side of
the padding and whether weights are constant are drawn beside it. Equal seeds draw equal problems.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from convdispatch.api import ConvProblem
from convdispatch.api.errors import InvalidProblem
from convdispatch.api.problem import DIRECTIONS

__all__ = ["FAMILIES", "KINDS", "drawn"]

KINDS: dict[str, list[dict[str, Any]]] = {
    "float32": [{"layout": "nchw"}, {"layout": "nchw"}, {"layout": "nhwc"}],
    "tf32": [{"math": "tf32", "layout": "nchw"}, {"math": "tf32", "layout": "nhwc"}],
    "half": [{"dtype": "float16", "layout": "nhwc"}],
    "bfloat16": [{"dtype": "bfloat16", "layout": "nhwc"}],
    "float64": [{"dtype": "float64"}],
    "ieee": [{"math": "ieee"}],
}
FAMILIES: dict[str, dict[str, Any]] = {
    "3x3": {"k": 3},
    "1x1": {"k": 1},
    "1x1 strided": {"k": 1, "s": 2},
    "3x3 strided": {"k": 3, "s": 2},
    "even": {"k": (2, 4), "s": 2},
    "5x5": {"k": 5},
    "large": {"k": (7, 9, 11), "few": True},
    "first": {"k": (3, 7, 11), "s": (2, 4), "ic": (1, 3, 4)},
    "dilated": {"k": 3, "d": (2, 4)},
    "grouped": {"k": 3, "groups": (2, 4, 8, 32)},
    "depthwise": {"k": (3, 5, 7), "depthwise": True, "s": (1, 1, 2)},
    "one row": {"k": (3, 7), "row": True},
    "1-d": {"k": (3, 5, 9), "axes": 1},
    "3-d": {"k": 3, "axes": 3},
    "small image": {"k": 3, "image": (2, 3, 4, 7)},
}
_MOST_BYTES = {"cpu": 64 << 20, "gpu": 1 << 30}
_FLOPS = {"cpu": (2e6, 3e9), "gpu": (1e7, 2e11)}
_BATCHES = {"cpu": (1, 1, 1, 2, 4, 8), "gpu": (1, 1, 4, 16, 32, 64, 128)}


def drawn(device: str, kind: str, seed: int) -> Iterator[ConvProblem]:
    """Problems without end, no two alike, for a ``cpu`` or ``gpu``; the families take turns."""
    chance, seen = random.Random(f"{device} {kind} {seed}"), set[ConvProblem]()
    while True:
        names = list(FAMILIES)
        chance.shuffle(names)
        for name in names:
            problem = _layer(chance, device, kind, FAMILIES[name])
            while problem is None or problem in seen:
                problem = _layer(chance, device, kind, FAMILIES[name])
            seen.add(problem)
            yield problem


def _layer(chance: random.Random, device: str, kind: str, family: dict[str, Any]) -> ConvProblem | None:
    """A layer of the family; None where it is beyond what a device should be given."""

    def one(name: str, otherwise: Any) -> Any:
        value = family.get(name, otherwise)
        return chance.choice(value) if isinstance(value, tuple) else value

    def size(low: int, high: int) -> int:
        return round(math.exp(chance.uniform(math.log(low), math.log(high))))

    most = 512 if family.get("few") is None else 96
    wide = chance.choice((8, 16, 32, 1))  # channels are multiples most often
    channels = [max(1, round(size(8, most if device == "cpu" else 2 * most) / wide)) * wide for _ in range(2)]
    ic, oc, groups = one("ic", channels[0]), channels[1], one("groups", 1)
    if family.get("depthwise"):
        groups = oc = ic
    ic, oc = -(-ic // groups) * groups, -(-oc // groups) * groups
    k, s, d, image = one("k", 3), one("s", 1), one("d", 1), one("image", None) or size(7, 112)
    axes = {1: "w", 2: "hw", 3: "dhw"}[family.get("axes", 2)]
    image = size(4, 24) if len(axes) == 3 else 8 * image if len(axes) == 1 else image
    padding = chance.choice(("same", "same", "valid"))
    values: dict[str, Any] = {"mb": chance.choice(_BATCHES[device]), "ic": ic, "oc": oc, "g": groups}
    for axis in axes:
        kernel = 1 if family.get("row") and axis == "w" else k
        pad = d * (kernel - 1) // 2 if padding == "same" else 0
        values |= {f"i{axis}": image, f"k{axis}": kernel, f"s{axis}": s, f"d{axis}": d}
        values |= {f"p{axis}": pad, f"p{axis}_r": pad}
    if len(axes) == 1:
        values |= {"ih": 1, "kh": 1}
    direction = chance.choice(DIRECTIONS)
    constant = device == "cpu" and direction != "bwd_weights" and chance.random() < 0.5
    try:
        problem = ConvProblem(**values, direction=direction, constant_weights=constant, **chance.choice(KINDS[kind]))
    except InvalidProblem:
        return None
    low, high = _FLOPS[device]
    fits = problem.bytes < _MOST_BYTES[device] and low < problem.flops < high
    return problem if fits and min(problem.out_shape) > 0 else None
