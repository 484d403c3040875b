"""Max, average and adaptive pooling of two axes, forward and backward, in either layout; of one and three by these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from ...api.dtypes import ALL_DTYPES, INTEGERS, storage_macros
from ...api.errors import InvalidArgument
from ...calls.arguments import per_axis
from ...device import runtime
from ...device.programs.kernels import Launch, build, config_macros, define, keeps_programs, kernel_text
from ...device.size_limits import must_fit
from ...device.tracing import operation
from ...elementwise import apply, reduce
from ...elementwise.tensor import Tensor
from ..convolution import dense
from ..tape import current_tape

_GROUP = 256
_REALS = ("float32", "float64")
_VECTORS = (*_REALS, *INTEGERS)
_WIDEST = 1 << 14
"""The most columns of a row that a CPU's work item holds."""


@operation
def max_pool(x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, **options: Any) -> Tensor:
    """The largest value of each window; the gradient goes to the first of equal ones. NaN counts as largest.

    ``stride`` is the kernel's size when None; ``options`` are ``dilation`` (1), ``ceil_mode`` (False), with which a
    last window that begins inside the input (or its near padding) but ends beyond it is kept, and ``layout``
    ("nchw"). Shapes and options mean what PyTorch's MaxPool2d says; besides, ``padding`` may be a (near, far) pair an
    axis, each smaller than the window.

    Raises InvalidArgument for padding above half the kernel where it is no pair, or windows that do not fit.
    """
    return _pool("max", x, windows_of(x, kernel, stride, padding, **options), options)


@operation
def avg_pool(
    x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, *, count_include_pad: bool = True, **options: Any
) -> Tensor:
    """The mean of each window, over the padding's zeros too unless ``count_include_pad`` is False; else as max_pool."""
    windows = windows_of(x, kernel, stride, padding, **options)
    return _pool("average", x, {**windows, "count_pad": int(count_include_pad)}, options)


@operation
def lp_pool(x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, *, p: float = 2, **options: Any) -> Tensor:
    """``(sum of |x|**p over each window) ** (1 / p)``; ``options`` are max_pool's.

    Raises InvalidArgument for a p not above 0.
    """
    if not p > 0:
        raise InvalidArgument(f"a norm's p must be above 0, got {p}")
    windows = windows_of(x, kernel, stride, padding, **options)
    powers = apply("square(x)" if p == 2 else f"abs(x) ** {float(p)}", x=x)
    sums = _pool("sum", powers, {**windows, "count_pad": 0}, options)
    return apply("sqrt(s)" if p == 2 else f"s ** {1 / p}", s=sums)


@operation
def adaptive_avg_pool(x: Tensor, size: Any, *, layout: str = "nchw") -> Tensor:
    """The mean of ``size`` windows along each axis: window o covers from ⌊o·i/size⌋ to ⌈(o+1)·i/size⌉."""
    size = per_axis("size", size, 2, least=1)
    if size == (1, 1) and x.ndim == 4:
        pooled = global_average_pool(x, layout)
        shape = (*pooled.shape, 1, 1) if layout == "nchw" else (pooled.shape[0], 1, 1, pooled.shape[1])
        return pooled.reshape(shape)
    _, _, h, w = _sizes(x, layout)
    windows = {"ih": h, "iw": w, "oh": size[0], "ow": size[1], "adaptive": 1, "count_pad": 0}
    return _pool("average", x, windows, {"layout": layout})


@operation
def global_average_pool(x: Tensor, layout: str = "nchw") -> Tensor:
    """The mean over all pixels: x ``[mb, c, ...]``, with ``layout="nhwc"`` ``[mb, ..., c]``, to ``[mb, c]``.

    Raises InvalidArgument for fewer than two axes or no pixels.
    """
    if x.ndim < 2:
        raise InvalidArgument(f"pooling needs images and channels, got shape {x.shape}")
    axes = tuple(range(2, x.ndim)) if layout == "nchw" else tuple(range(1, x.ndim - 1))
    if x.shape[0] and not x.size and any(not x.shape[a] for a in axes):
        raise InvalidArgument(f"an average needs at least one pixel, got shape {x.shape}")
    return reduce("mean", "x", axes, x=x)


def _sizes(x: Tensor, layout: str) -> tuple[int, int, int, int]:
    if layout not in ("nchw", "nhwc"):
        raise InvalidArgument(f"layout must be nchw or nhwc, got {layout!r}")
    if x.ndim != 4:
        raise InvalidArgument(f"pooling takes x with 4 axes (images, channels, height, width), got shape {x.shape}")
    mb, c, h, w = x.shape if layout == "nchw" else (x.shape[0], x.shape[3], x.shape[1], x.shape[2])
    if not h or not w:
        raise InvalidArgument(f"pooling needs at least one pixel, got shape {x.shape}")
    return mb, c, h, w


def windows_of(
    x: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    *,
    dilation: Any = 1,
    ceil_mode: bool = False,
    layout: str = "nchw",
) -> dict[str, int]:
    _, _, *sizes = _sizes(x, layout)
    kernel = per_axis("kernel", kernel, 2, least=1)
    stride = kernel if stride is None else per_axis("stride", stride, 2, least=1)
    dilation = per_axis("dilation", dilation, 2, least=1)
    values = {}
    for axis, size, k, s, (p, end_padding), d in zip(
        "hw", sizes, kernel, stride, _pads(padding, kernel, dilation), dilation
    ):
        span = size + p + end_padding - d * (k - 1) - 1
        if span < 0:
            raise InvalidArgument(
                f"a window of {k} (dilation {d}) does not fit {size} values with padding {p}, {end_padding}"
            )
        count = (span + s - 1 if ceil_mode else span) // s + 1
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1
        values |= {f"i{axis}": size, f"o{axis}": count, f"k{axis}": k, f"s{axis}": s, f"p{axis}": p, f"d{axis}": d}
        values[f"p{axis}_r"] = end_padding
    reach = all(
        not values[f"p{a}"] and (values[f"o{a}"] - 1) * values[f"s{a}"] + (values[f"k{a}"] - 1) * values[f"d{a}"] < size
        for a, size in zip("hw", sizes, strict=True)
    )
    return {**values, "adaptive": 0, "inside": int(reach)}


def _pads(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """(near, far) along each axis."""
    if not isinstance(padding, list | tuple) or not all(isinstance(item, list | tuple) for item in padding):
        numbers = per_axis("padding", padding, 2, least=0)
        if any(p > k // 2 for p, k in zip(numbers, kernel, strict=True)):
            raise InvalidArgument(f"padding must be at most half the kernel {kernel}, got {padding}")
        return [(p, p) for p in numbers]
    pairs = [(start, end) for start, end in padding]
    for pair, k, d in zip(pairs, kernel, dilation, strict=True):
        if not all(0 <= p <= d * (k - 1) for p in pair):
            raise InvalidArgument(f"padding must be smaller than the window of {k} (dilation {d}), got {pair}")
    return pairs


def _pool(kind: str, x: Tensor, values: dict[str, int], options: dict[str, Any]) -> Tensor:
    tape, layout = current_tape(), options.get("layout", "nchw")
    watched = tape is not None and tape.tracks(x)
    y, maximum_indices, key = pooled(kind, x, values, layout, gradients=watched, notes=watched and kind == "max")
    if watched and y.size:
        x_shape, dtype, queue = x.shape, x.dtype, x.queue

        def backward(dy: Tensor) -> tuple[Tensor]:
            dy, dx = dense(dy), Tensor.empty(x_shape, dtype, queue)
            back = _launches(*key, True).backward
            assert back is not None
            places = dy if maximum_indices is None else maximum_indices
            back(queue, (dy.base_data, np.int64(dy.offset // dtype.itemsize), places.base_data, dx.base_data))
            return (dx,)

        tape.record(y, (x,), backward)
    return y


def pooled(
    kind: str, x: Tensor, values: dict[str, int], layout: str, *, gradients: bool, notes: bool
) -> tuple[Tensor, Tensor | None, tuple[Any, ...]]:
    """The pooling itself: y, the pixels of its largest values if ``notes``, and what its launches are kept by."""
    mb, channels, *_ = _sizes(x, layout)
    size = (values["oh"], values["ow"])
    shape = (mb, channels, *size) if layout == "nchw" else (mb, *size, channels)
    must_fit(runtime.device_info(x.queue.device), x.dtype.itemsize, {"x": x.shape, "the result": shape})
    key = (x.context, kind, x.dtype.name, mb, channels, layout == "nhwc", tuple(sorted(values.items())))
    y = Tensor.empty(shape, x.dtype, x.queue)
    if not y.size:
        return y, None, key
    dense_x = dense(x)
    launches = _launches(*key, gradients)
    memory = (dense_x.base_data, np.int64(dense_x.offset // x.dtype.itemsize), y.base_data)
    if not notes or launches.noting is None:
        launches.forward(x.queue, memory)
        return y, None, key
    maximum_indices = Tensor.empty(shape, np.int32, x.queue)
    launches.noting(x.queue, (*memory, maximum_indices.base_data))
    return y, maximum_indices, key


class _Launches(NamedTuple):
    """The kernel launches of a pooling; a call without gradients has only ``forward``, because the others would be
    unused."""

    forward: Launch
    noting: Launch | None = None
    """The launch of the forward pass that also writes the pixels of the largest values."""
    backward: Launch | None = None


@keeps_programs
def _launches(
    context: cl.Context,
    kind: str,
    dtype: str,
    mb: int,
    channels: int,
    nhwc: bool,
    items: tuple[tuple[str, int], ...],
    gradients: bool,
) -> _Launches:
    values = dict(items)
    gpu = runtime.device_info(context.devices[0]).type != "cpu"
    largest = mb * channels * max(values["ih"] * values["iw"], values["oh"] * values["ow"])
    most_lanes = 64 // ALL_DTYPES[dtype].accumulator_size
    row_lanes = _row_lanes(values, channels if nhwc else None, most_lanes) if not gpu and dtype in _VECTORS else 1
    macros = {
        "mb": mb,
        "channels": channels,
        "nhwc": nhwc,
        "average": kind != "max",
        "sum": kind == "sum",
        "flat": gpu,
        "index": "uint" if largest < 2**31 else "ulong",
        **values,
    }
    head = _element(dtype) + config_macros(macros)

    def sizes(area: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        if gpu:
            return (-(-mb * channels * area // _GROUP) * _GROUP,), (_GROUP,)
        return ((channels, mb * area) if nhwc else (area, mb * channels)), None

    def program(note: bool = False) -> cl.Program:
        files = (kernel_text(__package__, file) for file in ("pool_windows.cl", "pool.cl"))
        return build(context, "".join([head, config_macros({"note": note}), *files]))

    names, back = ("x", "offset", "y", "places"), ("dy", "offset", "places", "dx")
    out, into = sizes(values["oh"] * values["ow"]), sizes(values["ih"] * values["iw"])
    if row_lanes > 1:
        files = (kernel_text(__package__, file) for file in ("pool_windows.cl", "pool_rows.cl"))
        text = "".join([head, config_macros({"lanes": row_lanes, "note": False}), *files])
        # The kernel requires this work-group size too, so the driver may not choose another.
        out_rows = (mb * values["oh"] if nhwc else mb * channels,), (1,)
        forward = Launch(build(context, text), "pool", *out_rows, "x offset y", names=names[:3])
    else:
        forward = Launch(program(), "pool", *out, "x offset y", names=names[:3])
    if not gradients:
        return _Launches(forward)
    backward = Launch(program(), "pool_backward", *into, " ".join(back), names=back)
    noting = Launch(program(note=True), "pool", *out, " ".join(names), names=names) if kind == "max" else None
    return _Launches(forward, noting, backward)


def _element(dtype: str) -> str:
    """The element type as OpenCL text; of bytes only the largest is asked."""
    if dtype not in INTEGERS:
        return storage_macros(dtype) + define(LEAST="-INFINITY", INTEGER=0)
    return define(
        REAL=INTEGERS[dtype].storage, ACC="int", INTEGER=1, LEAST=np.iinfo(dtype).min,
        **{"LOAD(p, i)": "((int)(p)[i])", "STORE(p, i, v)": "((p)[i] = (v))"},
    )  # fmt: skip


def _row_lanes(values: dict[str, int], channels: int | None, most_lanes: int) -> int:
    """How many windows of a row, or channels where they are last, a CPU takes at once; 1 where it cannot."""
    if values["adaptive"]:
        return 1
    if channels is None and (values["sw"] > 2 or values["iw"] + values["pw"] + values["pw_r"] > _WIDEST):
        return 1
    room = min(values["ow"], values["iw"]) if channels is None else channels
    return next((n for n in (16, 8, 4) if n <= min(most_lanes, room)), 1)


@operation
def max_pool_with_places(
    x: Tensor,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    column_major: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """``max_pool`` of x ``[mb, c, h, w]`` with its ``options``, and the places of the largest values among all of x's
    elements, int64.

    With ``column_major`` the pixels of a picture are numbered down its columns. Raises InvalidArgument as max_pool.
    """
    values = windows_of(x, kernel, stride, padding, **options)
    mb, channels, h, w = x.shape
    y, notes, _ = pooled("max", x, values, "nchw", gradients=True, notes=True)
    shape = y.shape
    if notes is None:
        return y, Tensor.empty(shape, np.int64, x.queue)
    # In a recording, constants are made on the recording's own queue, so that they exist before the net runs.
    queue = getattr(x.queue, "queue", x.queue)

    def numbers(count: int, *wide: int) -> Tensor:
        return Tensor.from_numpy(np.arange(count, dtype=np.int64).reshape(wide), queue)

    operands: dict[str, Any] = {"note": notes, "plane": numbers(mb * channels, mb, channels, 1, 1)}
    text = f"r = note // {w}; c = note % {w}; "
    pixel = f"c * {h} + r" if column_major else f"r * {w} + c"
    return y, apply(f"{text} plane * {h * w} + {pixel}", dtype=np.int64, **operands)


# --- one and three axes by two: largest values, sums and counts of a window come apart along axes ----------------


def pool(
    kind: str,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[Sequence[int]] | None = None,
    *,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
    **options: Any,
) -> Tensor:
    """``kind`` is "max", "average" or "lp"; x is ``[mb, c, ...]`` with one to three axes of space.

    ``padding`` holds a (near, far) pair an axis; ``options`` are those of the pooling of two axes
    (``count_include_pad``, ``p``). Raises InvalidArgument as it does.
    """
    ndim = x.ndim - 2
    if not 1 <= ndim <= 3:
        raise InvalidArgument(f"pooling takes 1 to 3 axes of space beside images and channels, got shape {x.shape}")
    kernel = per_axis("kernel", kernel, ndim, least=1)
    stride = kernel if stride is None else per_axis("stride", stride, ndim, least=1)
    dilation = per_axis("dilation", dilation, ndim, least=1)
    pads = [tuple(pair) for pair in padding] if padding is not None else [(0, 0)] * ndim
    geometry = [list(values) for values in (kernel, stride, pads, dilation)]
    if ndim == 2:
        return _pool2(kind, x, *geometry, ceil_mode=ceil_mode, **options)
    return pool_axes(kind, x, *geometry, ceil_mode=ceil_mode, **options)


def _pool2(kind: str, x: Tensor, kernel: Any, stride: Any, pads: Any, dilation: Any, **options: Any) -> Tensor:
    function = {"max": max_pool, "average": avg_pool, "lp": lp_pool}[kind]
    return function(x, tuple(kernel), tuple(stride), tuple(pads), dilation=tuple(dilation), **options)


@operation
def pool_axes(kind: str, x: Tensor, kernel: Any, stride: Any, pads: Any, dilation: Any, **options: Any) -> Tensor:
    """``pool`` of one or three axes, as one operation."""
    x = dense(x)
    mb, channels, *space = x.shape
    if len(space) == 1:
        window = [[blank, *values] for blank, values in zip((1, 1, (0, 0), 1), (kernel, stride, pads, dilation))]
        y = _pool2(kind, x.reshape(mb, channels, 1, space[0]), *window, **options)
        return y.reshape(mb, channels, y.shape[-1])
    p, options = options.get("p", 2), dict(options)
    # Lp pooling sums p-th powers along one axis, then along the others, and takes one root.
    if kind == "lp":
        x = apply(f"abs(x) ** {float(p)}", x=x)
        options["p"] = 1
    planes = x.reshape(mb, channels * space[0], *space[1:])
    y = _pool2(kind, planes, kernel[1:], stride[1:], pads[1:], dilation[1:], **options)
    spatial = y.shape[2:]
    columns = y.reshape(mb, channels, space[0], math.prod(spatial))
    first_window = [[values[0], blank] for blank, values in zip((1, 1, (0, 0), 1), (kernel, stride, pads, dilation))]
    y = _pool2(kind, columns, *first_window, **options)
    y = y.reshape(mb, channels, y.shape[2], *spatial)
    return apply(f"y ** {1 / p}", y=y) if kind == "lp" else y
