"""Converts a caller's arguments to a ConvProblem: ints become tuples, ``"same"`` becomes numbers, shapes are compared.

Every refusal is an InvalidArgument or InvalidProblem in the caller's terms: what was expected, and what was passed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..api.problem import LAYOUTS, ConvProblem
from ..api.quantization import Quantization
from ..selection.prepared import Constant
from .arrays.accepted import shape_of

PLACES = {"fwd": (0, 1, 2), "bwd_data": (2, 1, 0), "bwd_weights": (0, 2, 1)}
"""For each direction, the indices into (x, w, y) of the two operands that are read (``input1`` and ``input2`` in the
code of calls) and of the result."""
GEOMETRY = ("stride", "padding", "dilation", "groups", "layout")
"""The options of a convolution that decide its shapes; ``describe`` has their defaults."""


class Request(NamedTuple):
    """The arguments of a call."""

    direction: str
    operands: tuple[Any, Any, Any]
    """The arrays x, w and y; None for a result that is to be allocated."""
    options: tuple[Any, ...]
    """The options stride, padding, dilation, groups, activation, layout, math and accumulate, in this order."""
    bias: Any = None
    residual: Any = None
    queue: Any = None
    shape: tuple[int, ...] | None = None
    """The result's shape, where the operands do not determine it."""
    names: tuple[str, str, str] = ("x", "w", "y")
    """The names of the operands in error messages."""
    quantization: Quantization | None = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays of the call: x, w, y, bias and residual."""
        return (*self.operands, self.bias, self.residual)

    @property
    def roles(self) -> list[str]:
        """The names of x, w and y in error messages: a gradient is dy, the result is out."""
        roles = ["dy" if name == "y" and self.direction != "fwd" else name for name in self.names]
        roles[PLACES[self.direction][2]] = "out"
        return roles

    def key(self, devices: Any) -> tuple[Any, ...]:
        """The cache key of the call; ``devices`` are those of a library's arrays, None for NumPy's and OpenCL's.

        Raises AttributeError for an operand that is no array.
        """
        direction, operands, options, bias, residual, queue, shape, _, quantization = self
        first, second, written = PLACES[direction]
        input1, input2 = operands[first], operands[second]
        dtype, dtype2, kind = input1.dtype, input2.dtype, type(input1)
        return (
            direction,
            input1.shape,
            input2.shape,
            shape,
            dtype,
            # True means an equal dtype; None cannot, because NumPy's float64 dtype == None.
            dtype2 is dtype or dtype2,
            options,
            kind,
            (Constant, type(input2.array)) if type(input2) is Constant else type(input2),
            type(operands[written]),
            queue if queue is not None or kind is np.ndarray else getattr(input1, "queue", None),
            None if bias is None else (bias.shape, bias.dtype, type(bias)),
            None if residual is None else (residual.shape, residual.dtype, type(residual)),
            devices,
            quantization,
            current_policy(),
        )


def hashable(option: Any) -> Any:
    """Returns an option with its lists converted to tuples, so that a key with it can be hashed."""
    return tuple(map(hashable, option)) if isinstance(option, list | tuple) else option


def describe(
    direction: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    y_shape: Sequence[int] | None,
    dtype: str,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "nchw",
    math: str = "float32",
    names: Sequence[str] = ("x", "w", "y"),
    **epilogue: Any,
) -> ConvProblem:
    """The problem of shapes and options; ``y_shape`` is compared if it is not None, ``names`` are for error messages.

    Shapes are in ``layout``. Raises InvalidArgument, InvalidProblem.
    """
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    ndim = len(x_shape) - 2
    if ndim not in (1, 2, 3):
        raise InvalidArgument(
            f"{names[0]} must have 3, 4 or 5 axes (batch, channels and 1 to 3 of space), got shape {tuple(x_shape)}"
        )
    if len(w_shape) != len(x_shape):
        raise InvalidArgument(
            f"{names[1]} must have as many axes as {names[0]} ({len(x_shape)}), got shape {tuple(w_shape)}"
        )
    mb, ic, spatial = _split(x_shape, layout)
    oc, icg, kernel = _split(w_shape, layout)
    groups = whole("groups", groups, least=1)
    if ic % groups:
        raise InvalidArgument(
            f"{names[0]}'s channels must be a multiple of groups, but {ic} is not a multiple of {groups}"
        )
    if icg * groups != ic:
        raise InvalidArgument(
            f"{names[1]} of shape {tuple(w_shape)} takes {icg} channels a group, but {names[0]} of shape "
            f"{tuple(x_shape)} with groups={groups} has {ic // groups}"
        )
    strides = per_axis("stride", stride, ndim, least=1)
    dilations = per_axis("dilation", dilation, ndim, least=1)
    pads = _padding(padding, ndim, kernel, strides, dilations)
    numbers: dict[str, Any] = {"mb": mb, "ic": ic, "oc": oc, "g": groups}
    for axis, size, extent, step, (near, far), spread in zip(
        "dhw"[3 - ndim :], spatial, kernel, strides, pads, dilations, strict=True
    ):
        numbers |= {f"i{axis}": size, f"k{axis}": extent, f"s{axis}": step, f"d{axis}": spread}
        numbers |= {f"p{axis}": near, f"p{axis}_r": far}
    problem = ConvProblem(ndim=ndim, direction=direction, dtype=dtype, layout=layout, math=math, **numbers, **epilogue)
    if y_shape is not None and tuple(y_shape) != problem.y_shape:
        raise InvalidArgument(
            f"{names[2]} must have shape {problem.y_shape}, which {names[0]} {tuple(x_shape)}, {names[1]} "
            f"{tuple(w_shape)} and the geometry give, got {tuple(y_shape)}"
        )
    return problem


cached_problem = functools.lru_cache(maxsize=1024)(describe)
"""``describe`` of arguments that can be hashed: equal layers share one problem."""


def _split(shape: Sequence[int], layout: str) -> tuple[int, int, tuple[int, ...]]:
    shape = tuple(int(size) for size in shape)
    return (shape[0], shape[1], shape[2:]) if layout == "nchw" else (shape[0], shape[-1], shape[1:-1])


def whole(name: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``. Raises InvalidArgument."""
    if not _is_integer(value):
        raise InvalidArgument(f"{name} must be an integer, got {value!r}")
    if operator.index(value) < least:
        raise InvalidArgument(f"{name} must be {least} or more, got {value}")
    return operator.index(value)


def _is_integer(value: Any) -> bool:
    # An array has __index__ too, which raises TypeError unless the array holds one integer.
    try:
        return not isinstance(value, bool) and getattr(value, "ndim", 0) == 0 and operator.index(value) is not None
    except TypeError:
        return False


def per_axis(name: str, value: Any, ndim: int, least: int) -> tuple[int, ...]:
    """Expands one int for all axes, or one int per axis, to a tuple of ``ndim`` ints. Raises InvalidArgument."""
    if _is_integer(value):
        return (whole(name, value, least),) * ndim
    try:
        values = tuple(value)
    except TypeError:
        raise InvalidArgument(f"{name} must be an integer or one an axis, got {value!r}") from None
    if len(values) != ndim:
        raise InvalidArgument(f"{name} must be an integer or {ndim} of them for {ndim}-D data, got {value!r}")
    return tuple(whole(name, item, least) for item in values)


def _padding(
    padding: Any, ndim: int, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> list[tuple[int, int]]:
    if isinstance(padding, str):
        if padding == "valid":
            return [(0, 0)] * ndim
        if padding != "same":
            raise InvalidArgument(f"padding must be numbers, 'same' or 'valid', got {padding!r}")
        if any(step != 1 for step in strides):
            raise InvalidArgument(f"padding='same' keeps the size only with stride 1, got stride {strides}")
        # As in PyTorch, the odd element of an odd total padding goes to the far side.
        totals = [spread * (extent - 1) for spread, extent in zip(dilations, kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    if _is_integer(padding):
        return [(whole("padding", padding, 0), whole("padding", padding, 0))] * ndim
    try:
        items = list(padding)
    except TypeError:
        raise InvalidArgument(f"padding must be numbers, 'same' or 'valid', got {padding!r}") from None
    if len(items) != ndim:
        raise InvalidArgument(
            f"padding must be an integer or, for {ndim}-D data, {ndim} integers or (near, far) pairs, got {padding!r}"
        )
    pads = []
    for item in items:
        pair = (item, item) if _is_integer(item) else item
        if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise InvalidArgument(f"each axis of padding takes an integer or a (near, far) pair, got {item!r}")
        pads.append((whole("padding", pair[0], 0), whole("padding", pair[1], 0)))
    return pads


def check_bias(bias: Any, channels: int) -> None:
    """Raise InvalidArgument for a bias that does not have one element for each channel of the result."""
    if bias is not None and tuple(bias.shape) != (channels,):
        raise InvalidArgument(f"bias must have shape ({channels},), got {tuple(bias.shape)}")


def transposed_shape(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "nchw",
) -> tuple[tuple[int, ...], list[tuple[int, int]], list[int]]:
    """Returns (shape of a transposed convolution's result, padding of the convolution whose data gradient it is, zeros
    to append to x along each axis).

    Along an axis the size is ``(size - 1) * stride - near - far + dilation * (kernel - 1) + output_padding + 1``. An
    ``output_padding`` of the stride or more (PyTorch limits it by stride and dilation) exceeds the convolution's
    rounding down: it shortens the far pad, and beyond that zeros are appended to x. Raises InvalidArgument.
    """
    if layout not in LAYOUTS:
        raise InvalidArgument(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    ndim = len(x_shape) - 2
    if ndim not in (1, 2, 3) or len(w_shape) != len(x_shape):
        raise InvalidArgument(
            f"x must have 3, 4 or 5 axes and w as many, got shapes {tuple(x_shape)} and {tuple(w_shape)}"
        )
    mb, ic, spatial = _split(x_shape, layout)
    wic, ocg, kernel = _split(w_shape, layout)
    if wic != ic:
        raise InvalidArgument(f"w of shape {tuple(w_shape)} takes {wic} channels, x of shape {tuple(x_shape)} has {ic}")
    strides, dilations = per_axis("stride", stride, ndim, 1), per_axis("dilation", dilation, ndim, 1)
    extra = per_axis("output_padding", output_padding, ndim, 0)
    pads = _padding(padding, ndim, kernel, strides, dilations)
    sizes, zeros = [], [0] * ndim
    for axis in range(ndim):
        near, far = pads[axis]
        if extra[axis] >= max(strides[axis], dilations[axis]):
            raise InvalidArgument(
                f"output_padding must be smaller than stride or dilation, got {output_padding} with stride {stride} "
                f"and dilation {dilation}"
            )
        size = (spatial[axis] - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1 - near - far
        size += extra[axis]
        if size < 1:
            raise InvalidArgument(f"the output would have size {size} along axis {axis}: padding {padding} is too much")
        if extra[axis] >= strides[axis]:
            pads[axis] = (near, max(0, far - extra[axis]))
            zeros[axis] = max(0, extra[axis] - far) // strides[axis]
        sizes.append(size)
    oc = ocg * whole("groups", groups, 1)
    shape = (mb, oc, *sizes) if layout == "nchw" else (mb, *sizes, oc)
    return shape, pads, zeros


def described_problem(request: Request, dtype: str) -> ConvProblem:
    """The ConvProblem that a request for arrays of this dtype describes. Raises InvalidArgument, InvalidProblem."""
    direction, operands, options, bias, residual, _, shape, names, _ = request
    stride, padding, dilation, groups, activation, layout, math, accumulate = options
    x, w, y = operands
    dy = "dy" if names[2] == "y" else names[2]
    problem = describe(
        direction,
        shape_of(x, names[0]) if direction != "bwd_data" else shape or (),
        shape_of(w, names[1]) if direction != "bwd_weights" else shape or (),
        None if direction == "fwd" else shape_of(y, dy),
        dtype,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        math=math,
        names=(names[0], names[1], dy),
        activation=activation,
        bias=bias is not None,
        residual=residual is not None,
        accumulate=bool(accumulate),
        constant_weights=isinstance(w, Constant),
    )
    check_bias(bias, problem.channels_out)
    if residual is not None and tuple(residual.shape) != problem.out_shape:
        shape = tuple(residual.shape)
        raise InvalidArgument(f"residual must have the result's shape {problem.out_shape}, got {shape}")
    if accumulate and operands["xwy".index(problem.written)] is None:
        raise InvalidArgument("accumulate=True adds to what out holds: pass out=")
    return problem


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """An argument's sizes as a tuple of integers. Raises InvalidArgument for anything else."""
    try:
        return tuple(size.__index__() for size in shape)
    except (TypeError, AttributeError):
        raise InvalidArgument(f"{name} must be a tuple of integers, got {shape!r}") from None
