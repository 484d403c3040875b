"""ONNX's words for windows and padding to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..call import BoundNode

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
