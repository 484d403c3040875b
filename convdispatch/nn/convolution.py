"""Convolutions, transposed convolutions and linear maps on the tape: all through ``conv()`` and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..api.activations import gradient_of_result
from ..api.errors import InvalidArgument
from ..calls.arguments import per_axis, transposed_shape
from ..calls.conv import conv, conv_backward_data, conv_backward_weights, conv_transpose
from ..device.tracing import operation
from ..elementwise import apply, concatenate, reduce, zeros
from ..tape import Rectified, Tape, current_tape, paused
from ..tensor import Tensor
from .activations import activate
from .autocasting import cast


@operation
def convolution(
    x: Tensor,
    w: Any,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    activation: str | None = None,
    residual: Tensor | None = None,
    layout: str = "nchw",
    math: str = "float32",
) -> Tensor:
    """``conv()`` on the tape; arguments, results and errors are ``conv()``'s. Views that are not contiguous are copied.

    An activation is fused where its gradient can be told from the result; otherwise it follows as a kernel of its own.
    """
    geometry = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "layout": layout,
        "math": math,
    }
    x, w, bias, residual = cast(x, w, bias, residual)
    tape, after = current_tape(), None
    watched = tape is not None and any(tape.tracks(t) for t in (x, bias, residual) if t is not None)
    watched = watched or (tape is not None and isinstance(w, Tensor) and tape.tracks(w))
    if watched and activation is not None and gradient_of_result(activation) is None:
        activation, after = None, activation
    given = dense(x)
    y = conv(given, w, bias, residual=dense(residual), activation=activation, **geometry)
    if watched:
        _record(tape, y, x, given, w, bias, residual, activation, geometry)
    return y if after is None else activate(y, after)


@operation
def linear(
    x: Tensor, w: Any, bias: Tensor | None = None, *, activation: str | None = None, layout: str = "nchw"
) -> Tensor:
    """``activation(x · wᵀ + bias)`` as a convolution of 1×1 pictures: x ``[mb, ic]``, result ``[mb, oc]``.

    ``w`` is ``[oc, ic]``, or as ``conv()`` takes it: ``[oc, ic, 1, 1]``, with ``layout="nhwc"`` ``[oc, 1, 1, ic]``, or
    a constant made of it. Raises InvalidArgument unless x has two axes and w fits.
    """
    x, w, bias = cast(x, w, bias)
    if len(x.shape) != 2:
        raise InvalidArgument(f"a linear map takes x of shape (mb, features), got {x.shape}")
    shape = w.shape
    if len(shape) not in (2, 4) or (len(shape) == 4 and shape[0] * max(shape[1:]) != _count(shape)):
        raise InvalidArgument(f"a linear map takes w of shape (oc, ic) or with two axes of size 1, got {tuple(shape)}")
    features = max(shape[1:])
    if x.shape[1] != features:
        raise InvalidArgument(f"w of shape {tuple(shape)} takes {features} features, x has shape {x.shape}")
    mb, picture = x.shape[0], (lambda n, c: (n, c, 1, 1)) if layout == "nchw" else (lambda n, c: (n, 1, 1, c))
    tape, after = current_tape(), None
    watched = tape is not None and any(isinstance(t, Tensor) and tape.tracks(t) for t in (x, w, bias))
    if watched and activation is not None and gradient_of_result(activation) is None:
        activation, after = None, activation
    with paused():
        given = dense(x).reshape(picture(mb, features))
        weight = w.reshape(picture(shape[0], features)) if len(shape) == 2 else w
        result = conv(given, weight, bias, activation=activation, layout=layout)
        y = result.reshape(mb, shape[0])
    if watched:
        geometry = {"layout": layout}
        _record(tape, y, x, given, w, bias, None, activation, geometry, picture(mb, shape[0]), weight)
    return y if after is None else activate(y, after)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def dense(tensor: Tensor | None) -> Any:
    """The tensor, or a contiguous copy of it, by a kernel that knows the strides: several times as fast as any."""
    if tensor is None or tensor.contiguous:
        return tensor
    with paused():
        return apply("x", x=tensor)


def _record(
    tape: Tape,
    y: Tensor,
    x: Tensor,
    given: Tensor,
    w: Any,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    geometry: dict[str, Any],
    y_shape: tuple[int, ...] | None = None,
    weight: Any = None,
) -> None:
    """Note a convolution. ``given``, ``weight`` and ``y_shape`` are x, w and y's shape as ``conv`` had them."""
    layout = geometry["layout"]
    weight = w if weight is None else weight
    needs_x, needs_w = tape.tracks(x), isinstance(w, Tensor) and tape.tracks(w)
    needs_bias, needs_residual = tape.tracks(bias), tape.tracks(residual)
    slope = gradient_of_result(activation) if activation else None
    # Only what the gradients read is held: y for the activation's slope, x for the weights', the weights for x's.
    held_y = y if slope else None
    held_x = given if needs_w else None
    x_shape = given.shape
    inputs = (x, w if needs_w else None, bias, residual)
    axes = tuple(a for a in range(y.ndim) if a != (1 if layout == "nchw" else y.ndim - 1))

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        db = dw = dx = None
        if type(dy) is Rectified:  # the pooling after the ReLU knew what the ReLU cut
            if needs_bias:
                db = reduce("sum", dy.formula, axes, out=tape.sink(bias), **dy.operands)
        elif held_y is None:
            dy = dense(dy)
            if needs_bias:
                db = reduce("sum", "x", axes, x=dy, out=tape.sink(bias))
        elif needs_bias:
            sloped = Tensor.empty(dy.shape, dy.dtype, dy.queue)
            db = reduce("sum", slope, axes, dy=dy, y=held_y, out=tape.sink(bias), store=sloped)  # type: ignore[arg-type]
            dy = sloped
        else:
            dy = apply(slope, dy=dy, y=held_y)  # type: ignore[arg-type]
        d = dy if y_shape is None else dy.reshape(y_shape)
        if needs_w:
            out = tape.sink(w)
            dw = conv_backward_weights(held_x, d, weight.shape, out=_as(out, weight.shape), **geometry)
        if needs_x:
            dx = conv_backward_data(d, weight, x_shape, **geometry)
            dx = dx if dx.shape == x.shape else dx.reshape(x.shape)
        return dx, dw, db, dy if needs_residual else None

    tape.record(y, inputs, backward)
    if activation == "relu":
        tape.rectify(y)


def _as(out: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    return out if out is None or out.shape == shape else out.reshape(shape)


@operation
def transposed_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    activation: str | None = None,
    residual: Tensor | None = None,
    layout: str = "nchw",
    math: str = "float32",
) -> Tensor:
    """``conv_transpose()`` on the tape; arguments, results and errors are its.

    Where gradients are recorded, the sum with ``residual`` and the activation are kernels of their own.
    """
    x, w, bias, residual = cast(x, w, bias, residual)
    tape = current_tape()
    watched = tape is not None and any(isinstance(t, Tensor) and tape.tracks(t) for t in (x, w, bias, residual))
    if watched and (activation is not None or residual is not None):
        options = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        y = transposed_convolution(x, w, bias, **options, groups=groups, layout=layout, math=math)
        y = y if residual is None else apply("x + y", x=y, y=residual)
        return y if activation is None else activate(y, activation)
    options = {"stride": stride, "dilation": dilation, "groups": groups, "layout": layout}
    _, pads, rows = transposed_shape(x.shape, w.shape, padding=padding, output_padding=output_padding, **options)
    options["math"] = math
    if any(rows):
        for axis, more in enumerate(rows, 2 if layout == "nchw" else 1):
            if more:
                shape = (*x.shape[:axis], more, *x.shape[axis + 1 :])
                x = concatenate([x, zeros(shape, x.dtype, x.queue)], axis)
        extra = per_axis("output_padding", output_padding, len(rows), 0)
        steps = per_axis("stride", stride, len(rows), 1)
        left = tuple(size - more * step for size, more, step in zip(extra, rows, steps, strict=True))
        after = {"activation": activation, "residual": residual}
        return transposed_convolution(x, w, bias, padding=padding, output_padding=left, **after, **options)
    given = dense(x)
    options |= {"activation": activation, "residual": dense(residual)}
    y = conv_transpose(given, w, bias, padding=padding, output_padding=output_padding, **options)
    if not watched:
        return y
    del options["activation"], options["residual"]
    options["padding"] = tuple(pads)
    needs_x, needs_w, needs_bias = tape.tracks(x), isinstance(w, Tensor) and tape.tracks(w), tape.tracks(bias)
    held = given if needs_w else None

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        dy = dense(dy)
        db = dw = dx = None
        if needs_bias:
            axes = tuple(a for a in range(dy.ndim) if a != (1 if layout == "nchw" else dy.ndim - 1))
            db = reduce("sum", "x", axes, x=dy, out=tape.sink(bias))
        if needs_w:  # the convolution that this is the transpose of reads dy and would have made x
            dw = conv_backward_weights(dy, held, w.shape, out=tape.sink(w), **options)
        if needs_x:
            dx = conv(dy, w, **options)
        return dx, dw, db

    tape.record(y, (x, w if needs_w else None, bias), backward)
    return y
