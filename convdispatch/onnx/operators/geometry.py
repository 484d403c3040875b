"""ONNX's words for windows and padding to numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import Call

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def same_pads(total: int, mode: str) -> tuple[int, int]:
    """A total padding as near and far; the odd one lies far for SAME_UPPER."""
    total = max(0, total)
    return (total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2)


def pads_of(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """(near, far) along each axis, from ``pads`` or ``auto_pad``."""
    mode, ndim = call.word("auto_pad", AUTO_PADS), len(sizes)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return [
            same_pads((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, mode)
            for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
    pads = [0] * 2 * ndim if mode == "VALID" else list(call.get("pads", [0] * 2 * ndim))
    if len(pads) != 2 * ndim:
        raise call.refuse(f"needs {2 * ndim} pads, got {pads}")
    return list(zip(pads[:ndim], pads[ndim:], strict=True))


def geometry(call: Call, w_place: int = 1) -> tuple[list[int], list[int], list[int], list[int]]:
    """Sizes of x, of the kernel, strides and dilations along the axes of space."""
    x, w = call.shape(0), call.shape(w_place)
    ndim = len(x) - 2
    if not 1 <= ndim <= 3 or len(w) != len(x):
        raise call.refuse(f"takes x and w with 3 to 5 axes, got shapes {x} and {w}")
    kernel = list(call.get("kernel_shape", w[2:]))
    if kernel != list(w[2:]):
        raise call.refuse(f"has a kernel_shape {kernel} that w of shape {w} does not have")
    return list(x[2:]), kernel, list(call.get("strides", [1] * ndim)), list(call.get("dilations", [1] * ndim))
