"""The product's text: every number and name that ``product.cl.mako`` and its parts are rendered with."""

from __future__ import annotations

import functools
from typing import Any

from convdispatch.api import kernel_text

from .tiling import Tiling

_AXES = "zyx"


# Functions stand by themselves, so that the texts can be kept: what they depend on is among the values.


def _phase(tiling: Tiling, field: str, axis: int) -> str:
    """A number of the work group's phase, as text: a literal where there is one phase."""
    phases = tiling.geometry.phases
    return f"{field}_{_AXES[axis]}" if len(phases) > 1 else str(getattr(phases[0], field)[axis])


def _swizzled(tiling: Tiling, row: str) -> str:
    """What a row's chunks are exchanged by, as text."""
    return f"({row}) % 8" if tiling.row_bytes == 128 else f"({row}) / 2 % 4"


def _part(tiling: Tiling, file: str, **more: Any) -> str:
    """A part of the text, rendered with the same values."""
    return kernel_text(__package__, file, **_values(tiling), **{"number": None, **more})


def _values(tiling: Tiling) -> dict[str, Any]:
    """What the templates call by name."""
    t, geo, f = tiling.tile, tiling.geometry, tiling.format
    wgmma, many = t.engine == "wgmma", len(geo.phases) > 1
    items, planes, rowb, cr = t.items, f.planes, tiling.row_bytes, t.bk // 8
    distance, steps = tiling.under_way, t.bk // 16
    phase = functools.partial(_phase, tiling)
    values: dict[str, Any] = {
        "tiling": tiling, "t": t, "geo": geo, "f": f, "src": tiling.source,
        "dst": tiling.target if tiling.data else None,
        "data": tiling.data, "wgmma": wgmma, "many": many, "axes": range(3), "names": _AXES, "items": items,
        "planes": planes, "rowb": rowb, "cr": cr, "c8": geo.c8, "distance": distance,
        "apart": wgmma and f.float32_accurate,
        "frag_m": t.frag_m, "frag_n": t.frag_n, "sums": t.frag_m * t.frag_n * 4, "a_bytes": tiling.a_bytes,
        "b_bytes": tiling.b_bytes, "stage_bytes": tiling.stage_bytes, "phase": phase,
        "swizzled": functools.partial(_swizzled, tiling), "count": [phase("count", axis) for axis in range(3)],
        "per": "places" if many else str(geo.phases[0].places),
        "win": None, "wplane": 0, "wbytes": 0, "volume": 0, "span": 0, "rows_w": 0, "step_w": 0,
        "rows_a": t.bm * cr // items, "step_a": items // cr, "rows_k": t.bk * 8 // items, "step_k": items // 8,
        "compensated": f.float32_accurate and t.compensated, "drained": tiling.drained,
        "batches": [[k] for k in range(steps)] if tiling.drained and t.flush_every == 0 else [list(range(steps))],
        "a_base": "stage_at", "a_plane": tiling.a_bytes, "b_const": planes * tiling.a_bytes,
    }  # fmt: skip
    if t.window:
        wbytes, volume = tiling.window_bytes * planes, geo.phases[0].volume
        values |= {"win": tiling.window, "wplane": tiling.window_bytes, "wbytes": wbytes, "volume": volume,
                   "span": volume - distance, "rows_w": -(-tiling.window_rows * cr // items), "step_w": items // cr,
                   "a_base": "window_at", "a_plane": tiling.window_bytes, "b_const": 2 * wbytes}  # fmt: skip
    return values


def product_text(tiling: Tiling) -> str:
    """The kernel ``product`` for a tiling; what it calls comes before it (``plan.py``)."""
    return kernel_text(__package__, "product.cl.mako", **_values(tiling), part=functools.partial(_part, tiling))
