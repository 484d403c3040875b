"""Batch norm (Ioffe and Szegedy 2015) and local response normalisation (Krizhevsky et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ...api.dtypes import storage_macros
from ...api.errors import InvalidArgument
from ...device import runtime
from ...device.programs.kernels import Launch, build, config_macros, keeps_programs, kernel_text
from ...device.tracing import operation
from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ..activations import activate
from ..convolution import dense
from ..tape import current_tape, paused
from .row_norm import row_norm

# This formula over channels gives batch norm's mean, 1 / deviation, factor of x, and running statistics from the sums
# of x - k and of its square. k is a value of the channel, so that the difference of squares below does not cancel.
_STATISTICS = """
m = s * r
variance = max(q * r - m * m, 0)
deviation = rsqrt(variance + epsilon)
mean = m + k
factor = scale * deviation
running_mean = running_mean + momentum * (mean - running_mean)
running_variance = running_variance + momentum * (variance * unbias - running_variance)
"""
LRN_GROUP_ITEMS = 128
"""The number of work items of a work group on a GPU for local response normalisation."""
LRN_CHANNELS_FIRST_RUN = 8
"""The number of channels that a work item of local response normalisation computes with channels first on a GPU."""
LRN_CHANNELS_LAST_RUN = 4
"""The number of channels that a work item of local response normalisation computes with channels last on a GPU."""
LRN_CPU_RUN = 64
"""The most channels that a CPU's work item of local response normalisation computes."""
_NORMALISE = "(x - mean) * factor + shift"


@operation
def batch_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    *,
    training: bool,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    activation: str | None = None,
    residual: Tensor | None = None,
    layout: str = "nchw",
) -> Tensor:
    """Normalise each channel, by the batch's statistics when training (which update the running ones in place).

    ``activation((x - mean) / sqrt(variance + epsilon) * scale + shift + residual)``; ``activation`` is None or
    "relu", fused. Scale, shift and statistics are ``[c]``. The running variance is the unbiased one, as PyTorch's.

    Raises InvalidArgument for shapes that do not fit, or training on one value a channel.
    """
    axis = 1 if layout == "nchw" else x.ndim - 1
    channels = x.shape[axis] if x.ndim >= 2 else -1
    for name, tensor in (("scale", scale), ("shift", shift), ("mean", running_mean), ("variance", running_variance)):
        if tensor.shape != (channels,):
            raise InvalidArgument(f"batch norm of x {x.shape} needs {name} of shape ({channels},), got {tensor.shape}")
    if activation not in (None, "relu"):
        raise InvalidArgument(f"batch norm fuses relu alone, got activation {activation!r}")
    wide = tuple(channels if a == axis else 1 for a in range(x.ndim))
    plus = {} if residual is None else {"residual": residual}
    text = _NORMALISE + (" + residual" if plus else "")
    if activation:
        text = f"v = {text}; where(v < 0, 0, v)"
    if not training:
        tensors = {"mean": running_mean, "variance": running_variance, "scale": scale, "shift": shift}
        text = "factor = scale * rsqrt(variance + epsilon); " + text
        return apply(
            text, x=x, epsilon=epsilon, dtype=x.dtype, **{n: t.reshape(wide) for n, t in tensors.items()}, **plus
        )
    count = x.size // max(1, channels)
    if count < 2:
        raise InvalidArgument(f"training needs more than one value a channel, got x of shape {x.shape}")
    tape = current_tape()
    with paused():
        axes = tuple(a for a in range(x.ndim) if a != axis)
        # The first value of each channel is viewed as a tensor that broadcasts with x.
        shift_values = x[tuple(slice(None) if a == axis else slice(0, 1) for a in range(x.ndim))]
        half = x.dtype.itemsize == 2
        sums = [Tensor.empty((channels,), np.float32, x.queue) for _ in range(2)] if half else None
        sums = reduce("sum", ("x - k", "square(x - k)"), axes, x=x, k=shift_values, out=sums)
        (mean, wide_mean), (deviation, _), (factor, wide_factor) = _vectors(3, x, wide)
        apply(
            _STATISTICS,
            s=sums[0],
            q=sums[1],
            k=_vector(shift_values, axis),
            scale=scale,
            mean=mean,
            deviation=deviation,
            factor=factor,
            running_mean=running_mean,
            running_variance=running_variance,
            r=1.0 / count,
            unbias=count / (count - 1),
            momentum=float(momentum),
            epsilon=float(epsilon),
        )
        wides = {"mean": wide_mean, "factor": wide_factor, "shift": shift.reshape(wide)}
        y = apply(text, x=x, dtype=x.dtype, **wides, **plus)
    if tape is None or not any(tape.tracks(t) for t in (x, scale, shift, residual)):
        return y
    # Where there is no residual, relu's slope follows from x, which is read anyway; otherwise it follows from y.
    gate = "" if not activation else "y > 0" if plus else f"{_NORMALISE} > 0"
    d = f"where({gate}, dy, 0)" if gate else "dy"
    gated = {"y": y} if plus and activation else {"factor": wides["factor"], "shift": wides["shift"]} if gate else {}
    middle = wides["mean"]

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        sink = tape.sink(shift) if tape.tracks(shift) else None
        targets = [Tensor.empty((channels,), shift.dtype, x.queue) if sink is None else sink]
        (sums, _), (c, wide_c), (e, wide_e) = _vectors(3, x, wide)
        targets.append(sums)
        # If the residual needs a gradient, dy times relu's slope is computed once.
        slope, slope_operands = d, gated
        if tape.tracks(residual) and activation:
            dy, slope, slope_operands = apply(d, dy=dy, **gated), "dy", {}
        dresidual = dy if tape.tracks(residual) else None
        operands = {"dy": dy, "x": x, "mean": middle, **slope_operands}
        ds, dq = reduce("sum", (slope, f"({slope}) * (x - mean)"), axes, **operands, out=targets)
        dscale = tape.sink(scale) if tape.tracks(scale) else None
        dscale = Tensor.empty((channels,), scale.dtype, x.queue) if dscale is None else dscale
        text = "g = dq * deviation; c = ds * r; e = g * deviation * r"
        apply(text, g=dscale, c=c, e=e, dq=dq, ds=ds, deviation=deviation, r=1.0 / count)
        dx = None
        if tape.tracks(x):
            text = f"factor * (({slope}) - c - (x - mean) * e)"
            operands = {"factor": wides["factor"], **slope_operands}
            dx = apply(text, dy=dy, x=x, mean=middle, c=wide_c, e=wide_e, dtype=x.dtype, **operands)
        return dx, dscale, ds, dresidual

    tape.record(y, (x, scale, shift, residual), backward)
    return y


def _vectors(count: int, x: Tensor, wide: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Vectors of one value a channel in one piece of memory, each also as it broadcasts with x; of 16-bit x in float32.

    Nets of small pictures wait for the host: a piece of memory and a view each time would be a fifth of its work here.
    """
    dtype = np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype
    channels, step = max(wide), -(-max(wide) * dtype.itemsize // 16) * 16
    memory = Tensor.empty((count * step // dtype.itemsize,), dtype, x.queue).base_data
    return [
        (
            Tensor(memory, (channels,), dtype, x.queue, None, i * step),
            Tensor(memory, wide, dtype, x.queue, None, i * step),
        )
        for i in range(count)
    ]


def _vector(first: Tensor, axis: int) -> Tensor:
    """The view of one value a channel, as a vector."""
    return first[tuple(slice(None) if a == axis else 0 for a in range(first.ndim))]


def fold_batch_norm(
    w: np.ndarray, *statistics: np.ndarray, epsilon: float = 1e-5, bias: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias of the convolution that equals ``w`` (``[oc, ...]``) followed by a batch norm at inference, of
    which ``statistics`` are scale, shift, mean and variance.

    Computed in float64, returned in w's dtype.
    """
    factor, folded = folding(*statistics, epsilon, bias)
    return (w * factor.reshape(-1, *[1] * (w.ndim - 1))).astype(w.dtype), folded.astype(w.dtype)


def folding(
    scale: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    epsilon: float = 1e-5,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """What a batch norm multiplies the output channels of a convolution's weights by, and the bias that is left:
    ``(conv(x, w) + bias - mean) * scale / sqrt(variance + epsilon) + shift``, in float64."""
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    start = 0.0 if bias is None else bias.astype(np.float64)
    return factor, shift + (start - mean) * factor


@operation
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, *, layout: str = "nchw"
) -> Tensor:
    """``x / (k + alpha / size * sum of x² over size neighbouring channels) ** beta``, PyTorch's definition.

    The window of channel c begins ``size // 2`` before it; channels outside count as zero.
    Raises InvalidArgument for a size below 1 or x with fewer than two axes.
    """
    if size < 1 or x.ndim < 2:
        raise InvalidArgument(f"the norm needs a size of 1 or more and x with channels, got {size} and {x.shape}")
    dense_x = dense(x)
    y = Tensor.empty(x.shape, x.dtype, x.queue)
    tape = current_tape()
    channels = x.shape[1 if layout == "nchw" else -1]
    inner_size = 1 if layout == "nhwc" else x.size // max(1, x.shape[0] * channels)
    if not x.size:
        return y
    forward, back = _lrn(x.context, x.dtype.name, x.size, channels, inner_size, size, alpha / size, beta, k)
    forward(x.queue, (dense_x.base_data, np.int64(dense_x.offset // x.dtype.itemsize), y.base_data))
    if tape is not None and tape.tracks(x):

        def backward(dy: Tensor) -> tuple[Tensor]:
            dy, dx = dense(dy), Tensor.empty(x.shape, x.dtype, x.queue)
            offsets = (np.int64(t.offset // t.dtype.itemsize) for t in (dense_x, dy))
            back(x.queue, (dense_x.base_data, next(offsets), dy.base_data, next(offsets), dx.base_data))
            return (dx,)

        tape.record(y, (x,), backward)
    return y


@keeps_programs
def _lrn(
    context: cl.Context,
    dtype: str,
    total: int,
    channels: int,
    inner: int,
    size: int,
    scale: float,
    beta: float,
    k: float,
) -> tuple[Launch, Launch]:
    suffix = "" if dtype == "float64" else "f"
    gpu = runtime.device_info(context.devices[0]).type != "cpu"
    run = min(LRN_CPU_RUN, channels) if not gpu else LRN_CHANNELS_FIRST_RUN if inner > 1 else LRN_CHANNELS_LAST_RUN
    pixels = total // channels
    values = {
        "channels": channels,
        "pixels": pixels,
        "inner": inner,
        "size": size,
        "roots": {0.75: 3, 0.5: 2}.get(beta, 0),
        "run": run,
        "flat": gpu,
        "index": "uint" if total < 2**31 else "ulong",
    }
    values |= {name: f"{float(value)!r}{suffix}" for name, value in (("scale", scale), ("beta", beta), ("bias", k))}
    program = build(context, storage_macros(dtype) + config_macros(values) + kernel_text(__package__, "lrn.cl"))
    runs = -(-channels // run)
    group: tuple[int, ...] | None = None
    work: tuple[int, ...] = (runs, pixels) if inner == 1 else (inner, runs, total // (channels * inner))
    if gpu:
        work, group = (-(-math.prod(work) // LRN_GROUP_ITEMS) * LRN_GROUP_ITEMS,), (LRN_GROUP_ITEMS,)
    forward = Launch(program, "lrn", work, group, "x offset y", names=("x", "offset", "y"))
    names = ("x", "offset", "dy", "dy_offset", "dx")
    return forward, Launch(program, "lrn_backward", work, group, " ".join(names), names=names)


@operation
def standardize(
    x: Tensor,
    axes: Sequence[int],
    epsilon: float = 1e-5,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """``activation((x - mean) / sqrt(variance + epsilon) * scale + shift)`` with the statistics over ``axes``.

    The variance is the mean of the squared differences, taken after the mean is known, so that a large mean costs no
    digits. ``scale`` and ``shift`` broadcast with x.
    """
    axes = tuple(axis % x.ndim for axis in axes)
    first_axis = x.ndim - len(axes)
    if axes == tuple(range(first_axis, x.ndim)) and all(
        t is None or t.shape == x.shape[first_axis:] for t in (scale, shift)
    ):
        y = row_norm(x, math.prod(x.shape[first_axis:]), 1, (scale, shift), epsilon, activation)
        if y is not None:
            return y
    mean = reduce("mean", "x", axes, keepdims=True, x=x)
    variance = reduce("mean", "square(x - m)", axes, keepdims=True, x=x, m=mean)
    operands: dict[str, Any] = {"x": x, "m": mean, "v": variance, "epsilon": float(epsilon)}
    text = "(x - m) * rsqrt(v + epsilon)"
    for name, sign, tensor in (("scale", "*", scale), ("shift", "+", shift)):
        if tensor is not None:
            operands[name] = tensor
            text = f"{text} {sign} {name}"
    y = apply(text, dtype=x.dtype, **operands)
    return y if activation is None else activate(y, activation)


def group_norm(
    x: Tensor, groups: int, scale: Tensor | None = None, shift: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Each of ``groups`` groups of channels of each picture by its own statistics; x is ``[mb, c, ...]``, scale and
    shift ``[c]``. With as many groups as channels it is instance norm.

    Raises InvalidArgument unless channels are a multiple of groups.
    """
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise InvalidArgument(f"channels must be a multiple of {groups} groups, got shape {x.shape}")
    if any(v is not None and v.size != x.shape[1] for v in (scale, shift)):
        raise InvalidArgument(f"scale and shift must have {x.shape[1]} elements, one a channel")
    return grouped(x, groups, scale, shift, epsilon)


@operation
def grouped(
    x: Tensor,
    groups: int,
    scale: Tensor | None,
    shift: Tensor | None,
    epsilon: float,
    activation: str | None = None,
) -> Tensor:
    """The activation of a ``group_norm`` as one operation."""
    mb, channels, *space = x.shape
    each = channels // groups
    y = row_norm(x, each * math.prod(space), math.prod(space), (scale, shift), epsilon, activation)
    if y is not None:
        return y
    wide = dense(x).reshape(mb, groups, each, math.prod(space))
    vectors = [None if v is None else dense(v).reshape(1, groups, each, 1) for v in (scale, shift)]
    return standardize(wide, (2, 3), epsilon, *vectors, activation).reshape(x.shape)  # type: ignore[no-any-return]


def layer_norm(
    x: Tensor, axis: int = -1, scale: Tensor | None = None, shift: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """The axes from ``axis`` on by their own statistics; scale and shift have their shape, or broadcast with it."""
    return standardize(x, range(axis % x.ndim, x.ndim), epsilon, scale, shift)
