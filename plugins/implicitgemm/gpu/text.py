"""Renders ``product.cl.mako`` and its parts: the values that the templates read, and the text."""

from __future__ import annotations

import functools
from typing import Any

from convdispatch.api import kernel_text

from .product import Product

_AXES = "zyx"


# The values that templates read are module-level functions or partials of them, because rendered texts are cached by
# these values.


def _phase(p: Product, field: str, axis: int) -> str:
    """OpenCL text of a field of the work group's phase: a literal if there is one phase, otherwise a variable."""
    phases = p.geometry.phases
    return f"{field}_{_AXES[axis]}" if len(phases) > 1 else str(getattr(phases[0], field)[axis])


def _part(p: Product, file: str, **more: Any) -> str:
    """Return the rendered text of another template file, with the same values."""
    return kernel_text(__package__, file, **_values(p), **more)


def _values(p: Product) -> dict[str, Any]:
    """Return the values of the templates by their names."""
    t, geo = p.tile, p.geometry
    rows, columns = t.bm // t.tm, t.bn // t.tn
    warp_n = min(t.ln, columns)
    several_phases = len(geo.phases) > 1
    phase = functools.partial(_phase, p)
    return {
        "p": p, "t": t, "geo": geo, "src": geo.source, "strides": geo.source.axes, "b": p.b, "bm": t.bm, "bn": t.bn,
        "bk": t.bk, "items": t.items, "columns": columns, "warp_n": warp_n,
        "warp_m": max(1, min(32 // warp_n, rows)), "quads_m": t.tm // 4, "quads_n": t.tn // 4, "axes": range(3),
        "names": _AXES, "many": several_phases, "phase": phase, "count": [phase("count", axis) for axis in range(3)],
        "per": "places" if several_phases else str(geo.phases[0].places),
    }  # fmt: skip


def product_text(p: Product) -> str:
    """The text of the kernel ``product``, without the functions that it calls."""
    return kernel_text(__package__, "product.cl.mako", **_values(p), part=functools.partial(_part, p))
