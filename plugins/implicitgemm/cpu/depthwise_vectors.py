"""Depthwise layers in NCHW from registers, forward and data gradient: see ``places``."""

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
    epilogue_macros,
    kernel_text,
    storage_macros,
)

from .passes import passes
from .places import Tile, moved, name, runs_of, tiles_of


class VectorKernel:
    """One configuration, worked out without compiling; needs no memory."""

    def __init__(self, problem: ConvProblem, config: Mapping[str, Any]) -> None:
        self.problem, self.config, self.p = problem, config, passes(problem)[0]
        self.planes = self.p.images * self.p.groups
        self.items = min(self.planes, config["items"])

    def text(self) -> str:
        """The program."""
        p, lanes, problem = self.p, self.config["lanes"], self.problem
        once = problem.accumulate or problem.residual
        tiles: dict[Tile, str] = {}
        calls = []
        for row, column, tile in tiles_of(p, lanes, self.config["rows"], once):
            calls.append((row, column, tiles.setdefault(tile, f"tile_{len(tiles)}")))
        position = [
            (p.w_first[1] + ty * p.w_step[1]) * p.kernel[2] + p.w_first[2] + tx * p.w_step[2]
            for ty in range(p.taps[1])
            for tx in range(p.taps[2])
        ]
        text = storage_macros(p.dtype) + epilogue_macros(problem)
        text += define(V=f"{DTYPES[p.dtype].accumulator}{lanes}", LANES=lanes, G=p.groups, PLANES=self.planes)
        text += define(KEPT=f"{'long' if p.dtype == 'float64' else 'int'}{lanes}", ITEMS=self.items)
        text += define(XP=p.source[1] * p.source[2], YP=p.places[1] * p.places[2], WG=p.kernel[1] * p.kernel[2])
        return text + kernel_text(
            __package__, "depthwise_vectors.cl.mako", tiles=tiles, runs=runs_of(calls),
            position=position, down=p.step[1] * p.source[2], across=p.step[2], width=p.places[2], bias=problem.bias,
            moved=moved, name=name,
        )  # fmt: skip

    def plan(self, context: Any) -> StepPlan:
        """Compile."""
        source, target = ("x", "y") if self.problem.direction == "fwd" else ("y", "x")
        extras = [name for name in ("bias", "residual") if getattr(self.problem, name)]
        arguments = [source, "w", target, *extras]
        program = build(context, self.text())
        return StepPlan(0, [Launch(program, "depthwise", (self.items, 1, 1), (1, 1, 1), arguments, names=OPERANDS)])
