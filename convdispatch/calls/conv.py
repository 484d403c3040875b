"""conv, conv_backward_data, conv_backward_weights, conv_transpose: the calls that a framework makes.

Arrays are NumPy, ``pyopencl.array.Array`` or ``convdispatch.Tensor``; what comes in decides what goes out. NumPy
calls return when the result is there; the others enqueue on their queue and return at once.

A warm call is one look-up: everything that shapes, dtypes and options decide was decided when they were first seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..device.kernels import Programs
from ..selection import dispatch
from ..selection.prepared import Constant, constant
from .arguments import describe, transposed_shape
from .arrays import Call, is_array
from .extending import extended

__all__ = ["constant", "conv", "conv_backward_data", "conv_backward_weights", "conv_transpose"]

_WRITTEN = {"fwd": 2, "bwd_data": 0, "bwd_weights": 1}
_calls = Programs()
dispatch.on_forget(_calls.drop)


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    activation: str | None = None,
    residual: Any = None,
    layout: str = "nchw",
    math: str = "float32",
    out: Any = None,
    queue: Any = None,
    accumulate: bool = False,
) -> Any:
    """Convolve: ``activation(x * w + bias + residual)``.

    Shapes, with 1 to 3 axes of space: x ``[mb, ic, h, w]``, w ``[oc, ic/groups, kh, kw]``, bias ``[oc]``, residual
    and result ``[mb, oc, oh, ow]``; with ``layout="nhwc"`` x and result ``[mb, h, w, c]``, w ``[oc, kh, kw,
    ic/groups]``. ``padding`` is an int, one int or (near, far) pair an axis, ``"same"`` (stride 1, as in PyTorch) or
    ``"valid"``. ``w`` may be ``constant(array)``, whose packed form is then kept. ``accumulate`` adds to what ``out``
    holds.

    Accuracy, in norm against float64: ``math="float32"`` keeps 1e-5, ``"ieee"`` twice a plain float32 sum's error,
    ``"tf32"`` 2e-3, relative to what enters an output. Multiplying an image, an output channel, or a summed channel
    (its weights divided by the same) by powers of two costs no digit; in ``conv_backward_data`` output channels are
    summed, in ``conv_backward_weights`` images (docs/accuracy.md).

    Raises InvalidArgument or InvalidProblem before anything is written, NoSolver when every solver refuses.
    """
    return _call(
        "fwd",
        (x, w, out),
        bias,
        residual,
        queue,
        (stride, padding, dilation, groups, activation, layout, math, accumulate),
    )


def conv_backward_data(
    dy: Any,
    w: Any,
    x_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "nchw",
    math: str = "float32",
    out: Any = None,
    queue: Any = None,
    accumulate: bool = False,
) -> Any:
    """Gradient of ``conv`` with respect to x, of shape ``x_shape``, from the gradient ``dy`` of its result.

    Shapes and options as in ``conv``; ``accumulate`` adds to what ``out`` holds. Raises as ``conv`` does.
    """
    return _call(
        "bwd_data",
        (out, w, dy),
        None,
        None,
        queue,
        (stride, padding, dilation, groups, None, layout, math, accumulate),
        _sizes("x_shape", x_shape),
    )


def conv_backward_weights(
    x: Any,
    dy: Any,
    w_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "nchw",
    math: str = "float32",
    out: Any = None,
    queue: Any = None,
    accumulate: bool = False,
) -> Any:
    """Gradient of ``conv`` with respect to w, of shape ``w_shape``, from the gradient ``dy`` of its result.

    Shapes and options as in ``conv``; ``accumulate`` adds to what ``out`` holds. Raises as ``conv`` does.
    """
    return _call(
        "bwd_weights",
        (x, out, dy),
        None,
        None,
        queue,
        (stride, padding, dilation, groups, None, layout, math, accumulate),
        _sizes("w_shape", w_shape),
    )


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[Any] = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    activation: str | None = None,
    residual: Any = None,
    layout: str = "nchw",
    math: str = "float32",
    out: Any = None,
    queue: Any = None,
) -> Any:
    """Transposed convolution, as PyTorch's ``conv_transpose2d``: the backward-data of a convolution, as a layer.

    x ``[mb, ic, h, w]``, w ``[ic, oc/groups, kh, kw]``, bias ``[oc]``, result ``[mb, oc, oh, ow]`` with ``oh = (h -
    1) * stride - near - far + dilation * (kh - 1) + output_padding + 1``; with ``layout="nhwc"`` channels come last,
    w ``[ic, kh, kw, oc/groups]``. ``output_padding`` is below stride or dilation. Raises as ``conv`` does.
    """
    shape, pads, rows = transposed_shape(
        _shape(x, "x"),
        _shape(w, "w"),
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
    )
    x = extended(x, rows, layout, queue) if any(rows) else x
    options = (stride, tuple(pads), dilation, groups, activation, layout, math, False)
    return _call("bwd_data", (out, w, x), bias, residual, queue, options, shape, names=("out", "w", "x"))


def _call(
    direction: str,
    operands: tuple[Any, Any, Any],
    bias: Any,
    residual: Any,
    queue: Any,
    options: tuple[Any, ...],
    shape: tuple[int, ...] | None = None,
    names: tuple[str, str, str] = ("x", "w", "y"),
) -> Any:
    x, w, y = operands
    try:
        read, other = (x, w) if direction == "fwd" else (y, w) if direction == "bwd_data" else (x, y)
        key: Any = (
            direction,
            read.shape,
            other.shape,
            shape,
            read.dtype,
            other.dtype,
            options,
            type(read),
            type(other),
            type(operands[_WRITTEN[direction]]),
            getattr(read, "context", None) if queue is None else queue,
            None if bias is None else (bias.shape, bias.dtype, type(bias)),
            None if residual is None else (residual.shape, residual.dtype, type(residual)),
            current_policy(),
        )
        call = _calls.get(key)
    except (TypeError, AttributeError):  # a list among the options, or something that is no array
        key = call = None
    if call is None:

        def describe_call() -> Call:
            return _describe_call(direction, operands, bias, residual, queue, options, shape, names)

        call = describe_call() if key is None else _calls.make(key, describe_call)
    return call(x, w, y, bias, residual, queue)


def _describe_call(
    direction: str,
    operands: tuple[Any, Any, Any],
    bias: Any,
    residual: Any,
    queue: Any,
    options: tuple[Any, ...],
    shape: tuple[int, ...] | None,
    names: tuple[str, str, str],
) -> Call:
    stride, padding, dilation, groups, activation, layout, math, accumulate = options
    x, w, y = operands
    x_shape = _shape(x, names[0]) if direction != "bwd_data" else shape or ()
    w_shape = _shape(w, names[1]) if direction != "bwd_weights" else shape or ()
    y_shape = None if direction == "fwd" else _shape(y, "dy" if names[2] == "y" else names[2])
    kind = Call.kind_of(operands, bias, residual, direction, names)
    problem = describe(
        direction,
        x_shape,
        w_shape,
        y_shape,
        kind.dtype,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        math=math,
        names=(names[0], names[1], "dy" if names[2] == "y" else names[2]),
        activation=activation,
        bias=bias is not None,
        residual=residual is not None,
        accumulate=bool(accumulate),
        constant_weights=isinstance(w, Constant),
    )
    if accumulate and operands[_WRITTEN[direction]] is None:
        raise InvalidArgument("accumulate=True adds to what out holds: pass out=")
    return Call(problem, kind, bias, residual, queue, operands)


def _shape(array: Any, name: str) -> tuple[int, ...]:
    if not is_array(array):
        raise InvalidArgument(
            f"{name} must be a NumPy array, a pyopencl.array.Array or a Tensor, got {type(array).__name__}"
        )
    return tuple(array.shape)


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    try:
        return tuple(size.__index__() for size in shape)
    except (TypeError, AttributeError):
        raise InvalidArgument(f"{name} must be a tuple of integers, got {shape!r}") from None
