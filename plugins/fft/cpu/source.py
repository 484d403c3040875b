"""The OpenCL text of a geometry's program: each kernel's macros and calls of straight-line functions."""

from __future__ import annotations

import math
from typing import Any

from convdispatch.api import ConvProblem, define, epilogue_macros, kernel_text, storage_macros
from convdispatch.api.cpu import transposed

from ..transforms import half
from .code import forward_functions, inverse_functions
from .geometry import Geometry

_AXES = "dhw"
STREAMED_BYTES = 24e6
"""Bytes of a kernel's spectrum from which on it is written with stores that bypass the caches."""


def program_text(g: Geometry) -> str:
    """The text of the forward transforms, of the source and of the kernel or dy, the product, the inverse transform."""
    p, lanes = g.problem, g.lanes
    text = define(LANES=lanes, V=f"float{lanes}") + storage_macros(p.dtype)
    # The epilogue macros have no bias, because the bias is added to the vectors of a line after the inverse transform.
    text += epilogue_macros(p.replace(bias=False))
    text += kernel_text(__package__, "common.cl.mako", lanes=lanes, transposed=transposed) + _forward(g, "source")
    if g.weights_gradient:
        return text + _forward(g, "second") + _product(g) + _gradient(g)
    return text + _kernel(g) + _product(g) + _inverse(g)


def _define(values: dict[str, Any]) -> str:
    """Define macros anew, because an earlier kernel of the program may have defined them differently."""
    return "".join(f"#undef {name.split('(')[0]}\n#define {name} {value}\n" for name, value in values.items())


def _along(g: Geometry, values: tuple[int, ...]) -> list[int]:
    """Values along d, h, w in the order of the transforms; axes that are not transformed come last."""
    untransformed = [axis for axis in (2, 1, 0) if axis not in g.order]
    return [values[axis] for axis in (*g.order, *untransformed)]


def _numbered(name: str, values: list[Any]) -> dict[str, Any]:
    return {f"{name}{number}": value for number, value in enumerate(values)}


def _tensor(g: Geometry, which: str) -> dict[str, Any]:
    """Macros of a tensor's strides and of how tiles cut it; ``which`` is x or y."""
    p = g.problem
    sizes = tuple(getattr(p, ("i" if which == "x" else "o") + axis) for axis in _AXES)
    channels = p.ic if which == "x" else p.oc
    pixel = channels if p.layout == "nhwc" else 1
    strides = (sizes[1] * sizes[2] * pixel, sizes[2] * pixel, pixel)
    axes = g.tiling.axes
    counts, tile_strides = [axis.tiles for axis in axes], [axes[1].tiles * axes[2].tiles, axes[2].tiles, 1]
    ordered = zip(_along(g, tuple(tile_strides)), _along(g, tuple(counts)), strict=True)
    tiles = [f"((t) / {stride} % {count})" for stride, count in ordered]
    macros = {"C": channels // p.g, "G": p.g, "PLANE": f"{math.prod(sizes)}L", "TILES": g.tiling.tiles}
    macros |= {"CHANNEL": 1 if p.layout == "nhwc" else math.prod(sizes)}
    macros |= {"TOTAL": f"{p.mb * channels * math.prod(sizes)}L"}
    macros |= _numbered("X", _along(g, sizes)) | _numbered("A", _along(g, strides))
    macros |= {f"TILE{number}(t)": text for number, text in enumerate(tiles)}
    macros |= _numbered("N", _along(g, g.tiling.sizes))
    return macros


def _panel(g: Geometry, blocks: int, rows: int, stride: int, counts: tuple[int, ...]) -> dict[str, Any]:
    slot, lines = max(1, g.slot(counts)), g.lines(counts) * 2 * g.lanes
    return {"BLOCKS": blocks, "ROWS": rows, "STRIDE": f"{stride}L", "SLOT_": slot, "LINES": lines}


def _passes(g: Geometry, name: str, counts: tuple[int, ...], inverse: bool) -> str:
    """OpenCL loops that transform all axes but the real one, between the slot and the spectrum."""
    order, sizes, pair = g.order, g.tiling.sizes, 2 * g.lanes
    if len(order) == 1:
        return ""
    frequencies = half(sizes[order[0]])
    calls = []

    def call(function: str, slot: str, spectrum: str | None) -> str:
        arguments = [slot] if spectrum is None else [spectrum, slot] if inverse else [slot, spectrum]
        return f"{name}_{function}({', '.join(arguments)});"

    if len(order) == 2:
        for k in g.edges:
            calls.append(call("edge", f"slot + {k} * LINES", f"s + {g.column(k)} * STRIDE"))
        count = frequencies - len(g.edges)
        if count:
            column_call = call("column", "slot + k * LINES", f"s + ({g.column(1)} + (k - 1) * N1) * STRIDE")
            calls.append(f"ONCE for (int k = 1; k <= {count}; ++k) {column_call}")
    else:
        middle = f"ONCE for (int j = 0; j < {counts[order[2]]}; ++j) " + call(
            "middle", f"slot + k * LINES + j * (N1 * {pair})", None
        )
        last = "ONCE for (int j = 0; j < N1; ++j) " + call(
            "column", f"slot + k * LINES + j * {pair}", "s + (k * N1 + j) * N2 * STRIDE"
        )
        in_order = (last, middle) if inverse else (middle, last)
        calls.append(f"ONCE for (int k = 0; k < {frequencies}; ++k) {{ {in_order[0]} {in_order[1]} }}")
    return "".join(f"    {line}\n" for line in calls)


def _forward(g: Geometry, name: str) -> str:
    """The transform of the source's tiles, or of dy's in the weights' gradient, "second"."""
    problem, pads = g.problem, tuple(axis.pad for axis in g.tiling.axes)
    counts, blocks, stride = g.whole, g.source_blocks, g.source_stride
    if name == "second":
        pads, counts, blocks, stride = (0, 0, 0), g.steps, g.blocks, g.second_stride
    macros = _tensor(g, "y" if name == "second" or problem.direction == "bwd_data" else "x")
    macros |= _panel(g, blocks, g.rows, stride, counts)
    macros |= {"LINE": -(-counts[g.order[0]] // g.lanes) * g.lanes}
    macros |= _numbered("G", _along(g, counts)) | _numbered("S", _along(g, g.steps)) | _numbered("P", _along(g, pads))
    values = {
        "name": name,
        "macros": _define(macros),
        "inter": problem.layout == "nhwc",
        "unit": macros["A0"] == 1 and problem.layout == "nchw",
        "depth": len(g.order),
        "passes": _passes(g, name, counts, False),
    }
    return forward_functions(g, name, counts, stride, name == "second") + kernel_text(
        __package__, "forward.cl.mako", **values
    )


def _weights(p: ConvProblem, lane: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """(macros of w's strides if vectors run along ``lane``, which is ic or oc; strides of w's taps)."""
    icg, volume = p.ic // p.g, p.kd * p.kh * p.kw
    per_ic, per_tap = (1, icg) if p.layout == "nhwc" else (volume, 1)
    along = {"ic": per_ic, "oc": icg * volume}
    row = "oc" if lane == "ic" else "ic"
    macros = {"LANE": along[lane], "ROW": along[row], "GROUP": f"{p.oc // p.g * icg * volume}L"}
    return macros, (p.kh * p.kw * per_tap, p.kw * per_tap, per_tap)


def _kernel(g: Geometry) -> str:
    p, axes = g.problem, g.tiling.axes
    lane = "ic" if (p.direction == "bwd_data") ^ g.along_c else "oc"
    macros, strides = _weights(p, lane)
    macros |= _panel(g, g.kernel_blocks, g.kernel_rows, g.kernel_stride, g.spans)
    macros |= _numbered("K", _along(g, tuple(axis.taps for axis in axes))) | _numbered("A", _along(g, strides))
    macros |= _numbered("D", _along(g, tuple(axis.dilation for axis in axes))) | _numbered("G", _along(g, g.spans))
    macros |= _numbered("N", _along(g, g.tiling.sizes))
    macros |= {"N": g.c if g.along_c else g.n, "SCALE": f"{g.tiling.scale:.9g}f"}
    values = {
        "name": "kernels",
        "lane": macros["LANE"],
        "macros": _define(macros),
        "flipped": axes[g.order[0]].flipped,
        "depth": len(g.order),
        "passes": _passes(g, "kernels", g.spans, False),
    }
    stream = 4 * g.frequencies * g.kernel_stride > STREAMED_BYTES
    return forward_functions(g, "kernels", g.spans, g.kernel_stride, True, stream) + kernel_text(
        __package__, "kernel.cl.mako", **values
    )


def _product(g: Geometry) -> str:
    config = g.config
    if g.weights_gradient:
        left, right = (g.blocks, g.rows, g.second_stride), (g.source_blocks, g.rows, g.source_stride)
        if g.along_oc:
            left, right = right, left
        mr = 4
    else:
        left, right = (g.source_blocks, g.rows, g.source_stride), (g.kernel_blocks, g.kernel_rows, g.kernel_stride)
        mr = config["mr"]
    result = (g.result_blocks, g.result_rows, g.result_stride)
    macros: dict[str, Any] = {}
    for name, (blocks, rows, stride) in zip("ABC", (left, right, result), strict=True):
        macros |= {f"{name}_BLOCKS": blocks, f"{name}_ROWS": rows, f"{name}_STRIDE": f"{stride}L"}
    if g.along_c:
        mr = 4 if g.n < 4 and g.lanes == 16 else 2
        macros["BLOCKS_K"] = g.source_blocks
        return kernel_text(
            __package__, "dots.cl.mako", macros=_define(macros), heights=[mr, 1], count=g.n, lanes=g.lanes
        )
    heights = [4] if g.weights_gradient else [mr, *(m for m in (4, 2, 1) if m < mr)]
    widths = [v for v in (config["nv"], 1) if v <= config["nv"]]
    return kernel_text(
        __package__,
        "product.cl.mako",
        macros=_define(macros),
        along=not g.weights_gradient,
        heights=heights,
        widths=sorted(set(widths), reverse=True),
    )


def _inverse(g: Geometry) -> str:
    p = g.problem
    macros = _tensor(g, "x" if p.direction == "bwd_data" else "y")
    macros |= _panel(g, g.blocks, g.rows, g.result_stride, g.steps)
    macros |= _numbered("Y", _along(g, tuple(axis.places for axis in g.tiling.axes)))
    macros |= {"LINE": -(-g.steps[g.order[0]] // g.lanes) * g.lanes}
    macros |= _numbered("S", _along(g, g.steps))
    values = {
        "macros": _define(macros),
        "inter": p.layout == "nhwc",
        "unit": macros["A0"] == 1 and p.layout == "nchw",
        "depth": len(g.order),
        "passes": _passes(g, "inverse", g.steps, True),
        "bias": p.bias,
        "again": not (p.residual or p.accumulate),
    }
    wanted = tuple(tuple(range(step)) for step in g.steps)
    return inverse_functions(g, "inverse", wanted, g.result_stride) + kernel_text(
        __package__, "inverse.cl.mako", **values
    )


def _gradient(g: Geometry) -> str:
    p = g.problem
    macros, strides = _weights(p, "oc" if g.along_oc else "ic")
    macros |= _panel(g, g.result_blocks, g.result_rows, g.result_stride, g.taps)
    macros |= _numbered("K", _along(g, g.taps)) | _numbered("A", _along(g, strides))
    macros |= _numbered("N", _along(g, g.tiling.sizes))
    scale = g.tiling.scale / math.prod(g.prescales)
    macros |= {"N": g.d if g.along_oc else g.n, "SCALE": f"{scale!r}f"}
    values = {
        "macros": _define(macros),
        "depth": len(g.order),
        "passes": _passes(g, "inverse", g.taps, True),
        "accumulate": p.accumulate,
        "lane": macros["LANE"],
    }
    return inverse_functions(g, "inverse", g.tiling.outputs, g.result_stride) + kernel_text(
        __package__, "gradient.cl.mako", **values
    )
