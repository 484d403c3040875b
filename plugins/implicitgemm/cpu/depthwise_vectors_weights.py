"""Depthwise weights' gradients in NCHW from registers: see ``places``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import (
    DTYPES,
    OPERANDS,
    ConvProblem,
    Launch,
    StepPlan,
    build,
    define,
    kernel_text,
    storage_macros,
)

from .passes import passes
from .places import cover, moved, name, runs_of, tiles_of


class VectorSums:
    """One configuration, worked out without compiling; needs no memory."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config = problem, config
        self.p = passes(problem.replace(direction="fwd", accumulate=False))[0]
        self.items = min(self.p.groups, config["items"])

    def _tiles(self) -> tuple[dict[Any, str], list[Any]]:
        """Functions, and (taps, runs of calls) of as many rows of taps at a time as registers have room for."""
        p, lanes, tiles = self.p, self.config["lanes"], {}
        height, width = p.places[1:]
        some = max(1, self.config["sums"] // p.taps[2])
        some = -(-p.taps[1] // -(-p.taps[1] // some))
        parts = []
        for first in range(0, p.taps[1], some):
            taps, calls = range(first, min(first + some, p.taps[1])), []
            for row, column, tile in tiles_of(p, lanes, self.config["rows"], True, taps):
                base, windows = row * width + column, []
                gradients = tuple(
                    cover(
                        tuple(s.at + lane if s.first <= lane < s.used else None for lane in range(lanes)),
                        windows, -base, height * width - lanes - base,
                    )
                    for s in tile.stores
                )  # fmt: skip
                key = tile, tuple(windows), gradients
                calls.append((row, column, tiles.setdefault(key, f"tile_{len(tiles)}")))
            parts.append(([ty * p.taps[2] + tx for ty in taps for tx in range(p.taps[2])], runs_of(calls)))
        return tiles, parts

    def text(self) -> str:
        """The program."""
        p, lanes = self.p, self.config["lanes"]
        tiles, parts = self._tiles()
        text = storage_macros(p.dtype) + define(V=f"{DTYPES[p.dtype].accumulator}{lanes}", LANES=lanes, G=p.groups)
        text += define(KEPT=f"{'long' if p.dtype == 'float64' else 'int'}{lanes}", ITEMS=self.items, IMAGES=p.images)
        text += define(XP=p.source[1] * p.source[2], YP=p.places[1] * p.places[2], TAPS=p.volume)
        text += define(ADD=int(self.problem.accumulate))
        return text + kernel_text(
            __package__, "depthwise_vectors_weights.cl.mako", tiles=tiles, parts=parts, taps_all=p.volume, lanes=lanes,
            down=p.step[1] * p.source[2], across=p.step[2], width=p.places[2], moved=moved, name=name,
        )  # fmt: skip

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        launch = Launch(build(context, self.text()), "gradient", (self.items, 1, 1), (1, 1, 1), "x y w", names=OPERANDS)
        return StepPlan(0, [launch])
