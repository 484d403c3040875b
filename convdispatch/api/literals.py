"""The values of options as types: a type checker refuses a misspelt layout, and an editor completes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

Array = TypeVar("Array")
"""The type of array that a call takes and returns: NumPy's, PyTorch's, pyopencl's or another supported library's."""

Direction = Literal["fwd", "bwd_data", "bwd_weights"]
Layout = Literal["nchw", "nhwc"]
Math = Literal["float32", "ieee", "tf32", "fast", "reproducible"]
Activation = (
    Literal["relu", "relu6", "clip", "leaky_relu", "elu", "sigmoid", "silu", "tanh", "hardsigmoid", "hardswish", "gelu",
            "gelu_tanh", "mish", "softplus"]
    | str
)  # fmt: skip
"""A name of the table of activations, with its numbers in parentheses unless they are the defaults: clip(-1,2)."""
Tier = Literal["full", "ready"]

Steps = int | Sequence[int]
"""One number for all spatial axes, or one for each."""
Pads = int | Sequence[int | tuple[int, int]]
"""One pad for all sides, one for each axis, or a pair (near, far) for each axis."""
Padding = Pads | Literal["same", "valid"]
