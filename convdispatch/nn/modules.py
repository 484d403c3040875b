"""Modules: parameters made in ``__init__``, one line of mathematics in ``__call__``.

A module finds its parameters and parts by looking at its attributes, so a net is a class whose attributes are its
layers. Convolutional layers take ``layout`` as ``conv()`` does; parameters are stored in that layout.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import runtime
from ..api.arguments import describe, per_axis
from ..api.conv import constant, conv
from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..tensor import Tensor
from . import functional

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Conv2d", "Linear", "Module", "Sequential", "observe"]

_observer: ContextVar[Callable[[Module, Tensor, Any], None] | None] = ContextVar("convdispatch_observer", default=None)


@contextlib.contextmanager
def observe(callback: Callable[[Module, Tensor, Any], None]) -> Iterator[None]:
    """Inside the block, ``callback(layer, x, residual)`` is called before each Conv2d and Linear computes."""
    token = _observer.set(callback)
    try:
        yield
    finally:
        _observer.reset(token)


class Module:
    """A part of a net: knows its parameters and parts by name, in the order in which they were assigned."""

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules among the attributes, also those in lists, with their names (``"blocks.3"``)."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if isinstance(part, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all parts of parts; names joined by dots, this one's is ``prefix``."""
        yield prefix, self
        for name, part in self.children():
            yield from part.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors among the attributes of all modules, such as ``"blocks.3.expand.weight"``."""
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor):
                    yield f"{prefix}.{name}" if prefix else name, value

    def parameters(self) -> Iterator[Tensor]:
        """What training would change."""
        return (tensor for _, tensor in self.named_parameters())

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Replace every parameter by the array of its name, on the same queue.

        Raises InvalidArgument, and changes nothing, unless names and shapes are exactly this module's.
        """
        own = dict(self.named_parameters())
        if own.keys() != values.keys():
            missing, unknown = sorted(own.keys() - values.keys()), sorted(values.keys() - own.keys())
            raise InvalidArgument(f"parameters do not match: missing {missing or 'none'}, unknown {unknown or 'none'}")
        for name, tensor in own.items():
            if tuple(values[name].shape) != tensor.shape:
                raise InvalidArgument(f"{name} has shape {tensor.shape}, got {tuple(values[name].shape)}")
        for prefix, module in self.named_modules():
            for name, value in list(vars(module).items()):
                if isinstance(value, Tensor):
                    array = values[f"{prefix}.{name}" if prefix else name].astype(value.dtype, copy=False)
                    setattr(module, name, Tensor.from_numpy(array, value.queue))
            module.thaw()

    def freeze(self) -> Module:
        """Promise that weights keep their values, so that plans pack them once; ``load`` and ``thaw`` take it back."""
        for _, part in self.children():
            part.freeze()
        return self

    def thaw(self) -> Module:
        """Weights may change again."""
        for _, part in self.children():
            part.thaw()
        return self


class _Weighted(Module):
    """What Conv2d and Linear share: a weight, perhaps a bias, and the weight's frozen form."""

    weight: Tensor
    bias: Tensor | None

    def _make(self, shape: tuple[int, ...], bias: bool, queue: Any, rng: np.random.Generator | None) -> None:
        # Uniform within 1/sqrt(inputs of one output), as PyTorch's layers begin.
        rng, queue = rng or np.random.default_rng(), queue or runtime.queue()
        bound = 1 / math.sqrt(math.prod(shape[1:]))

        def uniform(*sizes: int) -> Tensor:
            return Tensor.from_numpy((rng.random(sizes, np.float32) * 2 - 1) * np.float32(bound), queue)

        self.weight = uniform(*shape)
        self.bias = uniform(shape[0]) if bias else None
        self._w: Any = None

    def freeze(self) -> Module:
        self._w = constant(self.weight)
        return self

    def thaw(self) -> Module:
        self._w = None
        return self

    @property
    def operand(self) -> Any:
        """What ``conv()`` gets as w: the weight, or the constant that was made of it."""
        return self.weight if self._w is None else self._w


class Conv2d(_Weighted):
    """``activation(conv(x, weight) + bias + residual)``; x and residual are NCHW or NHWC, as ``layout`` says.

    ``kernel``, ``stride``, ``padding`` and ``dilation`` are what ``conv()`` takes. ``weight`` is ``[oc, ic/groups, kh,
    kw]``, with ``layout="nhwc"`` ``[oc, kh, kw, ic/groups]``.
    """

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
        activation: str | None = None,
        layout: str = "nchw",
        queue: cl.CommandQueue | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        kernel = per_axis("kernel", kernel, 2, least=1)
        if ic % groups or oc % groups:
            raise InvalidArgument(f"channels must be multiples of groups={groups}, got {ic} and {oc}")
        shape = (oc, ic // groups, *kernel) if layout == "nchw" else (oc, *kernel, ic // groups)
        self._make(shape, bias, queue, rng)
        self._options = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "activation": activation,
            "layout": layout,
        }

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if (observer := _observer.get()) is not None:
            observer(self, x, residual)
        return conv(x, self.operand, self.bias, residual=residual, **self._options)

    def problem(self, x_shape: Sequence[int], residual: bool = False) -> ConvProblem:
        """The problem that calling this layer with an x of that shape asks to solve."""
        return _problem(self, x_shape, residual, **self._options)


class Linear(_Weighted):
    """``activation(x · weightᵀ + bias)`` for x ``[mb, features]``, computed as a convolution of 1×1 pictures.

    ``weight`` is ``[out, in, 1, 1]``, with ``layout="nhwc"`` ``[out, 1, 1, in]``.
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
        self._make((oc, ic, 1, 1) if layout == "nchw" else (oc, 1, 1, ic), bias, queue, rng)
        self._options = {"activation": activation, "layout": layout}

    def __call__(self, x: Tensor) -> Tensor:
        if (observer := _observer.get()) is not None:
            observer(self, x, None)
        return functional.linear(x, self.operand, self.bias, **self._options)

    def problem(self, x_shape: Sequence[int], residual: bool = False) -> ConvProblem:
        """The problem that calling this layer with an x of that shape asks to solve."""
        mb, features = x_shape
        picture = (mb, features, 1, 1) if self._options["layout"] == "nchw" else (mb, 1, 1, features)
        return _problem(self, picture, residual, **self._options)


class Sequential(Module):
    """Each layer (a module or any function of a tensor) applied to the result of the one before."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _problem(
    layer: _Weighted,
    x_shape: Sequence[int],
    residual: bool,
    *,
    activation: str | None,
    layout: str,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> ConvProblem:
    return describe(
        "fwd",
        x_shape,
        layer.weight.shape,
        None,
        layer.weight.dtype.name,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        bias=layer.bias is not None,
        residual=residual,
        activation=activation,
        constant_weights=layer._w is not None,
    )
