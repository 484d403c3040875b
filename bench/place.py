"""Where a case's arrays are: NumPy's, an OpenCL device's or PyTorch's on CUDA; and the public calls on them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import convdispatch
from convdispatch import ConvProblem, Tensor
from convdispatch.device import runtime

__all__ = ["Place", "call", "options_of"]


def options_of(problem: ConvProblem) -> dict[str, Any]:
    """The options of the public call that computes a problem, but for what is fused into it."""
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
    more |= options_of(problem) | ({"accumulate": True} if problem.accumulate else {})
    last = {"activation": problem.activation, "residual": arrays.get("residual")}
    if problem.direction == "fwd":
        return convdispatch.conv(arrays["x"], arrays["w"], arrays.get("bias"), **more, **last)
    if problem.direction == "bwd_weights":
        return convdispatch.conv_backward_weights(arrays["x"], arrays["y"], problem.w_shape, **more)
    if problem.bias or problem.residual or problem.activation:
        left = tuple(_output_padding(problem, axis) for axis in problem.axes)
        bias = arrays.get("bias")
        return convdispatch.conv_transpose(arrays["y"], arrays["w"], bias, output_padding=left, **more, **last)
    # The batch is the array's own: a problem of one batch describes calls on others.
    shape = (arrays["y"].shape[0], *problem.x_shape[1:])
    return convdispatch.conv_backward_data(arrays["y"], arrays["w"], shape, **more)


def _output_padding(problem: Any, axis: str) -> int:
    """Elements at the far end that no output reads: the output padding of the transposed convolution."""
    size, kernel, stride, dilation = (getattr(problem, letter + axis) for letter in "iksd")
    padded = size + getattr(problem, "p" + axis) + getattr(problem, f"p{axis}_r")
    return (padded - dilation * (kernel - 1) - 1) % stride


@dataclass(frozen=True)
class Place:
    """Where images are: in NumPy's arrays, on an OpenCL device's queue, or in PyTorch's tensors on CUDA."""

    name: str

    @property
    def kind(self) -> str:
        """``"cpu"`` or ``"gpu"``, whose sizes of layers are drawn."""
        return "cpu" if self.name == "cpu" else "gpu"

    @functools.cached_property
    def queue(self) -> Any:
        """The queue on which nets are built."""
        return runtime.queue(runtime.find_device("nvidia" if self.name == "cuda" else self.name))

    def bring(self, array: np.ndarray) -> Any:
        """A copy of the array there."""
        if self.name == "cpu":
            return array
        if self.name != "cuda":
            return Tensor.from_numpy(array, self.queue)
        import torch

        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        return torch.from_numpy(array).cuda()

    def fetch(self, result: Any) -> np.ndarray:
        """The result's bits, image by image."""
        if self.name == "cpu":
            return result
        if self.name != "cuda":
            return result.numpy()
        import torch

        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[result.element_size()]  # NumPy has no bfloat16
        return result.view(dtype=bits).cpu().numpy()
