"""Softmax and its logarithm, cross-entropy, mean squares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.dtypes import storage_macros
from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.programs.kernels import Launch, build, config_macros, keeps_programs, kernel_text
from ..device.tracing import operation
from ..elementwise import apply, reduce
from ..elementwise.tensor import Tensor
from .convolution import dense
from .normalization.row_norm import rows_of_a_group
from .tape import current_tape, paused

_ROW_WORK_ITEMS = 64
"""The number of work items that compute a row of logits, except for long rows on a GPU."""


@operation
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """``exp(x) / sum(exp(x))`` along an axis, safe for large values. Raises InvalidArgument for an axis x lacks."""
    axes_to_last = _last(x, axis)
    if axes_to_last is not None:
        return softmax(x.transpose(axes_to_last)).transpose(axes_to_last)
    tape = current_tape()
    dense_x = dense(x)
    y = Tensor.empty(x.shape, x.dtype, x.queue)
    if y.size:
        launch = _softmax(x.context, x.dtype.name, x.shape[-1], math.prod(x.shape[:-1]))
        launch(x.queue, (dense_x.base_data, np.int64(dense_x.offset // x.dtype.itemsize), y.base_data))
    if tape is not None and tape.tracks(x):

        def backward(dy: Tensor) -> tuple[Tensor]:
            total = reduce("sum", "dy * y", -1, keepdims=True, dy=dy, y=y)
            return (apply("y * (dy - total)", y=y, dy=dy, total=total),)

        tape.record(y, (x,), backward)
    return y


@operation
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """``x - log(sum(exp(x)))`` along an axis, safe for large values. Raises InvalidArgument for an axis x lacks."""
    _last(x, axis)
    tape = current_tape()
    with paused():
        largest = reduce("max", "x", axis, keepdims=True, x=x)
        total = reduce("sum", "exp(x - m)", axis, keepdims=True, x=x, m=largest)
        y = apply("x - m - log(t)", x=x, m=largest, t=total)
    if tape is not None and tape.tracks(x):

        def backward(dy: Tensor) -> tuple[Tensor]:
            total = reduce("sum", "dy", axis, keepdims=True, dy=dy)
            return (apply("dy - exp(y) * total", dy=dy, y=y, total=total),)

        tape.record(y, (x,), backward)
    return y


@operation
def cross_entropy(x: Tensor, labels: Any, *, reduction: str = "mean") -> Tensor:
    """``-log softmax(x)[label]`` of each row of logits x ``[mb, classes]``; their mean, sum, or all for "none".

    ``labels`` are integers ``[mb]``, a Tensor or a NumPy array. A label in a Tensor that is no class gives a loss of
    NaN; one in an array raises InvalidArgument, as wrong shapes do.
    """
    if reduction not in ("mean", "sum", "none"):
        raise InvalidArgument(f"reduction must be mean, sum or none, got {reduction!r}")
    if x.ndim != 2 or not x.shape[1]:
        raise InvalidArgument(f"cross-entropy takes logits of shape (mb, classes), got {x.shape}")
    rows, width = x.shape
    if not isinstance(labels, Tensor):
        labels = np.asarray(labels)
        if labels.dtype.kind not in "iu":
            raise InvalidArgument(f"labels must be integers, got {labels.dtype}")
        if labels.size and (labels.min() < 0 or labels.max() >= width):
            raise InvalidArgument(f"labels must be 0 to {width - 1}, got {labels.min()} to {labels.max()}")
        labels = Tensor.from_numpy(labels.astype(np.int32), x.queue)
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise InvalidArgument(f"labels must be {rows} integers, got {labels!r}")
    if not rows:
        raise InvalidArgument("cross-entropy needs at least one row of logits")
    values = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    classes = Tensor.from_numpy(np.arange(width, dtype=np.int32), x.queue)
    given = labels.reshape(rows, 1)
    picked = reduce("sum", "where(c == label, y, 0)", 1, y=log_softmax(values), label=given, c=classes)
    losses = apply("y * where(label < 0 or label >= n, nan, -1)", y=picked, label=given.reshape(rows), n=width)
    loss = losses if reduction == "none" else reduce(reduction, "x", x=losses)
    return loss if loss.dtype == x.dtype else loss.astype(x.dtype)


@operation
def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    """The mean of ``(x - target)²``. Raises InvalidArgument for different shapes."""
    if x.shape != target.shape:
        raise InvalidArgument(f"the target must have x's shape {x.shape}, got {target.shape}")
    return reduce("mean", "square(x - target)", x=x, target=target)


def _last(x: Tensor, axis: int) -> tuple[int, ...] | None:
    """Axes in an order that swaps ``axis`` and the last; None when it is the last."""
    if not -x.ndim <= axis < x.ndim:
        raise InvalidArgument(f"axis must be one of {x.ndim}, got {axis}")
    axis %= x.ndim
    if axis == x.ndim - 1:
        return None
    order = list(range(x.ndim))
    order[axis], order[-1] = order[-1], order[axis]
    return tuple(order)


@keeps_programs
def _softmax(context: cl.Context, dtype: str, width: int, rows: int) -> Launch:
    gpu = runtime.device_info(context.devices[0]).type != "cpu"
    vectors = dtype == "float32" and not gpu
    each = rows_of_a_group(rows, width) if vectors else 1
    items = 1 if vectors else _ROW_WORK_ITEMS if not gpu or width <= _ROW_WORK_ITEMS * 4 else 256
    values = {"width": width, "items": items, "vectors": vectors, "rows": each}
    program = build(context, storage_macros(dtype) + config_macros(values) + kernel_text(__package__, "softmax.cl"))
    return Launch(program, "softmax", (rows // each * items,), (items,), "x offset y", names=("x", "offset", "y"))
