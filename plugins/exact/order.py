"""The definition's numbers: which problems it covers, a problem as dense passes, an activation's numbers rounded."""

from __future__ import annotations

import math

import numpy as np

from convdispatch.api import (
    MOST_PHASES,
    ConvProblem,
    DeviceInfo,
    TensorLayout,
    define,
    epilogue_macros,
    geometry_of,
    phase_count,
)  # fmt: skip
from convdispatch.api.activations import parse_activation

BLOCK = 1024
"""The most products of a block, unless one channel (or one row of a weights' gradient) has more."""
ACTIVATIONS = ("relu", "relu6", "clip", "leaky_relu")
"""Activations of comparisons and at most one multiplication, which every device computes alike."""


def refuses(problem: ConvProblem, device: DeviceInfo) -> str | None:
    """Why the definition does not cover a problem, or the device cannot compute it."""
    if problem.math != "reproducible":
        return f"math='reproducible' only, got {problem.math!r}"
    if problem.mb < 1:
        return f"1 image or more, got {problem.mb}"
    if problem.activation and parse_activation(problem.activation)[0] not in ACTIVATIONS:
        return f"activations {', '.join(ACTIVATIONS)} only, which no device rounds otherwise, got {problem.activation}"
    if phase_count(problem) > MOST_PHASES:
        return f"strides of {MOST_PHASES} phases at most, got {phase_count(problem)}"
    return None


def passes(problem: ConvProblem) -> list[dict[str, int]]:
    """The macros of each dense pass, of which a data gradient has one for each phase of its stride.

        target[n, place * U + F] = sum over (c, tap) of w[n, c, A + tap * B] source[c, place * S + O + tap * D]

    Along D, H and W: sizes of the source X, of the pass Y, of the target Z, taps T of the kernel's K. TAPS and PLACES
    of the pass; C, N: channels a group; CB: channels of a block, or rows of a weights' gradient's block; WN, WC, WT:
    strides of w. A block has the largest power of two of channels, or rows, with which it has at most BLOCK products.
    """
    geo, w = geometry_of(problem), TensorLayout.of(problem, "w")
    weights, back = problem.direction == "bwd_weights", problem.direction == "bwd_data"
    products = problem.ow if weights else math.prod(geo.kernel)
    shared = {"IMAGES": geo.images, "G": geo.groups, "C": geo.c, "N": geo.m, "WEIGHTS": int(weights)}
    shared |= {"CB": 1 << max(0, (BLOCK // products).bit_length() - 1), "NHWC": int(problem.layout == "nhwc")}
    shared |= {"WN": w.channel if back else w.image, "WC": w.image if back else w.channel, "WT": w.axes[2]}
    shared["W_GROUP"] = problem.oc // problem.g * w.image
    result = []
    for phase in geo.phases:
        empty = not phase.volume
        taps, origin = ((1, 1, 1), (0, 0, 0)) if empty else (phase.taps, phase.origin)
        axes = {
            "X": geo.source.size, "Y": phase.count, "Z": geo.target.size, "K": geo.kernel, "T": taps, "S": geo.step,
            "D": geo.spread, "U": geo.out_step, "F": phase.first, "O": origin, "A": phase.tap0, "B": geo.tap_step,
        }  # fmt: skip
        numbers = {f"{name}{axis}": value for name, each in axes.items() for axis, value in zip("DHW", each)}
        volumes = {"TAPS": math.prod(taps), "PLACES": math.prod(phase.count), "EMPTY": int(empty)}
        result.append({**shared, **numbers, **volumes})
    return result


def macros(problem: ConvProblem, numbers: dict[str, int]) -> str:
    """The numbers and the epilogue as macros; an activation's numbers are rounded to the dtype, not by a compiler."""
    if problem.activation is not None:
        name, given = parse_activation(problem.activation)
        rounded = ",".join(repr(float(np.dtype(problem.dtype).type(number))) for number in given)
        problem = problem.replace(activation=f"{name}({rounded})" if given else name)
    signed = {name: value if value >= 0 else f"({value})" for name, value in numbers.items()}
    return epilogue_macros(problem) + define(**signed)
