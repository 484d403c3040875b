"""Windows over axes of space: ONNX's words for windows and padding to numbers, and the poolings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..call import BoundNode, operator

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Windows(NamedTuple):
    """Sizes of x, and the windows over it, along each axis of space."""

    sizes: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]

    def pads(self, call: BoundNode) -> list[tuple[int, int]]:
        """(near, far) along each axis, from ``pads`` or ``auto_pad``."""
        mode, ndim = call.word("auto_pad", AUTO_PADS), len(self.kernel)
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            return [
                same_pads((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, mode)
                for size, k, s, d in zip(*self, strict=True)
            ]
        pads = [0] * 2 * ndim if mode == "VALID" else [int(p) for p in call.get("pads", [0] * 2 * ndim)]
        if len(pads) != 2 * ndim:
            raise call.refuse(f"needs {2 * ndim} pads, got {pads}")
        return list(zip(pads[:ndim], pads[ndim:], strict=True))

    def options(self, call: BoundNode) -> dict[str, Any]:
        """What a convolution takes beside its pads."""
        return {"stride": tuple(self.strides), "dilation": tuple(self.dilations), "groups": call.get("group", 1)}


def same_pads(total: int, mode: str) -> tuple[int, int]:
    """A total padding as near and far; the odd one is far for SAME_UPPER."""
    total = max(0, total)
    return (total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2)


def windows_of(call: BoundNode, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Windows of ``kernel`` over ``sizes``, with the node's strides and dilations."""
    ones = [1] * len(kernel)
    return Windows(list(sizes), list(kernel), list(call.get("strides", ones)), list(call.get("dilations", ones)))


def convolution_windows(call: BoundNode, w_place: int = 1) -> Windows:
    """The windows of a convolution whose weights are the operand at ``w_place``."""
    x, w = call.shape(0), call.shape(w_place)
    if not 1 <= len(x) - 2 <= 3 or len(w) != len(x):
        raise call.refuse(f"takes x and w with 3 to 5 axes, got shapes {x} and {w}")
    kernel = list(call.get("kernel_shape", w[2:]))
    if kernel != list(w[2:]):
        raise call.refuse(f"has a kernel_shape {kernel} that w of shape {w} does not have")
    return windows_of(call, x[2:], kernel)


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
