"""Where a case's arrays are: NumPy's, an OpenCL device's or PyTorch's on CUDA; and the public calls on them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from convdispatch import ConvProblem, Tensor
from convdispatch.device import runtime

__all__ = ["Place", "options_of"]


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
        return result.view(dtype=_BITS[result.element_size()]()).cpu().numpy()


def _torch_dtype(name: str) -> Callable[[], Any]:
    def dtype() -> Any:
        import torch

        return getattr(torch, name)

    return dtype


_BITS = {2: _torch_dtype("int16"), 4: _torch_dtype("int32"), 8: _torch_dtype("int64")}
"""Integers as wide as an element, by bytes: NumPy has no bfloat16."""
