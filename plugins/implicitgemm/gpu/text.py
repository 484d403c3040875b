"""Renders ``product.cl.mako`` and its parts: the values that the templates read, and the text."""

from __future__ import annotations

import functools
from typing import Any

from convdispatch.api import kernel_text

from .form import Form

_AXES = "zyx"


def _numbers_of_phase(f: Form, field: str) -> list[str]:
    """OpenCL text of a field of the work group's phase, along each axis: variables if there are several phases."""
    return [f"{field}_{axis}" if f.phased else f"{field}_{axis}".upper() for axis in _AXES]


def _divided(f: Form, number: str, places: str) -> str:
    return f"{number} / {places}" if f.phased else f"DIVIDED({number}, {places})"


def _slot_tap(f: Form, k: int) -> tuple[int, int, int]:
    """The tap at row ``k`` of a slice of taps, relative to the slice's first tap."""
    _, rows, columns = f.run
    return k // (rows * columns), k // columns % rows, k % columns


def _slot_offset(f: Form, k: int) -> str:
    """OpenCL text of the source elements from a slice's first tap to the tap at row ``k``."""
    taps = zip(_slot_tap(f, k), _AXES.upper(), strict=True)
    return " + ".join(f"{tap} * SPREAD_{axis} * SOURCE_{axis}" for tap, axis in taps if tap) or "0"


def _part(f: Form, file: str, **more: Any) -> str:
    """Return the rendered text of another template file, with the same values."""
    return kernel_text(__package__, file, **_values(f), **more)


def _values(f: Form) -> dict[str, Any]:
    """Return the values of the templates by their names."""
    t = f.tile
    rows, columns = t.bm // t.tm, t.bn // t.tn
    warp_n, places = min(t.ln, columns), "places" if f.phased else "PLACES"
    return {
        "f": f, "t": t, "b": f.b, "bm": t.bm, "bn": t.bn, "bk": t.bk, "items": t.items, "columns": columns,
        "warp_n": warp_n, "warp_m": max(1, min(32 // warp_n, rows)), "quads_m": t.tm // 4, "quads_n": t.tn // 4,
        "axes": range(3), "names": _AXES, "capitals": _AXES.upper(), "places": places,
        "divided": functools.partial(_divided, f), "slot_tap": functools.partial(_slot_tap, f),
        "slot_offset": functools.partial(_slot_offset, f), "phases": _phases() if f.phased else "",
        **{field: _numbers_of_phase(f, field) for field in ("first", "taps", "origin")},
        "a_slots": -(-t.bk * t.bm // 4 // t.items), "a_pitch": t.bm if f.data else f.a.pitch,
        "masked": f.run is not None and any(g and not w for g, w in zip(f.guarded, f.walked, strict=True)),
    }  # fmt: skip


def _phases() -> str:
    return kernel_text(__package__, "phase.cl")


@functools.lru_cache(maxsize=256)
def product_text(f: Form) -> str:
    """The text of the kernel ``product``, without the functions that it calls."""
    return kernel_text(__package__, "product.cl.mako", **_values(f), part=functools.partial(_part, f))


@functools.lru_cache(maxsize=256)
def pack_text(f: Form) -> str:
    """The text of the kernel ``pack``."""
    return kernel_text(__package__, "pack.cl.mako", f=f, phases=_phases() if f.phased else "")
