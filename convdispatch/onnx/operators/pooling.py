"""Pooling over windows and over whole pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator
from .geometry import windows_of

_KINDS = {"MaxPool": "max", "AveragePool": "average", "LpPool": "lp"}


@operator(*_KINDS)
def _pool(call: BoundNode) -> Any:
    x, kind = call.tensor(0), _KINDS[call.node.op_type]
    windows = windows_of(call, x.shape[2:], call.get("kernel_shape"))
    (_, kernel, strides, dilations), pads = windows, windows.pads(call)
    ceil = bool(call.get("ceil_mode", 0)) and call.get("auto_pad", "NOTSET") == "NOTSET"
    options: dict[str, Any] = {}
    if kind == "average":
        options["count_include_pad"] = bool(call.get("count_include_pad", 0))
    if kind == "lp":
        options["p"] = call.get("p", 2)
    narrow = x.dtype.kind in "iu"
    as_they_are = kind == "max" and len(kernel) == 2 and x.dtype.itemsize == 1 and not any(call.node.output[1:])
    if narrow and not as_they_are:  # Integers of at most 16 bits are exact in float32.
        if x.dtype.itemsize > 2:
            raise call.refuse(f"pools {x.dtype.name}, which is not here")
        dtype, x = x.dtype, x.astype(np.float32)
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    if any(p > r for pair, r in zip(pads, reach, strict=True) for p in pair):
        raise call.refuse(f"pads {pads}, more than its windows of {kernel} reach")
    if any(call.node.output[1:]):
        if len(kernel) != 2 or narrow:
            raise call.refuse(f"is asked for the places of the largest values of {x.ndim - 2} axes, which are not here")
        return functional.max_pool_with_places(
            x, tuple(kernel), tuple(strides), tuple(pads), dilation=tuple(dilations), ceil_mode=ceil,
            column_major=bool(call.get("storage_order", 0)),
        )  # fmt: skip
    y = functional.pool(kind, x, kernel, strides, pads, dilation=dilations, ceil_mode=ceil, **options)
    return y.astype(dtype) if narrow and not as_they_are else y


@operator("GlobalAveragePool", "GlobalMaxPool")
def _whole(call: BoundNode) -> Tensor:
    x, operation = call.tensor(0), "mean" if call.node.op_type == "GlobalAveragePool" else "max"
    if operation == "mean" and x.ndim == 4:
        return functional.adaptive_avg_pool(x, 1)
    return reduce(operation, "x", tuple(range(2, x.ndim)), keepdims=True, x=x)  # type: ignore[no-any-return]


@operator("GlobalLpPool")
def _whole_lp(call: BoundNode) -> Tensor:
    x, p = call.tensor(0), float(call.get("p", 2))
    sums = reduce("sum", f"abs(x) ** {p}", tuple(range(2, x.ndim)), keepdims=True, x=x)
    return apply(f"s ** {1 / p}", s=sums)  # type: ignore[no-any-return]
