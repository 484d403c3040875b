"""benchdnn's text: knobs, then descriptors ``gXmbX_icXidXihXiwX_ocXodXohXowX_kdXkhXkwX_sdX.._pdX.._ddX.._nNAME``.

Its rules differ from this project's: a missing batch is 2; dilation 0 is dense; h alone gives a square, d alone a cube,
w alone is 1-D; missing padding is computed from the output size, and the padding at the end of an axis from the output
size and the padding at its beginning. Knobs hold for the descriptors after them, lists of values are combined, and
``*4`` after a name counts repetitions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...api.activations import ACTIVATIONS
from ...api.dtypes import DTYPES
from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ...api.quantized import QUANTIZED_TEXTS
from ..shapes import Entry, number

_LETTERS = frozenset({"g", "mb", "ic", "oc", *(a + b for a in "iokspd" for b in "dhw")})
_DIRECTIONS = {
    # Each value is (direction, has a bias); benchdnn's bias gradient (BWD_WB) is a sum, not a convolution.
    "FWD_B": ("fwd", True),
    "FWD_D": ("fwd", False),
    "FWD_I": ("fwd", False),
    "BWD_D": ("bwd_data", False),
    "BWD_W": ("bwd_weights", False),
    "BWD_WB": ("bwd_weights", False),
}
_TYPES: dict[str, tuple[str, str | None]] = {dtype.short: (name, None) for name, dtype in DTYPES.items()}
_TAGS = dict.fromkeys(["any", "undef", "abx", "nchw", "abcd", "ncw", "abc", "ncdhw", "abcde"], "nchw")
_TAGS |= dict.fromkeys(["axb", "nhwc", "acdb", "nwc", "acb", "ndhwc", "acdeb"], "nhwc")
_MATHS = {"strict": "ieee", "tf32": "tf32", "any": "fast"}
_IGNORED = re.compile(
    r"conv|mode|v[0-9]*|verbose|engine|skip-impl|impl|alg|perf-template|fix-times-per-prb|max-ms-per-prb|memory-kind|"
    r"cold-cache|ctx-init|ctx-exe|stream-kind|summary|allow-enum-tags-only|canonical|wtag|attr-scratchpad|"
    r"attr-deterministic|attr-acc-mode|cpu-isa-hints|start|mem-check|fast-ref|repeats-per-prb|num-streams"
)
"""The options of benchdnn that say how to run, check and print a problem, and are ignored."""
_TOKEN = re.compile(r'(?:[^\s"]|"[^"]*")+')


@dataclass(frozen=True)
class Knobs:
    """The settings of the options before a descriptor; each combination of the tuples' values is one problem."""

    directions: tuple[tuple[str, bool], ...] = (("fwd", False),)
    dtypes: tuple[tuple[str, str | None], ...] = (("float32", None),)
    """Pairs of the dtype of x, and for quantized convolutions the dtype of y."""
    source_layouts: tuple[str | None, ...] = (None,)
    output_layouts: tuple[str | None, ...] = (None,)
    batches: tuple[int, ...] = (0,)
    """The batch sizes; 0 stands for the batch size of the descriptor."""
    epilogues: tuple[tuple[tuple[str, object], ...], ...] = ((),)
    math: str = "float32"
    bias: bool | None = None
    scaled: bool = False
    """Whether scales or zero points were named, which only quantized convolutions have; their values are data, not
    geometry."""


def _list(value: str, known: dict[str, object], what: str) -> tuple:
    values = []
    for word in value.split(","):
        if word not in known:
            raise InvalidProblem(f"{what} {word!r} is none of {', '.join(known)}")
        values.append(known[word])
    return tuple(values)


def _dtypes(value: str) -> tuple[tuple[str, str | None], ...]:
    dtypes = []
    for word in value.split(","):
        if word.replace(":", "") in QUANTIZED_TEXTS:
            dtypes.append(QUANTIZED_TEXTS[word.replace(":", "")])
            continue
        # The older option --cfg writes one data type three times, such as f32f32f32.
        repeated = re.fullmatch(r"(b?f[0-9][0-9])\1\1", word)
        types = {repeated[1]} if repeated else set(word.split(":"))
        if len(types) > 1 or not types <= _TYPES.keys():
            raise InvalidProblem(
                f"data types must be one of {', '.join(_TYPES)} for all three tensors, or as u8:s8:u8, got {word!r}"
            )
        dtypes.append(_TYPES[types.pop()])
    return tuple(dtypes)


def _epilogue(value: str) -> tuple[tuple[str, object], ...]:
    """``--attr-post-ops=add:f32:per_tensor+relu`` as fields of ConvProblem."""
    fields: dict[str, object] = {}
    for step in value.split("+"):
        word, *numbers = step.split(":")
        if word == "sum" and not fields:
            fields["accumulate"] = True
        elif word == "add" and numbers[-1:] == ["per_tensor"] and not {"residual", "activation"} & fields.keys():
            fields["residual"] = True
        elif "activation" not in fields and (activation := _activation(word, [float(number) for number in numbers])):
            fields["activation"] = activation
        else:
            raise InvalidProblem(f"post-op {step!r} in {value!r} has no counterpart here")
    return tuple(fields.items())


def _activation(word: str, numbers: list[float]) -> str | None:
    """The activation of a post-op, or None. Raises InvalidProblem for parameters that no activation has."""
    word = word.removesuffix("_v2")
    named = {name: form for name, form in ACTIVATIONS.items() if form.onednn and form.onednn.name == word}
    for name, form in named.items():
        fixed, count = form.onednn.alpha_beta, len(form.parameters)
        if fixed is None and ((count and numbers) or len(named) == 1):
            arguments = ",".join(map(repr, numbers[:count]))
            return name + (f"({arguments})" if arguments else "")
        if fixed == () and (not numbers or len(named) == 1):
            return name
        if fixed and len(named) == 1:
            if any(abs(value - expected) > 1e-4 for value, expected in zip(numbers, fixed, strict=False)):
                raise InvalidProblem(f"post-op {word} of {numbers} has no counterpart here: {word} has {fixed}")
            return name
    return next((name for name, form in named.items() if form.onednn.alpha_beta is None), None)


_SETTERS: dict[str, Callable[[str], dict[str, object]]] = {
    "dir": lambda value: {"directions": _list(value, _DIRECTIONS, "direction")},
    "dt": lambda value: {"dtypes": _dtypes(value)},
    "cfg": lambda value: {"dtypes": _dtypes(value)},
    "stag": lambda value: {"source_layouts": _list(value, _TAGS, "layout")},
    "dtag": lambda value: {"output_layouts": _list(value, _TAGS, "layout")},
    "mb": lambda value: {"batches": tuple(number(digits) for digits in value.split(","))},
    "bia-dt": lambda value: {"bias": value != "undef"},
    "attr-scales": lambda value: {"scaled": bool(value)},
    "attr-zero-points": lambda value: {"scaled": bool(value)},
    "attr-fpmath": lambda value: {"math": _list(value.split(":")[0], _MATHS, "fpmath")[0]},
    "attr-post-ops": lambda value: {"epilogues": tuple(_epilogue(v) if v else () for v in value.split(","))},
}


def read_line(
    line: str, knobs: Knobs = Knobs(), include: Callable[[str, Knobs], list[Entry]] | None = None
) -> tuple[list[Entry], Knobs]:
    """The problems of one line, and the knobs for the lines after it.

    ``include(file, knobs)`` reads a ``--batch=file``. Raises InvalidProblem.
    """
    entries: list[Entry] = []
    for token in _TOKEN.findall(line):
        if not token.startswith("-"):
            if not token.endswith("benchdnn"):
                entries += _entries(token, knobs)
            continue
        option, _, value = token.lstrip("-").partition("=")
        option = option.lower()
        if option == "reset":
            knobs = Knobs()
        elif option == "batch" and include is not None:
            entries += include(value, knobs)
        elif option in _SETTERS:
            try:
                knobs = replace(knobs, **_SETTERS[option](value))
            except (ValueError, TypeError) as error:
                raise error if isinstance(error, InvalidProblem) else InvalidProblem(f"cannot read {token!r}") from None
        elif not _IGNORED.fullmatch(option):
            raise InvalidProblem(f"benchdnn's option {token!r} has no meaning here")
    return entries, knobs


def _entries(token: str, knobs: Knobs) -> list[Entry]:
    problem, name, count = read_descriptor(token)
    layouts = {
        source or output or "nchw": source is None or output is None or source == output
        for source, output in itertools.product(knobs.source_layouts, knobs.output_layouts)
    }
    if not all(layouts.values()):
        raise InvalidProblem("--stag and --dtag must name the same layout")
    entries = []
    for (direction, bias), (dtype, out_dtype), layout, batch, epilogue in itertools.product(
        knobs.directions, knobs.dtypes, layouts, knobs.batches, knobs.epilogues
    ):
        changes = {"direction": direction, "dtype": dtype, "layout": layout, "math": knobs.math, **dict(epilogue)}
        if out_dtype is not None and changes.get("activation") in ("relu", "relu6"):
            # A quantized convolution's table of scales bounds y, as relu and relu6 do: its problem has no activation.
            del changes["activation"]
        if out_dtype is None and knobs.scaled:
            raise InvalidProblem(f"scales and zero points are for quantized data types such as u8:s8:u8, got {dtype}")
        changes["out_dtype"] = out_dtype
        changes["bias"] = (bias if knobs.bias is None else knobs.bias) and direction == "fwd"
        changes["mb"] = batch or problem.mb
        entries.append(Entry(name or token, problem.replace(**changes), count))
    return entries


def read_descriptor(text: str) -> tuple[ConvProblem, str, int]:
    """A descriptor's forward float32 problem, its name (may be empty) and its count. Raises InvalidProblem."""
    values: dict[str, int] = {}
    name, position = "", 0
    while position < len(text):
        match = re.compile(r"([a-z]+?)([0-9]+)").match(text, position)
        if text[position] == "_":
            position += 1
        elif text[position] == "n":
            name = text[position + 1 :].strip('"')
            break
        elif match is None or match[1] not in _LETTERS:
            raise InvalidProblem(f"cannot read {text[position:]!r} in benchdnn's {text!r}")
        elif match[1] in values:
            raise InvalidProblem(f"{match[1]} stands twice in {text!r}")
        else:
            values[match[1]], position = number(match[2]), match.end()
    counted = re.fullmatch(r"(.*)\*([0-9]+)", name)
    name, count = (counted[1], number(counted[2])) if counted else (name, 1)
    return _geometry(values, text), name, count


def _geometry(values: dict[str, int], text: str) -> ConvProblem:
    axes = [axis for axis in "dhw" if _is_stated(values, axis)]
    if axes not in (["d"], ["h"], ["w"], ["h", "w"], ["d", "h", "w"]):
        raise InvalidProblem(f"sizes along {' and '.join(axes) or 'no axis'} make no problem: {text!r}")
    letters = {"d": "dhw", "h": "hw", "w": "w"}[axes[0]]
    fields = {"mb": values.get("mb", 2), "g": values.get("g", 1), "ndim": len(letters)}
    for letter in ("ic", "oc"):
        if letter not in values:
            raise InvalidProblem(f"{letter} is missing in {text!r}")
        fields[letter] = values[letter]
    for axis in letters:
        fields |= {
            key[0] + axis + key[1:]: n for key, n in _axis(values, axis if len(axes) > 1 else axes[0], text).items()
        }
    return ConvProblem(**fields)


def _is_stated(values: dict[str, int], axis: str) -> bool:
    return (
        any(values.get(letter + axis) for letter in "ikod")
        or values.get("s" + axis, 1) != 1
        or bool(values.get("p" + axis))
    )


def _axis(values: dict[str, int], axis: str, text: str) -> dict[str, int]:
    """One axis as the letters ``i k s p p_r d`` of this project, in which dilation 1 is dense."""
    for letter in "ik":
        if not values.get(letter + axis):
            raise InvalidProblem(f"{letter}{axis} is missing in {text!r}")
    size, kernel, stride = values["i" + axis], values["k" + axis], values.get("s" + axis, 1)
    dilation = values.get("d" + axis, 0) + 1
    extent = dilation * (kernel - 1) + 1
    padding, outputs = values.get("p" + axis), values.get("o" + axis)
    if padding is None:
        padding = max(0, int(((outputs - 1) * stride - size + extent) / 2)) if outputs else 0
    fields = {"i": size, "k": kernel, "s": stride, "p": padding, "p_r": padding, "d": dilation}
    if outputs:
        least_padding = (outputs - 1) * stride - size + extent - padding
        if least_padding + stride - 1 < 0:
            output = f"o{axis}{outputs}"
            raise InvalidProblem(f"{output} leaves a part of the input unread, which no padding gives: {text!r}")
        if not least_padding <= padding < least_padding + stride:
            fields["p_r"] = max(least_padding, 0)
    return fields
