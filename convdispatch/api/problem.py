"""ConvProblem: one convolution's geometry, validated, as a value.

One alphabet everywhere (benchdnn's): ``mb ic oc id ih iw od oh ow kd kh kw sd sh sw pd ph pw dd dh dw g``, with
``pd_r ph_r pw_r`` for the far side of an asymmetric pad. Fields here, upper-case macros in kernels, the same letters
in tables, test ids, database keys and trace lines. Dilation 1 is dense.
"""

from __future__ import annotations

import dataclasses
import functools
import math as _math
import re
from dataclasses import dataclass, field
from typing import Any, get_args

from .activations import activation_macro, gradient_function, parse_activation
from .dtypes import ALL_DTYPES, DTYPES, HEADER, INTEGERS, QUANTIZED_INPUTS, storage_macros
from .errors import InvalidProblem
from .literals import Direction, Layout, Math
from .quantized import QUANTIZED_TEXTS, check_quantized

DIRECTIONS: tuple[str, ...] = get_args(Direction)
LAYOUTS: tuple[str, ...] = get_args(Layout)
MATHS: tuple[str, ...] = get_args(Math)
_AXES = "dhw"
EXTRAS = ("bias", "residual", "norm", "saved", "sums")
"""The operands that a problem may have beside x, w and y, in the order in which calls pass them."""


@dataclass(frozen=True)
class ConvProblem:
    """A convolution: what is computed, never how. Hashable; equal problems share plans and records.

    ``ndim`` counts spatial axes (1: w; 2: h, w; 3: d, h, w); unused axes have size, kernel and stride 1. ``x`` is
    ``[mb, ic, (id, ih,) iw]``, ``w`` ``[oc, ic/g, (kd, kh,) kw]``, ``y`` ``[mb, oc, (od, oh,) ow]``; with layout
    ``"nhwc"`` the channels come last in all three. ``direction`` says which of the three is written. ``bias``,
    ``residual`` and ``activation`` are applied to the written tensor in that order of addition:
    ``activation(conv + bias + residual)``; ``accumulate`` adds the result to what the output holds.
    ``constant_weights`` promises that ``w`` keeps its values, so a plan may pack it once.

    ``norm`` names the activation that follows a norm of x, ``"identity"`` for none: the convolution reads
    ``activation((x - mean) scale + shift)`` for x, with zeros for padding; the rows of the operand ``norm`` are each
    channel's mean, scale and shift, in the type of sums. A data gradient with ``norm`` goes through the activation:
    ``(conv + residual) activation'((saved - mean) scale + shift)``, where the operand ``saved`` is x.

    ``sums`` asks for one more output in the type of sums, merged in a fixed order from the written tensor as it is
    stored: of y the rows count, mean and sum of squared distances from the mean for each channel; of a data gradient
    with ``norm`` the rows sum of dx and sum of dx (saved - mean), which are the gradients of shift and scale.

    A quantized one has x's dtype ``"int8"`` or ``"uint8"``, w in int8, sums in int32, y and residual in ``out_dtype``:
    int8, uint8, int32 (the default), float32, float16. Or x and w are float8_e4m3 or float8_e5m2, sums float32, y and
    residual one of these, float32 (the default), float16 or bfloat16. Its bias, always set, is the table of
    ``Quantization.table``, of float8 ``Quantization.float8_table``.

    Raises InvalidProblem when the numbers do not describe a convolution.
    """

    mb: int = 1
    ic: int = 1
    id: int = 1
    ih: int = 1
    iw: int = 1
    oc: int = 1
    kd: int = 1
    kh: int = 1
    kw: int = 1
    sd: int = 1
    sh: int = 1
    sw: int = 1
    pd: int = 0
    ph: int = 0
    pw: int = 0
    # A far-side pad of None becomes the near side's pad; ndim of None becomes the number of axes that the sizes show.
    pd_r: int = None  # type: ignore[assignment]
    ph_r: int = None  # type: ignore[assignment]
    pw_r: int = None  # type: ignore[assignment]
    dd: int = 1
    dh: int = 1
    dw: int = 1
    g: int = 1
    ndim: int = None  # type: ignore[assignment]
    direction: str = "fwd"
    dtype: str = "float32"
    layout: str = "nchw"
    math: str = "float32"
    bias: bool = False
    residual: bool = False
    activation: str | None = None
    accumulate: bool = False
    constant_weights: bool = False
    out_dtype: str | None = None
    norm: str | None = None
    sums: bool = False
    od: int = field(init=False, compare=False, repr=False)
    oh: int = field(init=False, compare=False, repr=False)
    ow: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check_words()
        for name in _NUMBERS:
            value = getattr(self, name)
            if name.endswith("_r") and value is None:
                object.__setattr__(self, name, getattr(self, name[:-2]))
            elif isinstance(value, bool) or not hasattr(value, "__index__"):
                raise InvalidProblem(f"{name} must be an integer, got {value!r}")
            elif abs(int(value)) > _LARGEST:
                raise InvalidProblem(f"{name} must be below 2**63")
            else:
                object.__setattr__(self, name, int(value))
        self._check_numbers()
        if self.ndim is None:
            deep = any(getattr(self, name) != unit for name, unit in _DEEP)
            object.__setattr__(self, "ndim", 3 if deep else 2)
        if self.ndim not in (1, 2, 3):
            raise InvalidProblem(f"ndim must be 1, 2 or 3, got {self.ndim!r}")
        for axis in _AXES:
            object.__setattr__(self, "o" + axis, self._output_size(axis))
        self._check_unused_axes()

    def _check_words(self) -> None:
        words = ("direction", DIRECTIONS), ("dtype", (*DTYPES, *QUANTIZED_INPUTS)), ("layout", LAYOUTS), ("math", MATHS)
        for name, allowed in words:
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise InvalidProblem(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        if self.dtype in QUANTIZED_INPUTS:
            object.__setattr__(self, "out_dtype", check_quantized(self))
            object.__setattr__(self, "bias", True)
        elif self.out_dtype is not None:
            raise InvalidProblem(f"out_dtype is for x of {', '.join(QUANTIZED_INPUTS)}, got x of {self.dtype}")
        if self.activation is not None:
            parse_activation(self.activation)
            if self.accumulate:
                raise InvalidProblem("accumulate adds the plain result to the output: it takes no activation")
        if self.direction == "bwd_weights" and (self.bias or self.residual or self.activation):
            raise InvalidProblem("bwd_weights writes a gradient: it takes no bias, residual or activation")
        self._check_channel_parts()

    def _check_channel_parts(self) -> None:
        """Check ``norm`` and ``sums``, and what they cannot stand beside."""
        if not (self.norm or self.sums):
            return
        if self.norm is not None and self.norm != "identity":
            parse_activation(self.norm)
        parts = " and ".join(name for name in ("norm", "sums") if getattr(self, name))
        if self.dtype in QUANTIZED_INPUTS:
            raise InvalidProblem(f"{parts} are for floating-point data, got x of {self.dtype}")
        if self.sums and self.accumulate:
            raise InvalidProblem("sums are of a result that is written once: it takes no accumulate")
        if self.sums and self.direction == "bwd_weights":
            raise InvalidProblem("sums are of a tensor with channels of pixels, bwd_weights writes weights")
        if self.direction == "bwd_data":
            if self.norm is None:
                raise InvalidProblem("sums of bwd_data are gradients of a norm: they need norm")
            if self.bias or self.activation or self.accumulate:
                raise InvalidProblem("bwd_data with norm takes no bias, activation or accumulate")

    def _check_numbers(self) -> None:
        if self.mb < self.sums:
            raise InvalidProblem(f"mb must be {int(self.sums)} or more{' for sums' * self.sums}, got {self.mb}")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise InvalidProblem(f"{_MEANING.get(name, name)} must be 1 or more, got {name}={getattr(self, name)}")
        for name in _PADS:
            if getattr(self, name) < 0:
                raise InvalidProblem(f"padding must be 0 or more, got {name}={getattr(self, name)}")
        for name, meaning in (("ic", "input"), ("oc", "output")):
            if getattr(self, name) % self.g:
                raise InvalidProblem(
                    f"{meaning} channels must be a multiple of groups, but {name}={getattr(self, name)} is not a "
                    f"multiple of g={self.g}"
                )

    def _output_size(self, axis: str) -> int:
        size, kernel, stride = (getattr(self, letter + axis) for letter in "iks")
        near, far, dilation = getattr(self, "p" + axis), getattr(self, f"p{axis}_r"), getattr(self, "d" + axis)
        padded, extent = size + near + far, dilation * (kernel - 1) + 1
        if extent > padded:
            raise InvalidProblem(
                f"the kernel must fit into the padded input, but along {axis} it spans {extent} (k{axis}={kernel}, "
                f"d{axis}={dilation}) and the padded input {padded} (i{axis}={size}, padding {near} and {far})"
            )
        return (padded - extent) // stride + 1

    def _check_unused_axes(self) -> None:
        for axis in _AXES[: 3 - self.ndim]:
            shape = {name: getattr(self, name) for name in (f"i{axis}", f"k{axis}", f"o{axis}")}
            if set(shape.values()) != {1}:
                raise InvalidProblem(f"a {self.ndim}-D problem has no {axis} axis, got {shape}")

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # A ConvProblem is part of every warm call's key, and hashing its thirty fields costs more than all the rest.
        return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.init))

    # --- numbers derived from the fields ---------------------------------------------------------------------------

    @property
    def axes(self) -> str:
        """The spatial axes in use: ``"w"``, ``"hw"`` or ``"dhw"``."""
        return _AXES[3 - self.ndim :]

    @functools.cached_property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of x in the problem's layout."""
        return self._shape(self.mb, self.ic, "i")

    @functools.cached_property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of w in the problem's layout."""
        return self._shape(self.oc, self.ic // self.g, "k")

    @functools.cached_property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of y in the problem's layout."""
        return self._shape(self.mb, self.oc, "o")

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the tensor that the direction writes."""
        return getattr(self, _WRITTEN[self.direction] + "_shape")

    @property
    def written(self) -> str:
        """Which tensor the direction writes: ``"y"``, ``"x"`` or ``"w"``."""
        return _WRITTEN[self.direction]

    @property
    def channels_out(self) -> int:
        """Channels of the written tensor, which is the length of a bias."""
        return self.ic if self.direction == "bwd_data" else self.oc

    def _shape(self, outer: int, channels: int, letter: str) -> tuple[int, ...]:
        spatial = tuple(getattr(self, letter + axis) for axis in self.axes)
        return (outer, channels, *spatial) if self.layout == "nchw" else (outer, *spatial, channels)

    @property
    def masked(self) -> bool:
        """Whether a norm's gradient follows the data gradient; in other directions a norm precedes the convolution."""
        return self.norm is not None and self.direction == "bwd_data"

    @property
    def normalised(self) -> bool:
        """Whether the convolution reads a norm of x."""
        return self.norm is not None and self.direction != "bwd_data"

    @property
    def norm_activation(self) -> str | None:
        """The activation of ``norm``; None if it has none."""
        return None if self.norm == "identity" else self.norm

    @functools.cached_property
    def extras(self) -> tuple[str, ...]:
        """The names of the operands beside x, w and y, in the order of EXTRAS."""
        present = (self.bias, self.residual, self.norm is not None, self.masked, self.sums)
        return tuple(name for name, is_present in zip(EXTRAS, present, strict=True) if is_present)

    @property
    def epilogue_operands(self) -> tuple[str, ...]:
        """The operands that ``output.cl`` reads behind the output, in its order."""
        return tuple(name for name in self.extras if name != "sums" and (self.masked or name != "norm"))

    @property
    def quantized(self) -> bool:
        """Whether x and w are numbers of 8 bits with scales."""
        return self.dtype in QUANTIZED_INPUTS

    @property
    def itemsize(self) -> int:
        """Bytes of one element of x and w, and of y unless the convolution is quantized."""
        return ALL_DTYPES[self.dtype].itemsize

    @property
    def accumulator_size(self) -> int:
        """Bytes of one sum."""
        return ALL_DTYPES[self.dtype].accumulator_size

    @property
    def out_itemsize(self) -> int:
        """Bytes of one element of the written tensor."""
        return ALL_DTYPES[self.written_dtype].itemsize

    @property
    def written_dtype(self) -> str:
        """The dtype of the written tensor."""
        return self.out_dtype or self.dtype

    def form(self, operand: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of x, w, y, one of EXTRAS, or initial (what the output holds before)."""
        shape: tuple[int, ...]
        if operand in ("norm", "sums"):
            shape = (3, self.ic) if operand == "norm" else (2 if self.masked else 3, self.channels_out)
            return shape, "float64" if self.dtype == "float64" else "float32"
        if operand == "bias":
            return ((HEADER + 2 * self.oc,), "int32") if self.quantized else ((self.channels_out,), self.dtype)
        shape = getattr(self, operand + "_shape") if operand in "xwy" else self.out_shape
        if operand == "x" or self.out_dtype is None:
            return shape, self.dtype
        if operand != "w":
            return shape, self.out_dtype
        return shape, "int8" if self.dtype in INTEGERS else self.dtype

    @property
    def dtype_text(self) -> str:
        """The dtypes as a problem's text spells them: ``f32``, or ``u8s8s32`` where those of x, w and y differ."""
        if not self.out_dtype:
            return DTYPES[self.dtype].short
        return "".join(ALL_DTYPES[self.form(operand)[1]].short for operand in "xwy")

    @functools.cached_property
    def flops(self) -> int:
        """Floating-point operations of the direct sum, two a multiply-add, pads counted (as the field does)."""
        return 2 * self.mb * self.oc * self.od * self.oh * self.ow * (self.ic // self.g) * self.kd * self.kh * self.kw

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes moved when each of x, w and y is touched once."""
        sizes = [_math.prod(getattr(self, name + "_shape")) for name in "xwy" if name != self.written]
        return self.itemsize * sum(sizes) + self.out_itemsize * _math.prod(self.out_shape)

    @property
    def depthwise(self) -> bool:
        """Whether each group has one input channel."""
        return self.g > 1 and self.ic == self.g

    def replace(self, **changes: Any) -> ConvProblem:
        """A copy with some fields changed, validated anew."""
        return dataclasses.replace(self, **changes)

    def macros(self) -> str:
        """The geometry as OpenCL text: ``#define MB 1`` and so on for every letter, then dtype, layout, epilogue.

        ``REAL`` is the storage type, ``ACC`` the accumulation type; ``ACTIVATION(T, v)`` is always defined.
        """
        return _macros(self)

    # --- the problem as text -----------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        return self.text_of_fields()

    def text_of_fields(self) -> str:
        """The text of the fields as they are now, also where a plugin changed them against the rules."""
        words = [self.direction, self.dtype_text]
        words += [self.layout] if self.layout != "nchw" else []
        words += [self.math] if self.math != "float32" else []
        letters = [f"g{self.g}"] if self.g != 1 else []
        letters += [f"mb{self.mb}", f"ic{self.ic}", *self._along_axes("i"), f"oc{self.oc}", *self._along_axes("k")]
        letters += self._along_axes("s", default="1") + self._along_axes("p", default="0")
        if any(getattr(self, f"p{axis}_r") != getattr(self, f"p{axis}") for axis in self.axes):
            letters += [f"p{axis}_r{getattr(self, f'p{axis}_r')}" for axis in self.axes]
        letters += self._along_axes("d", default="1")
        parts = ("residual",) if self.quantized else ("bias", "residual", "accumulate")
        flags = [name for name in parts if getattr(self, name)]
        flags += [self.activation.replace(" ", "")] if self.activation else []
        flags += ["constant"] if self.constant_weights else []
        flags += [f"norm({self.norm.replace(' ', '')})"] if self.norm else []
        flags += ["sums"] if self.sums else []
        return "_".join([*words, "".join(letters)]) + "".join("+" + flag for flag in flags)

    def _along_axes(self, letter: str, default: str | None = None) -> list[str]:
        values = [str(getattr(self, letter + axis)) for axis in self.axes]
        if set(values) == {default}:
            return []
        return [letter + axis + value for axis, value in zip(self.axes, values, strict=True)]

    @classmethod
    def parse(cls, text: str) -> ConvProblem:
        """Read this project's own text, as ``str(problem)`` writes it.

        ``[direction_][dtype_][layout_][math_]letters[+bias][+residual][+accumulate][+activation][+constant]
        [+norm(activation)][+sums]``, for example ``fwd_f32_mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3+bias+relu``. Sizes
        that are missing along an axis are those of the axis before it (h gives w, or w gives h), so
        ``mb1ic4ih8oc6kh3ph1`` is square.

        Raises InvalidProblem naming what could not be read.
        """
        return _parse(cls, text)


_NUMBERS = tuple(f.name for f in dataclasses.fields(ConvProblem)[:22])
_PADS = tuple(name for name in _NUMBERS if name[0] == "p")
_POSITIVE = tuple(name for name in _NUMBERS if name not in _PADS and name != "mb")
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(ConvProblem)[:22]}
_DEEP = tuple((name, 0 if name[0] == "p" else 1) for name in _NUMBERS if name[1:2] == "d")
_WRITTEN = {"fwd": "y", "bwd_data": "x", "bwd_weights": "w"}
_MEANING = {"g": "groups"} | {
    letter + axis: word
    for letter, word in (("s", "stride"), ("d", "dilation"), ("k", "kernel size"), ("i", "input size"))
    for axis in _AXES
}
_MEANING |= {"ic": "input channels", "oc": "output channels"}


@functools.lru_cache(maxsize=4096)
def _macros(problem: ConvProblem) -> str:
    lines = [f"#define {name.upper()} {getattr(problem, name)}" for name in (*_NUMBERS, "od", "oh", "ow")]
    lines += [f"#define ICG {problem.ic // problem.g}", f"#define OCG {problem.oc // problem.g}"]
    lines += [f"#define NDIM {problem.ndim}", f"#define NHWC {int(problem.layout == 'nhwc')}"]
    lines += [f"#define {problem.direction.upper()} 1"]
    text = "\n".join(lines) + "\n" + storage_macros(problem.dtype, problem.out_dtype) + epilogue_macros(problem)
    return text + norm_macros(problem) if problem.norm else text


def norm_macros(problem: ConvProblem) -> str:
    """OpenCL text of ``norm`` for ``convdispatch/norm.cl``, after that of the storage."""
    activation = problem.norm_activation
    text = f"#define NORM 1\n#define NORM_SLOPE {int(problem.masked)}\n#define NORM_CHANNELS {problem.ic}\n"
    text += activation_macro(activation, "NORM_ACTIVATION")
    return text + (gradient_function(activation, "norm_gradient") if problem.masked else "")


def epilogue_macros(problem: ConvProblem) -> str:
    """OpenCL text of the epilogue: ``BIAS``, ``RESIDUAL``, ``ACCUMULATE``, each 1 or 0, and ``ACTIVATION(T, v)``."""
    parts = ("bias", "residual", "accumulate")
    text = "".join(f"#define {part.upper()} {int(getattr(problem, part))}\n" for part in parts)
    return text + activation_macro(problem.activation)


_LARGEST = 2**63 - 1
_LETTER = re.compile(r"([a-z]+(?:_r)?)([0-9]+)")
_LONGEST = 1000  # the most characters of a problem's text; a text with every letter has some 200


def _parse(cls: type[ConvProblem], text: str) -> ConvProblem:
    text = str(text).strip()
    if len(text) > _LONGEST:
        raise InvalidProblem(f"a problem's text has at most {_LONGEST} characters, got {len(text)}: {text[:40]!r}...")
    body, *flags = text.split("+")
    values: dict[str, Any] = {}
    dtype_fields: dict[str, Any] = {dtype.short: {"dtype": name} for name, dtype in DTYPES.items()}
    dtype_fields |= {text: {"dtype": x, "out_dtype": y} for text, (x, y) in QUANTIZED_TEXTS.items()}
    words = [(word, {"direction": word}) for word in DIRECTIONS] + [(word, {"layout": word}) for word in LAYOUTS]
    words += [*dtype_fields.items(), *((word, {"math": word}) for word in MATHS)]
    matched = True
    while matched:
        matched = False
        for word, meaning in words:
            if body.startswith(word + "_"):
                values |= meaning
                body, matched = body[len(word) + 1 :], True
                break
    position = 0
    while position < len(body):
        match = _LETTER.match(body, position)
        if match is None or match[1] not in (*_NUMBERS, "od", "oh", "ow"):
            raise InvalidProblem(f"cannot read {body[position:]!r} in {text!r}; expected such as mb1ic3ih8oc4kh3")
        if match[1] in values:
            raise InvalidProblem(f"{match[1]} stands twice in {text!r}")
        if len(match[2]) > 19:
            raise InvalidProblem(f"{match[1]} has {len(match[2])} digits, at most 19 are read")
        values[match[1]] = int(match[2])
        position = match.end()
    outputs = {name: values.pop(name) for name in ("od", "oh", "ow") if name in values}
    for flag in flags:
        if flag in ("bias", "residual", "accumulate"):
            values[flag] = True
        elif flag == "constant":
            values["constant_weights"] = True
        elif flag == "sums":
            values["sums"] = True
        elif flag.startswith("norm(") and flag.endswith(")"):
            values["norm"] = flag[len("norm(") : -1]
        else:
            values["activation"] = flag
    problem = cls(**promote_square(values))
    for name, size in outputs.items():
        if getattr(problem, name) != size:
            raise InvalidProblem(f"{text!r} says {name}{size}, its other numbers give {name}{getattr(problem, name)}")
    return problem


def promote_square(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the axes that a text leaves out, as benchdnn does: h from w or w from h, d only where d is named."""
    values = dict(values)
    named = {name[1] for name in values if name in _DEFAULTS and name not in ("mb", "ic", "oc", "g")}
    axes = "dhw" if "d" in named else "hw" if "h" in named else "w"
    if not named:
        raise InvalidProblem("a problem needs at least one size along w, such as iw8kw3")
    values.setdefault("ndim", len(axes))
    for letter in "iksd":
        _spread(values, [letter + axis for axis in axes])
    for side in ("", "_r"):
        _spread(values, ["p" + axis + side for axis in axes])
    return values


def _spread(values: dict[str, Any], names: list[str]) -> None:
    values_given = {values[name] for name in names if name in values}
    if len(values_given) == 1:
        for name in names:
            values.setdefault(name, *values_given)
