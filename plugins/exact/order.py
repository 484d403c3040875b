"""The definition's numbers: how long blocks are, which problems it covers, and activations as numbers of the dtype."""

from __future__ import annotations

import math

import numpy as np

from convdispatch.api import MOST_PHASES, ConvProblem, DeviceInfo, epilogue_macros, phase_count
from convdispatch.api.activations import parse_activation

BLOCK = 1024
"""The most products of a block, unless one channel (or one row of a weights' gradient) has more."""
ACTIVATIONS = ("relu", "relu6", "clip", "leaky_relu")
"""Activations of comparisons and at most one multiplication, which every device computes alike."""


def block(length: int) -> int:
    """The channels of a block where a channel has ``length`` taps, and the rows of a block of rows of that length:
    the largest power of two with which a block has at most ``BLOCK`` products, at least 1."""
    return 1 << max(0, (BLOCK // length).bit_length() - 1)


def channels(problem: ConvProblem) -> int:
    """Channels of a block of the forward convolution and the data gradient."""
    return block(math.prod((problem.kd, problem.kh, problem.kw)))


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


def finish_macros(problem: ConvProblem) -> str:
    """The epilogue's macros; an activation's numbers are rounded to the dtype here, not by each compiler."""
    if problem.activation is None:
        return epilogue_macros(problem)
    name, numbers = parse_activation(problem.activation)
    rounded = ",".join(repr(float(np.dtype(problem.dtype).type(number))) for number in numbers)
    return epilogue_macros(problem.replace(activation=f"{name}({rounded})" if numbers else name))
