"""Quantised models run dequantised: what is rounded to integers and back is only held within the integers' range."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ...api.errors import ConvDispatchWarning
from ...elementwise import apply
from ...nn import functional
from ...tensor import Tensor
from ..call import Call, operator
from .elementwise import formula, scalar


def _along(call: Call, place: int, ndim: int) -> Any:
    """A scale or zero point as it broadcasts with x: a number, or one for each element of an axis."""
    value = call.raw(place)
    number = scalar(value)
    if number is not None:
        return number
    tensor = call.tensor(place)
    if tensor.ndim != 1:
        if tensor.size == 1:
            return functional.view(tensor, ())
        raise call.refuse("scales blocks of an axis, which is not here")
    shape = [1] * ndim
    shape[call.axis(1, ndim)] = tensor.size
    return functional.view(tensor, shape)


@operator("QuantizeLinear")
def _quantize(call: Call) -> Tensor:
    from ..types import dtype_of

    x = call.tensor(0)
    kind = call.get("output_dtype", 0)
    dtype = np.dtype(call.raw(2).dtype) if call.has(2) else dtype_of(kind, call) if kind else np.dtype(np.uint8)
    if dtype.kind not in "iu":
        raise call.refuse(f"quantises to {dtype.name}, which is not here")
    limits = np.iinfo(dtype)
    zero = _along(call, 2, x.ndim) if call.has(2) else 0
    given = {"x": x, "s": _along(call, 1, x.ndim), "z": zero}
    return apply(f"clip(round(x / s) + z, {limits.min}, {limits.max})", dtype=dtype, **given)  # type: ignore[no-any-return]


@operator("DequantizeLinear")
def _dequantize(call: Call) -> Tensor:
    x = call.tensor(0)
    maker = call.maker(0)
    scale, zero = call.raw(1), call.raw(2) if call.has(2) else np.zeros((), x.dtype)
    if maker is not None and maker.op_type == "QuantizeLinear" and list(maker.input[1:]) == list(call.node.input[1:]):
        s, z = scalar(scale), scalar(zero)
        before, _ = call.scope.find(maker.input[0])
        if s is not None and z is not None and isinstance(before, Tensor):
            warn()
            limits = np.iinfo(x.dtype)
            low, high = (limits.min - z) * s, (limits.max - z) * s
            return functional.activate(before, f"clip({low!r},{high!r})")
    given = {"x": x, "s": _along(call, 1, x.ndim)}
    if call.has(2):
        given["z"] = _along(call, 2, x.ndim)
    dtype = np.dtype(scale.dtype)
    return formula(call, "(x - z) * s" if "z" in given else "x * s", dtype, **given)


def warn() -> None:
    """Say once for each place in the caller's program that numbers are finer than the file's."""
    warnings.warn(
        "the model is quantised (QDQ): it runs dequantised, in floating point, with the integers' ranges kept",
        ConvDispatchWarning,
        stacklevel=2,
    )
