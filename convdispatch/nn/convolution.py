"""Convolutions, transposed convolutions and linear maps on the tape: all through ``conv()`` and its relatives."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..api.activations import gradient_of_result
from ..api.errors import InvalidArgument
from ..api.policy import current_policy
from ..calls.arguments import per_axis, transposed_shape
from ..calls.conv import conv, conv_backward_data, conv_backward_weights, conv_transpose
from ..device.tracing import operation
from ..elementwise import apply, concatenate, reduce, zeros
from ..elementwise.codegen.strides import broadcast
from ..elementwise.tensor import Tensor
from .activations import activate
from .tape import Tape, current_tape, paused


@operation
def convolution(
    x: Tensor,
    w: Any,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    **geometry: Any,
) -> Tensor:
    """``conv()`` on the tape; arguments, results and errors are ``conv()``'s: ``geometry`` is its stride, padding,
    dilation, groups, layout and math. Views that are not contiguous are copied.

    An activation is fused where its gradient can be told from the result; otherwise it follows as a kernel of its own.
    """
    operands = (x, w, bias, residual)
    tape = _tape_of(operands)
    fused, later_activation = _fused(tape, activation)
    dense_x = dense(x)
    y = conv(dense_x, w, bias, residual=dense(residual), activation=fused, **geometry)
    if tape is not None:
        shape, slope = x.shape, gradient_of_result(fused) if fused else None
        gradients = _Gradients(
            geometry.get("layout", "nchw"),
            lambda dy: conv_backward_data(dy, w, shape, **geometry),
            lambda x, dy: conv_backward_weights(x, dy, w.shape, **geometry),
        )
        _record(tape, operands, dense_x, y, slope, gradients)
    return y if later_activation is None else activate(y, later_activation)


def linear(
    x: Tensor, w: Any, bias: Tensor | None = None, *, activation: str | None = None, layout: str = "nchw"
) -> Tensor:
    """``activation(x · wᵀ + bias)`` as a convolution of 1×1 pictures: x ``[mb, ic]``, result ``[mb, oc]``.

    ``w`` is ``[oc, ic]``, or as ``conv()`` takes it: ``[oc, ic, 1, 1]``, with ``layout="nhwc"`` ``[oc, 1, 1, ic]``, or
    a constant made of it. Raises InvalidArgument unless x has two axes and w fits.
    """
    if len(x.shape) != 2:
        raise InvalidArgument(f"a linear map takes x of shape (mb, features), got {x.shape}")
    shape = w.shape
    if len(shape) not in (2, 4) or (len(shape) == 4 and shape[0] * max(shape[1:]) != math.prod(shape)):
        raise InvalidArgument(f"a linear map takes w of shape (oc, ic) or with two axes of size 1, got {tuple(shape)}")
    features = max(shape[1:])
    if x.shape[1] != features:
        raise InvalidArgument(f"w of shape {tuple(shape)} takes {features} features, x has shape {x.shape}")
    images = (x if x.contiguous else apply("x", x=x)).reshape(picture_of(x.shape, layout))
    weight = _filters_of(w, layout) if len(shape) == 2 else w
    y = convolution(images, weight, bias, activation=activation, layout=layout)
    return y.reshape(x.shape[0], shape[0])  # type: ignore[no-any-return]


def dense(tensor: Tensor | None) -> Any:
    """The tensor, or a contiguous copy of it, by a kernel that knows the strides: several times as fast as any."""
    if tensor is None or tensor.contiguous:
        return tensor
    with paused():
        return apply("x", x=tensor)


def _tape_of(operands: Sequence[Any]) -> Tape | None:
    """The tape in force, if it tracks one of the operands."""
    tape = current_tape()
    return tape if tape is not None and any(isinstance(t, Tensor) and tape.tracks(t) for t in operands) else None


def _fused(tape: Tape | None, activation: str | None) -> tuple[str | None, str | None]:
    """The activation that the convolution computes, and the one that follows it as a kernel of its own."""
    if tape is None or activation is None or gradient_of_result(activation) is not None:
        return activation, None
    return None, activation


def _record(tape: Tape, operands: Sequence[Any], x: Tensor, y: Tensor, slope: str | None, of: _Gradients) -> None:
    """Note the gradients of x, w, bias and residual; only what they read is held: x for dw, y for the activation's."""
    needs_x, needs_w, needs_bias, needs_residual = (isinstance(t, Tensor) and tape.tracks(t) for t in operands)
    given, w, bias, residual = operands
    held_x, held_y = x if needs_w else None, y if slope else None

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        dy = dense(dy) if held_y is None else apply(slope, dy=dy, y=held_y)
        axes = tuple(a for a in range(dy.ndim) if a != (1 if of.layout == "nchw" else dy.ndim - 1))
        db = reduce("sum", "x", axes, dtype=bias.dtype, x=dy) if needs_bias else None
        dw = of.weights(held_x, dy) if needs_w else None
        return of.data(dy) if needs_x else None, dw, db, dy if needs_residual else None

    tape.record(y, (given, w if needs_w else None, bias, residual), backward)


class _Gradients(NamedTuple):
    """How a convolution's gradients are computed, of dy, and of x and dy."""

    layout: str
    data: Callable[[Tensor], Tensor]
    weights: Callable[[Any, Tensor], Tensor]


_FILTERS: weakref.WeakKeyDictionary[Tensor, Tensor] = weakref.WeakKeyDictionary()
"""The view of each weight matrix as 1x1 filters, cached so that calls with the same weights get the same object."""


def _filters_of(w: Any, layout: str) -> Any:
    """A matrix as filters of one pixel: the same view at each call, while its memory is the same, but for gradients."""
    shape, tape = picture_of(w.shape, layout), current_tape()
    if not isinstance(w, Tensor) or (tape is not None and tape.tracks(w)):
        return w.reshape(shape)
    view = _FILTERS.get(w)
    if view is None or (view.base_data, view.offset, view.shape) != (w.base_data, w.offset, shape):
        view = _FILTERS[w] = w.reshape(shape)
    return view


def picture_of(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Rows of features as pictures of one pixel."""
    n, c = shape[0], max(shape[1:])
    return (n, c, 1, 1) if layout == "nchw" else (n, 1, 1, c)


@operation
def transposed_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
    **geometry: Any,
) -> Tensor:
    """``conv_transpose()`` on the tape; arguments, results and errors are its: ``geometry`` is its stride, padding,
    output_padding, dilation, groups, layout and math.

    Where gradients are recorded, the sum with ``residual`` and the activation are kernels of their own.
    """
    operands = (x, w, bias, residual)
    tape, layout = _tape_of(operands), geometry.get("layout", "nchw")
    if tape is not None and (activation is not None or residual is not None):
        y = transposed_convolution(x, w, bias, **geometry)
        y = y if residual is None else apply("x + y", x=y, y=residual)
        return y if activation is None else activate(y, activation)
    sizes = {name: value for name, value in geometry.items() if name != "math"}
    _, pads, rows = transposed_shape(x.shape, w.shape, **sizes)
    if any(rows):
        for axis, added_rows in enumerate(rows, 2 if layout == "nchw" else 1):
            if added_rows:
                shape = (*x.shape[:axis], added_rows, *x.shape[axis + 1 :])
                x = concatenate([x, zeros(shape, x.dtype, x.queue)], axis)
        extra = per_axis("output_padding", geometry["output_padding"], len(rows), 0)
        steps = per_axis("stride", geometry.get("stride", 1), len(rows), 1)
        geometry["output_padding"] = tuple(
            size - added_rows * step for size, added_rows, step in zip(extra, rows, steps, strict=True)
        )
        return transposed_convolution(x, w, bias, activation=activation, residual=residual, **geometry)
    dense_x = dense(x)
    y = conv_transpose(dense_x, w, bias, activation=activation, residual=dense(residual), **geometry)
    if tape is None:
        return y
    options = geometry | {"padding": tuple(pads)}
    options.pop("output_padding", None)
    # dw swaps both operands, because dy is the input of the forward convolution that is transposed here.
    gradients = _Gradients(
        layout,
        lambda dy: conv(dy, w, **options),
        lambda x, dy: conv_backward_weights(dy, x, w.shape, **options),
    )
    _record(tape, operands, dense_x, y, None, gradients)
    return y


@operation
def matmul(x: Tensor, y: Tensor, math_mode: str = "float32") -> Tensor:
    """NumPy's matmul: the last two axes are matrices, those before broadcast; a vector is a row or a column.

    Raises InvalidArgument for sizes that do not fit each other.

    ``z[b, m, n] = sum over k of x[b, m, k] * y[b, k, n]`` is a convolution of one picture with ``b * k`` channels and n
    pixels by weights ``[b * m, k]`` in b groups: nothing is copied.
    """
    if not x.ndim or not y.ndim or x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise InvalidArgument(f"matmul needs x [..., m, k] and y [..., k, n], got {x.shape} and {y.shape}")
    row, column = x.ndim == 1, y.ndim == 1
    x, y = dense(x), dense(y)
    x = x.reshape(1, *x.shape) if row else x
    y = y.reshape(*y.shape, 1) if column else y
    (*_, m, k), n = x.shape, y.shape[-1]
    batch_shape = broadcast({"x": x.shape[:-2], "y": y.shape[:-2]})
    shape = (*batch_shape, *(() if row else (m,)), *(() if column else (n,)))
    if not math.prod(shape) * k:
        return zeros(shape, x.dtype, x.queue)
    many, mats = math.prod(x.shape[:-2]), math.prod(y.shape[:-2])
    if current_policy().is_invariant and many * mats > max(many, mats):
        # The first axis is the batch: each image has a product of its own, whose size does not depend on the others.
        x, y = (t.expand(*batch_shape, *t.shape[-2:]) for t in (x, y))
        return concatenate([matmul(x[i], y[i], math_mode).reshape(1, *shape[1:]) for i in range(batch_shape[0])], 0)
    if mats == 1 and current_policy().is_invariant:
        # Rows of x are images here, not the weights' output channels, so that a choice for one batch holds for all.
        filters = dense(y.reshape(k, n).transpose(1, 0)).reshape(n, k, 1, 1)
        return conv(x.reshape(many * m, k, 1, 1), filters, math=math_mode).reshape(shape)
    if mats == 1:  # One matrix multiplies all rows of all x, so it is the image of a single 1x1 convolution.
        groups, picture, weights = 1, (1, k, 1, n), (many * m, k, 1, 1)
    elif many == 1:  # One x multiplies all matrices, which are the images of a batch.
        groups, picture, weights = 1, (mats, k, 1, n), (m, k, 1, 1)
    else:
        x, y = (dense(t.expand(*batch_shape, *t.shape[-2:])) if t.shape[:-2] != batch_shape else t for t in (x, y))
        groups = math.prod(batch_shape)
        picture, weights = (1, groups * k, 1, n), (groups * m, k, 1, 1)
    return conv(y.reshape(picture), x.reshape(weights), groups=groups, math=math_mode).reshape(shape)
