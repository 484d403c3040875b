"""``torch.ops.convdispatch.fused_convolution``: ``activation(convolution + residual)`` in one pass over the result.

For graphs in which nothing records gradients, as AOTAutograd makes them. Where the engine declines, PyTorch's own
convolution runs and what follows it, with the reason counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...api.activations import ACTIVATIONS, formula_of, gradient_of_input, parse_activation
from ..dispatch import engine
from ..dispatch.quick_depthwise import quick_depthwise
from ..dispatch.routing import original, routed, settings_in_force
from ..geometry import has_sides, padded, whole
from .operators import define, without_tangents

_F, _aten = torch.nn.functional, torch.ops.aten

_NAMES: dict[str, Any] = {name: getattr(torch, name) for name in ("where", "exp", "expm1", "log1p", "tanh", "erf")}
_NAMES |= {"sigmoid": torch.sigmoid, "abs": torch.abs, "clip": torch.clamp, "inf": float("inf"), "nan": float("nan")}
"""The names in the activation table's formulas, bound to PyTorch's functions."""


def _compute(formula: str, **operands: torch.Tensor) -> torch.Tensor:
    # The evaluated formula is text of our activation table, never user input.
    return eval(formula, _NAMES | operands)  # type: ignore[no-any-return]


def activate(v: torch.Tensor, activation: str | None) -> torch.Tensor:
    """Apply one of ``conv()``'s activations, by PyTorch's function if it has one. Raises InvalidProblem for another
    name."""
    if activation is None:
        return v
    name, numbers = parse_activation(activation)
    entry = ACTIVATIONS[name]
    if entry.torch is None or (not entry.torch.attributes and numbers != entry.parameters):
        return _compute(formula_of(activation), x=v)
    function = getattr(torch, entry.torch.function, None) or getattr(_F, entry.torch.function)
    return function(v, *numbers) if entry.torch.attributes else function(v)


def slope_times(g: torch.Tensor, activation: str, x: torch.Tensor) -> torch.Tensor:
    """``g`` times the activation's slope at its input ``x``."""
    if parse_activation(activation)[0] == "hardswish":
        return _aten.hardswish_backward(g, x)  # at NaN the gradient itself, as PyTorch's; the formula's is NaN
    return _compute(gradient_of_input(activation), dy=g, x=x)


def named_activation(name: str, values: Mapping[str, Any]) -> str | None:
    """The activation ``name`` of ``conv()`` with the ``values`` of PyTorch's function, of which those left out are
    PyTorch's own; None if one of them is not what the activation has."""
    entry: Any = ACTIVATIONS[name].torch
    if any(values.get(key, value) != value for key, value in entry.only.items()):
        return None
    numbers = ", ".join(repr(float(values.get(key, value))) for key, value in entry.attributes.items())
    return f"{name}({numbers})" if numbers else name


def unfused(y: torch.Tensor, residual: Any, activation: str | None) -> torch.Tensor:
    """The residual addition and the activation after a convolution, by PyTorch's own operators."""
    return activate(y if residual is None else y + residual, activation)


_library = torch.library.Library("convdispatch", "FRAGMENT")


def _forward(x: torch.Tensor, w: torch.Tensor, bias: Any, residual: Any, activation: Any, *rest: Any) -> torch.Tensor:
    """The fused convolution below autograd: by our engines, or by PyTorch's kernels with the reason counted."""
    without_tangents("fused_convolution", (x, w, bias, residual))

    def theirs() -> torch.Tensor:
        return unfused(original("convolution", x, w, bias, *whole(*rest)), residual, activation)

    def quick() -> torch.Tensor | None:
        if has_sides(rest[1], x.ndim - 2):
            return None
        y = quick_depthwise(x, w, bias, *whole(*rest))
        return None if y is None else unfused(y, residual, activation)

    arguments = (x, w, bias, residual, activation, *rest)
    return routed("convolution", engine.fused, theirs, arguments, settings_in_force(), quick)


def _fake(x: Any, w: Any, bias: Any, residual: Any, activation: Any, *rest: Any) -> torch.Tensor:
    x, geometry = padded(x, whole(*rest))
    return unfused(_aten.convolution.default(x, w, bias, *geometry), residual, activation)


fused_convolution = define(
    _library,
    "fused_convolution",
    # ``padding`` has a number for each axis, or two: the zeros before each axis, then those after each.
    "(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str? activation, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor",
    _forward,
    _fake,
)
