"""The public call that a problem describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import convdispatch

__all__ = ["call"]


def _options(problem: Any) -> dict[str, Any]:
    """The keywords of ``conv`` and its relatives that say a problem's geometry, layout and math."""
    axes = problem.axes
    return {
        "stride": tuple(getattr(problem, "s" + axis) for axis in axes),
        "dilation": tuple(getattr(problem, "d" + axis) for axis in axes),
        "padding": tuple((getattr(problem, "p" + axis), getattr(problem, f"p{axis}_r")) for axis in axes),
        "groups": problem.g,
        "layout": problem.layout,
        "math": problem.math,
    }


def call(problem: Any, arrays: Mapping[str, Any], **more: Any) -> Any:
    """The result of a problem's call on x, w, y, bias and residual by name; ``more`` is ``out`` and ``queue``."""
    more |= _options(problem)
    last = {"activation": problem.activation, "residual": arrays.get("residual")}
    if problem.direction == "fwd":
        return convdispatch.conv(arrays["x"], arrays["w"], arrays.get("bias"), **more, **last)
    if problem.direction == "bwd_weights":
        accumulate = problem.accumulate
        return convdispatch.conv_backward_weights(
            arrays["x"], arrays["y"], problem.w_shape, accumulate=accumulate, **more
        )
    if problem.bias or problem.residual or problem.activation:
        left = tuple(_output_padding(problem, axis) for axis in problem.axes)
        bias = arrays.get("bias")
        return convdispatch.conv_transpose(arrays["y"], arrays["w"], bias, output_padding=left, **more, **last)
    # The batch is the array's own: a problem of one batch describes calls on others.
    shape = (len(arrays["y"]), *problem.x_shape[1:])
    return convdispatch.conv_backward_data(arrays["y"], arrays["w"], shape, **more)


def _output_padding(problem: Any, axis: str) -> int:
    """Elements at the far end that no output reads: the output padding of the transposed convolution."""
    size, kernel, stride, dilation = (getattr(problem, letter + axis) for letter in "iksd")
    padded = size + getattr(problem, "p" + axis) + getattr(problem, f"p{axis}_r")
    return (padded - dilation * (kernel - 1) - 1) % stride
