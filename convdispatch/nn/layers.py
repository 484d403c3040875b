"""Layers: parameters made in ``__init__``, a line of mathematics in ``forward``.

Those that look at channels take ``layout`` as ``conv()`` does; parameters are stored in that layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..calls.arguments import per_axis
from ..device import runtime
from ..elementwise import full
from ..elementwise.tensor import Parameter, Tensor
from . import functional
from .modules import Module


class _Weighted(Module):
    """What convolutions and Linear share: a weight, and perhaps a bias."""

    weight: Parameter
    bias: Parameter | None
    options: dict[str, Any]

    def _make(
        self, shape: tuple[int, ...], inputs: int, biases: int, queue: Any, rng: np.random.Generator | None
    ) -> None:
        # Weights are initialised uniformly within 1 / sqrt(number of inputs per output), as in PyTorch's layers.
        rng, queue = rng or np.random.default_rng(), queue or runtime.queue()
        bound = 1 / math.sqrt(inputs)

        def uniform(*sizes: int) -> Parameter:
            return Parameter(Tensor.from_numpy((rng.random(sizes, np.float32) * 2 - 1) * np.float32(bound), queue))

        self.weight = uniform(*shape)
        self.bias = uniform(biases) if biases else None

    def torch_axes(self, name: str) -> tuple[int, ...] | None:
        return (0, 3, 1, 2) if name == "weight" and self.weight.ndim == 4 and self.options["layout"] == "nhwc" else None


class _Filters(_Weighted):
    """What convolutions share: their geometry, and filters ``[first, second/groups, kh, kw]``, with ``layout="nhwc"``
    ``[first, kh, kw, second/groups]``, of the channels of x and of the result."""

    transposed = False

    def __init__(
        self,
        ic: int,
        oc: int,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: Any = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        layout: str = "nchw",
        queue: cl.CommandQueue | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        kernel = per_axis("kernel", kernel, 2, least=1)
        if ic % groups or oc % groups:
            raise InvalidArgument(f"channels must be multiples of groups={groups}, got {ic} and {oc}")
        first, second = (ic, oc // groups) if self.transposed else (oc, ic // groups)
        shape = (first, second, *kernel) if layout == "nchw" else (first, *kernel, second)
        self._make(shape, math.prod(shape[1:]), oc if bias else 0, queue, rng)
        self.options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}


class Conv2d(_Filters):
    """``activation(conv(x, weight) + bias + residual)``; x and residual are NCHW or NHWC, as ``layout`` says.

    ``geometry`` is stride, padding, dilation and groups, as ``conv()`` takes them, bias (True), layout, queue and rng,
    which draws the weights. ``weight`` is ``[oc, ic/groups, kh, kw]``, with ``layout="nhwc"`` ``[oc, kh, kw,
    ic/groups]``.
    """

    def __init__(
        self, ic: int, oc: int, kernel: int | Sequence[int], *, activation: str | None = None, **geometry: Any
    ) -> None:
        super().__init__(ic, oc, kernel, **geometry)
        self.options["activation"] = activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return functional.convolution(x, self.weight, self.bias, residual=residual, **self.options)


class ConvTranspose2d(_Filters):
    """``conv_transpose(x, weight) + bias``; ``weight`` is ``[ic, oc/groups, kh, kw]``, for "nhwc" ``[ic, kh, kw,
    oc/groups]``; ``geometry`` as Conv2d's."""

    transposed = True

    def __init__(
        self,
        ic: int,
        oc: int,
        kernel: int | Sequence[int],
        *,
        output_padding: int | Sequence[int] = 0,
        **geometry: Any,
    ) -> None:
        super().__init__(ic, oc, kernel, **geometry)
        self.options["output_padding"] = output_padding

    def forward(self, x: Tensor) -> Tensor:
        return functional.transposed_convolution(x, self.weight, self.bias, **self.options)


class Linear(_Weighted):
    """``activation(x · weightᵀ + bias)`` for x ``[mb, ic]``, computed as a convolution of 1×1 pictures.

    ``weight`` is ``[oc, ic]``; ``layout`` is how ``conv()`` is asked, and changes no result.
    """

    def __init__(
        self,
        ic: int,
        oc: int,
        *,
        bias: bool = True,
        activation: str | None = None,
        layout: str = "nchw",
        queue: cl.CommandQueue | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._make((oc, ic), ic, oc if bias else 0, queue, rng)
        self.options = {"activation": activation, "layout": layout}

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias, **self.options)


class BatchNorm2d(Module):
    """``activation((x - mean) / sqrt(variance + epsilon) * weight + bias + residual)`` for each channel.

    Training takes mean and variance of the batch and moves ``running_mean`` and ``running_var`` towards them by
    ``momentum``; afterwards those are used. ``activation`` is None or "relu".
    """

    def __init__(
        self,
        channels: int,
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
        activation: str | None = None,
        layout: str = "nchw",
        queue: cl.CommandQueue | None = None,
    ) -> None:
        queue = queue or runtime.queue()
        self.weight = Parameter(full((channels,), 1.0, queue=queue))
        self.bias = Parameter(full((channels,), 0.0, queue=queue))
        self.running_mean = full((channels,), 0.0, queue=queue)
        self.running_var = full((channels,), 1.0, queue=queue)
        self.options = {"epsilon": epsilon, "momentum": momentum, "activation": activation, "layout": layout}

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        values = (self.weight, self.bias, self.running_mean, self.running_var)
        return functional.batch_norm(x, *values, training=self.training, residual=residual, **self.options)


class _Pool2d(Module):
    pool: Callable[..., Tensor]

    def __init__(self, kernel: Any, stride: Any = None, padding: Any = 0, **options: Any) -> None:
        self.kernel, self.stride, self.padding, self.options = kernel, stride, padding, options

    def forward(self, x: Tensor) -> Tensor:
        return type(self).pool(x, self.kernel, self.stride, self.padding, **self.options)


class MaxPool2d(_Pool2d):
    """The largest value of each window; options as ``functional.max_pool``."""

    pool = staticmethod(functional.max_pool)


class AvgPool2d(_Pool2d):
    """The mean of each window; options as ``functional.avg_pool``."""

    pool = staticmethod(functional.avg_pool)


class AdaptiveAvgPool2d(Module):
    """The mean of windows such that the result has ``size`` pixels along each axis."""

    def __init__(self, size: int | Sequence[int], *, layout: str = "nchw") -> None:
        self.size, self.layout = size, layout

    def forward(self, x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool(x, self.size, layout=self.layout)


class LRN(Module):
    """Local response normalisation over ``size`` channels, as ``functional.local_response_norm``."""

    def __init__(
        self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, *, layout: str = "nchw"
    ) -> None:
        self.size, self.alpha, self.beta, self.k, self.layout = size, alpha, beta, k, layout

    def forward(self, x: Tensor) -> Tensor:
        return functional.local_response_norm(x, self.size, self.alpha, self.beta, self.k, layout=self.layout)


class Activation(Module):
    """An activation by name, as ``functional.activate``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return functional.activate(x, self.name)


def ReLU() -> Activation:
    """``max(x, 0)``."""
    return Activation("relu")


class Dropout(Module):
    """While training, elements are 0 with probability ``p`` and the others scaled by ``1 / (1 - p)``."""

    def __init__(self, p: float = 0.5, *, seed: int | None = None) -> None:
        if not 0 <= p < 1:
            raise InvalidArgument(f"a probability of dropout is 0 or more and below 1, got {p}")
        self.p, self.random = p, np.random.default_rng(seed)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.p, self.random) if self.training else x


class Flatten(Module):
    """``[mb, ...]`` to ``[mb, features]``, in the order in which NCHW has them.

    With ``layout="nhwc"`` pictures are transposed first, so that a Linear's weights mean the same in both layouts;
    where the pictures are 1×1, nothing moves.
    """

    def __init__(self, *, layout: str = "nchw") -> None:
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        if self.layout == "nhwc" and x.ndim == 4 and x.shape[1] * x.shape[2] != 1:
            x = x.transpose(0, 3, 1, 2)
        return functional.flatten(x)
