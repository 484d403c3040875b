"""The space of problems that the generated cases cover: the letters that vary, and their values, for each kind.

A kind is a form of channels (dense, grouped, depthwise, multiplier) in a rank. In each kind every pair of values occurs
in some case, and every single value occurs in each stratum, which is a corner that only a specialised kernel takes.
Heights and widths share no value, so that no image is square; most sizes are odd.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...api.dtypes import DTYPES, FLOAT8, INTEGERS, OUTPUTS
from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from .covering import Array, Row, cover

SEED = 2026
FORMS: dict[str, dict[str, Sequence[int]]] = {
    "dense": {"ic": (1, 3, 16, 17), "oc": (1, 5, 16, 19)},
    "grouped": {"g": (2, 3), "icg": (2, 3, 17), "ocg": (2, 5, 16)},
    "depthwise": {"g": (5, 8, 17)},
    "multiplier": {"g": (3, 8), "ocg": (2, 3)},
}
"""The channels of each form of convolution, per group if it has groups. A multiplier is depthwise with several filters
per channel."""
_AXES: dict[int, dict[str, Sequence[int]]] = {
    1: {"mb": (1, 3, 67), "iw": (9, 16, 33, 131), "kw": (1, 3, 4), "sw": (1, 2, 3), "dw": (1, 2), "pw": (0, 1, 3)},
    2: {"mb": (1, 2, 67), "ih": (7, 10, 13), "iw": (6, 14, 99), "kh": (1, 2, 3, 5), "kw": (1, 2, 3, 5)}
    | {"sh": (1, 2, 3), "sw": (1, 2, 3), "dh": (1, 2), "dw": (1, 3), "ph": (0, 1, 2), "pw": (0, 1, 2)},
    3: {"mb": (1, 2, 66), "id": (3, 4), "ih": (5, 6), "iw": (4, 7, 99), "kd": (1, 2, 3), "kh": (1, 2, 3), "kw": (1, 3)}
    | {"sd": (1, 2), "sh": (1, 2), "sw": (1, 2), "dd": (1, 2), "dh": (1, 2), "dw": (1, 2)}
    | {"pd": (0, 1), "ph": (0, 1), "pw": (0, 1)},
}
MAX_FLOPS = 2e7
"""The most operations of a generated case, because the reference computes them all: a case large in one size is small
in others."""
MAX_ELEMENTS = 60_000
"""The most elements of a generated case's images, which each check reads and writes."""
_ACCUMULATING = ("accumulate", "bias+accumulate", "residual+accumulate", "bias+residual+accumulate")
_EPILOGUES = (
    *_ACCUMULATING,
    "bias",
    "residual",
    "bias+residual",
    "bias+leaky_relu(0.5)",
    "residual+relu",
    "bias+residual+relu",
)
_SKEWS = (0, 1, -1)
"""The values of the padding at the end of an axis minus that at its beginning; the padding stays at least 0."""
_UNPADDED = {"ph": 0, "pw": 0, "skew_h": 0, "skew_w": 0}
_DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
_QUANTIZED: dict[str, Sequence[Any]] = {
    "dtype": tuple(INTEGERS),
    "out_dtype": tuple(OUTPUTS["int8"]),
    "residual": (False, True),
    "layout": ("nchw", "nhwc"),
}


_FLOAT8 = _QUANTIZED | {
    "dtype": tuple(FLOAT8),
    "out_dtype": tuple(OUTPUTS["float8_e4m3"]),
    "math": ("float32", "tf32"),
}


@dataclass(frozen=True)
class Block:
    """One covering array: its name (a prefix of its cases' names), the level of its cases, its letters and strata."""

    name: str
    level: str
    letters: Mapping[str, Sequence[Any]]
    strata: Sequence[Row]

    @functools.cached_property
    def array(self) -> Array:
        """The covering array, computed on first use, because all of them together take seconds."""
        return cover(self.letters, _is_case, self.strata, SEED)

    def named(self) -> list[tuple[str, Row]]:
        """The rows with the names of their cases."""
        return [(f"{self.name}.{number:02}", row) for number, row in enumerate(self.array.rows, 1)]


def _square(kernel: int, stride: int = 1, **further: Any) -> Row:
    """A stratum in two dimensions: one kernel size, one stride, no dilation, the same padding on both sides."""
    sizes = {"kh": kernel, "kw": kernel, "sh": stride, "sw": stride, "dh": 1, "dw": 1}
    return sizes | {"skew_h": 0, "skew_w": 0} | further


def _strata(form: str) -> list[Row]:
    """The strata of a form; some have many channels, because transforms and tensor cores refuse few."""
    many: dict[str, list[Row]] = {
        "dense": [{"ic": 17, "oc": 19}, {"ic": 16, "oc": 16}],
        "grouped": [{"icg": 17, "ocg": 16}],
    }
    wide = many.get(form, [{}])
    skewed = {name: value for name, value in (_square(3) | wide[0]).items() if not name.startswith("skew")}
    dilated = _square(3) | wide[0] | {"dh": 2, "dw": 3}  # The axes have different dilations.
    strata = [_square(3, **row) for row in wide] + [_square(3, 2), _square(5, **wide[-1]), skewed, dilated, _UNPADDED]
    return strata + ([_square(1)] if form in many else [])


def problem_of(row: Mapping[str, Any]) -> ConvProblem | None:
    """The problem of a row, or None if the kernel does not fit."""
    own = ("icg", "ocg", "epilogue")
    values = {name: value for name, value in row.items() if name not in own and not name.startswith("skew")}
    for part in filter(None, row.get("epilogue", "").split("+")):
        values |= {part: True} if part in ("bias", "residual", "accumulate") else {"activation": part}
    values |= _channels(row)
    for name in [name for name in row if name.startswith("skew")]:
        values[f"p{name[-1]}_r"] = max(0, row["p" + name[-1]] + row[name])
    try:
        return ConvProblem(**values)
    except InvalidProblem:
        return None


def _channels(row: Mapping[str, Any]) -> dict[str, int]:
    """``g``, ``ic`` and ``oc`` of a row, which has them or the channels per group."""
    if "g" not in row:
        return {"g": 1, "ic": row["ic"], "oc": row["oc"]}
    return {"g": row["g"], "ic": row["g"] * row.get("icg", 1), "oc": row["g"] * row.get("ocg", 1)}


def _is_case(row: Mapping[str, Any]) -> bool:
    """Whether the kernel fits and the case is small, by arithmetic alone, because it is called for very many rows."""
    if row.get("direction") == "bwd_weights" and row.get("epilogue", "accumulate") != "accumulate":
        return False
    g, ic, oc = _channels(row).values()
    pixels, places, taps = 1, 1, 1
    for axis in "dhw"[3 - row["ndim"] :]:
        size, kernel, before = row["i" + axis], row["k" + axis], row["p" + axis]
        slack = size + before + max(0, before + row["skew_" + axis]) - row["d" + axis] * (kernel - 1) - 1
        if slack < 0:
            return False
        pixels, places, taps = pixels * size, places * (slack // row["s" + axis] + 1), taps * kernel
    if 2 * row["mb"] * oc * places * (ic // g) * taps > MAX_FLOPS:
        return False
    return row["mb"] * max(ic * pixels, oc * places) <= MAX_ELEMENTS


def _letters(form: str, ndim: int, further: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    skews = {f"skew_{axis}": _SKEWS for axis in "dhw"[3 - ndim :]}
    return {
        "ndim": (ndim,),
        **{name: tuple(values) for name, values in further.items()},
        **FORMS[form],
        **_AXES[ndim],
        **skews,
    }


@functools.cache
def blocks() -> tuple[Block, ...]:
    """Every covering array."""
    arrays = []
    either = {"direction": _DIRECTIONS, "layout": ("nchw", "nhwc")}
    back = _DIRECTIONS[1:]
    dtypes = sorted((name for name in DTYPES if name != "float32"), key=lambda name: DTYPES[name].itemsize)
    typed = [{"dtype": dtype} for dtype in dtypes]
    for form in FORMS:
        strata = _strata(form)
        plain = [one for one in strata if one.get("dh") != 2 or form == "grouped"]
        backward = [{**stratum, "direction": direction} for direction in back for stratum in plain]
        channels_last = [{**stratum, "direction": "fwd"} for stratum in plain]
        channels_last += [{**strata[0], "direction": direction} for direction in back]
        arrays += [
            _block(f"{form}_2d.fwd", "core", form, 2, strata, direction=["fwd"]),
            _block(f"{form}_2d.bwd", "training", form, 2, backward, direction=back),
            _block(f"{form}_2d.nhwc", "full", form, 2, channels_last, direction=_DIRECTIONS, layout=["nhwc"]),
            _block(f"{form}_2d.dtypes", "full", form, 2, [*typed, _UNPADDED], **either, dtype=dtypes),
            _block(f"{form}_1d", "full", form, 1, (), **either),
            _block(f"{form}_3d", "full", form, 3, (), **either),
        ]
        if form != "multiplier":
            fused = either | {"direction": _DIRECTIONS, "epilogue": _EPILOGUES}
            # Plugins have kernels of their own for 1x1 and 3x3 filters, with epilogues of their own.
            corners = [_square(kernel) for kernel in ((3,) if form == "depthwise" else (1, 3))]
            epilogues = [
                {**corner, "epilogue": one, "direction": direction}
                for corner in corners
                for one in _ACCUMULATING
                for direction in _DIRECTIONS[:2]
            ]
            epilogues.append({"epilogue": "accumulate", "direction": "bwd_weights"})
            epilogues += [
                {"epilogue": one, "direction": direction}
                for one in _EPILOGUES
                if one not in _ACCUMULATING
                for direction in _DIRECTIONS[:2]
            ]
            arrays.append(_block(f"{form}_2d.epilogue", "full", form, 2, epilogues, **fused))
        # Quantized cases are forward convolutions of every rank; those of the strata exist in both layouts.
        int8 = [{**stratum, "layout": "nhwc"} for stratum in strata]
        arrays.append(_block(f"{form}_2d.int8", "full", form, 2, int8, **_QUANTIZED))
        arrays.append(_block(f"{form}_2d.float8", "full", form, 2, int8, **_FLOAT8))
        if form in ("dense", "grouped"):
            arrays += [_block(f"{form}_{ndim}d.int8", "full", form, ndim, (), **_QUANTIZED) for ndim in (1, 3)]
    return tuple(arrays)


def _block(name: str, level: str, form: str, ndim: int, strata: Sequence[Row], **further: Sequence[Any]) -> Block:
    return Block(name, level, _letters(form, ndim, further), strata)


def describe(names: Collection[str]) -> list[str]:
    """A line for each array that has cases among ``names``: their number, and the letters that vary."""
    lines = []
    for block in blocks():
        count = sum(name in names for name, _ in block.named())
        if count:
            letters = " ".join(f"{name}={','.join(map(str, values))}" for name, values in block.letters.items())
            lines.append(f"{block.name}: {count} cases hold all {block.array.pairs} pairs of {letters}")
    return lines
