"""MIOpenDriver's command line, as MIOpen's log prints it and its driver reads it.

``-F`` is a sum of directions: 1 forward, 2 backward data, 4 backward weights; 0 is all three. Missing options have the
driver's defaults (``-n 100 -c 3 -H 32 -W 32 -k 32 -y 3 -x 3``), except ``-F``: without it a line means forward.
``-m trans`` is a transposed convolution, the backward data of the convolution with the channels exchanged.
"""

from __future__ import annotations

import re

from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ..shapes import Entry

COMMAND = re.compile(r"(?:\S*MIOpenDriver\s+|^\s*(?=conv\w*\s+-))(conv\w*)(?=\s|$)")
_TYPES = {"conv": "float32", "convfp32": "float32", "convfp16": "float16", "convbfp16": "bfloat16"}
_OPTIONS = {
    # Each field of ConvProblem has a short option, a long option and the driver's default.
    "mb": ("n", "batchsize", 100),
    "ic": ("c", "in_channels", 3),
    "id": ("!", "in_d", 32),
    "ih": ("H", "in_h", 32),
    "iw": ("W", "in_w", 32),
    "oc": ("k", "out_channels", 32),
    "kd": ("@", "fil_d", 3),
    "kh": ("y", "fil_h", 3),
    "kw": ("x", "fil_w", 3),
    "pd": ("$", "pad_d", 0),
    "ph": ("p", "pad_h", 0),
    "pw": ("q", "pad_w", 0),
    "sd": ("#", "conv_stride_d", 1),
    "sh": ("u", "conv_stride_h", 1),
    "sw": ("v", "conv_stride_w", 1),
    "dd": ("^", "dilation_d", 1),
    "dh": ("l", "dilation_h", 1),
    "dw": ("j", "dilation_w", 1),
    "g": ("g", "group_count", 1),
    "ndim": ("_", "spatial_dim", 2),
    "forw": ("F", "forw", None),
    "bias": ("b", "bias", 0),
    "od": ("%", "trans_output_pad_d", 0),
    "oh": ("Y", "trans_output_pad_h", 0),
    "ow": ("X", "trans_output_pad_w", 0),
}
_WORDS = {"mode": "m", "pad_mode": "z", "in_layout": "I", "out_layout": "O", "fil_layout": "f"}
# These options of MIOpenDriver say how to run and check a problem, and change nothing about it.
_IGNORED = "i iter V verify C verification_cache t time w wall s search P printconv o dump_output S solution d in_data"
_IGNORED += " e weights a in_bias D dout_data G gpubuffer_check r pad_val"
_NAMES = {name: field for field, (short, long, _) in _OPTIONS.items() for name in ("-" + short, "--" + long)}
_NAMES |= {name: word for word, short in _WORDS.items() for name in ("-" + short, "--" + word)}
_NAMES |= {("--" if len(name) > 1 else "-") + name: "" for name in _IGNORED.split()}
_DIRECTIONS = ((1, "fwd"), (2, "bwd_data"), (4, "bwd_weights"))


def read_line(line: str) -> list[Entry]:
    """The problems of one command line, one for each direction. Raises InvalidProblem."""
    command = COMMAND.search(line)
    if command is None:
        raise InvalidProblem(f"cannot read {line!r}; expected `MIOpenDriver conv -n 1 -c 3 ...`")
    if command[1] not in _TYPES:
        raise InvalidProblem(f"{command[1]} is none of {', '.join(_TYPES)}")
    numbers, words = _options(line[command.end() :].split())
    layouts = {words[word].lower() for word in ("in_layout", "out_layout", "fil_layout") if word in words}
    dense = {"nchw": "nchw", "ncdhw": "nchw", "nhwc": "nhwc", "ndhwc": "nhwc"}
    dialect_layouts = {dense.get(layout, layout) for layout in layouts} or {"nchw"}
    if len(dialect_layouts) > 1 or not dialect_layouts <= {"nchw", "nhwc"}:
        raise InvalidProblem(f"the layouts must be all NCHW or all NHWC, got {', '.join(sorted(layouts))}")
    forw = 1 if numbers["forw"] is None else numbers["forw"] or 7
    if not 0 < forw < 8:
        raise InvalidProblem(f"-F must be a sum of 1, 2 and 4, got {forw}")
    base = {"dtype": _TYPES[command[1]], "layout": dialect_layouts.pop(), "bias": bool(numbers["bias"])}
    problems = [_problem(numbers, words, direction, base) for bit, direction in _DIRECTIONS if forw & bit]
    return [Entry(str(problem), problem) for problem in problems]


def _options(tokens: list[str]) -> tuple[dict[str, int | None], dict[str, str]]:
    numbers: dict[str, int | None] = {field: default for field, (_, _, default) in _OPTIONS.items()}
    words: dict[str, str] = {}
    remaining = iter(tokens)
    for token in remaining:
        name, equals, value = token.partition("=")
        field = _NAMES.get(name)
        if field is None:
            raise InvalidProblem(f"MIOpenDriver's option {token!r} is not known")
        value = value if equals else next(remaining, None)
        if value is None:
            raise InvalidProblem(f"{token} needs a value")
        if field in _WORDS:
            words[field] = value
        elif field:
            try:
                numbers[field] = int(value) if len(value) < 20 and value.isascii() else int("no size")
            except ValueError:
                raise InvalidProblem(f"{token} needs a number, got {value[:40]!r}") from None
    return numbers, words


def _problem(numbers: dict, words: dict, direction: str, base: dict) -> ConvProblem:
    ndim = numbers["ndim"]
    if ndim not in (2, 3):
        raise InvalidProblem(f"--spatial_dim must be 2 or 3, got {ndim}")
    values = {"ndim": ndim, "g": max(numbers["g"], 1)} | {name: numbers[name] for name in ("mb", "ic", "oc")}
    for axis in "dhw"[3 - ndim :]:
        values |= {letter + axis: numbers[letter + axis] for letter in "iksdp"}
        values["p" + axis] = _padding(words.get("pad_mode", "default"), values, axis)
    mode = words.get("mode", "conv")
    if mode not in ("conv", "trans"):
        raise InvalidProblem(f"-m must be conv or trans, got {mode!r}")
    if mode == "trans":
        values |= {"ic": values["oc"], "oc": values["ic"]}
        for axis in "dhw"[3 - ndim :]:
            extent = values["d" + axis] * (values["k" + axis] - 1) + 1
            outputs = (values["i" + axis] - 1) * values["s" + axis] + extent - 2 * values["p" + axis]
            values["i" + axis] = outputs + numbers["o" + axis]
        direction = {"fwd": "bwd_data", "bwd_data": "fwd"}.get(direction, direction)
    # With -b 1 MIOpenDriver also times a bias gradient (a sum, no convolution): only forward problems get a bias.
    forward = direction == ("bwd_data" if mode == "trans" else "fwd")
    return ConvProblem(direction=direction, **values, **base | {"bias": base["bias"] and forward})


def _padding(mode: str, values: dict[str, int], axis: str) -> int:
    size, kernel, stride = values["i" + axis], values["k" + axis], values["s" + axis]
    if mode == "default" or values["d" + axis] != 1:
        return values["p" + axis]
    if mode == "valid":
        return 0
    if mode != "same":
        raise InvalidProblem(f"-z must be same, valid or default, got {mode!r}")
    return max(kernel - (size % stride or stride), 0) // 2
