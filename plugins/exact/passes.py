"""A problem as dense passes: the numbers that the kernels of both solvers read, as macros.

    target[n, place * U + F] = sum over (c, tap) of w[n, c, T0 + tap * TS] source[c, place * S + O + tap * D]

A forward convolution and a weights' gradient have one pass; a data gradient has one for each phase of its stride.
"""

from __future__ import annotations

import math
from typing import Any

from convdispatch.api import ConvProblem, TensorLayout, geometry_of

from .order import block, channels

Numbers = dict[str, int]


def passes(problem: ConvProblem) -> list[Numbers]:
    """The macros of each pass. Along D, H and W: sizes of the source X, of the pass Y, of the target Z, taps T of the
    kernel's K; steps S, spreads D, strides U, first places F, origins O, first taps A and their steps B; TAPS and PLACES
    of the pass. C, N: channels a group; CB: channels of a block, or rows of a weights' gradient's block; WN, WC, WT: strides of w."""
    geo, w = geometry_of(problem), TensorLayout.of(problem, "w")
    back = problem.direction == "bwd_data"
    rows = block(problem.ow) if problem.direction == "bwd_weights" else channels(problem)
    shared: dict[str, Any] = {"IMAGES": geo.images, "G": geo.groups, "C": geo.c, "N": geo.m, "CB": rows}
    shared |= {"WN": w.channel if back else w.image, "WC": w.image if back else w.channel, "WT": w.axes[2]}
    shared |= {"W_GROUP": problem.oc // problem.g * w.image, "NHWC": int(problem.layout == "nhwc")}
    result = []
    for phase in geo.phases:
        empty = not phase.volume
        axes = {
            "X": geo.source.size, "Y": phase.count, "Z": geo.target.size, "K": geo.kernel, "S": geo.step,
            "D": geo.spread, "U": geo.out_step, "F": phase.first, "O": (0, 0, 0) if empty else phase.origin,
            "T": (1, 1, 1) if empty else phase.taps, "A": phase.tap0, "B": geo.tap_step,
        }  # fmt: skip
        numbers = {f"{name}{axis}": value for name, each in axes.items() for axis, value in zip("DHW", each)}
        volumes = {"TAPS": math.prod(axes["T"]), "PLACES": math.prod(axes["Y"])}
        result.append({**shared, **numbers, **volumes, "EMPTY": int(empty)})
    return result


def macros(numbers: Numbers) -> str:
    """The numbers as OpenCL text; negative ones in parentheses."""
    return "".join(f"#define {name} {value if value >= 0 else f'({value})'}\n" for name, value in numbers.items())
