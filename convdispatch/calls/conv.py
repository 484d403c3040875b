"""The public functions conv, conv_backward_data, conv_backward_weights, conv_transpose and explain.

Arrays are NumPy's, ``pyopencl.array.Array``, ``convdispatch.Tensor``, or another library's on the host or a CUDA device
(see ``arrays``); the result is of the inputs' kind. Calls on host memory return when the result is computed; the others
enqueue on their queue, or their library's current stream, and return at once.

A warm call is one look-up: everything that depends on shapes, dtypes and options was decided by the first call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import InvalidArgument
from ..api.literals import Activation, Array, Layout, Math, Padding, Pads, Steps
from ..api.problem import ConvProblem
from ..api.quantization import Quantization
from ..device import runtime
from ..selection.derivation.rewriting import Copy, CopyAxis, contiguous
from ..selection.prepared import constant as constant
from .arguments import PLACES, Request, described_problem, hashable, sizes_of, transposed_shape
from .arrays.accepted import shape_of, with_kind_of
from .arrays.known_libraries import library_of
from .arrays.operands import Operands, contiguous_strides, maker_of
from .call_cache import CALLS, LAST, cached_call
from .described_call import described_call
from .quantized import table_for

if TYPE_CHECKING:
    from ..selection.explanation import Explanation

_LAST_FORWARD = LAST["fwd"]


def conv(
    x: Array,
    w: Any,
    bias: Any = None,
    *,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: Array | None = None,
    layout: Layout = "nchw",
    math: Math = "float32",
    out: Array | None = None,
    queue: Any = None,
    accumulate: bool = False,
    quantization: Quantization | None = None,
) -> Array:
    """Convolve: ``activation(x * w + bias + residual)``.

    Shapes, with 1 to 3 axes of space: x ``[mb, ic, h, w]``, w ``[oc, ic/groups, kh, kw]``, bias ``[oc]``, residual
    and result ``[mb, oc, oh, ow]``; with ``layout="nhwc"`` x and result ``[mb, h, w, c]``, w ``[oc, kh, kw,
    ic/groups]``. ``padding`` is an int, one int or (near, far) pair an axis, ``"same"`` (stride 1, as in PyTorch) or
    ``"valid"``. ``w`` may be ``constant(array)``, whose packed form is then kept. ``accumulate`` adds to what ``out``
    holds.

    Accuracy, in norm against float64 and what enters an output: ``math="float32"`` keeps 1e-5, ``"ieee"`` twice a plain
    float32 sum's error, ``"tf32"`` 2e-3, ``"fast"`` what its solver documents; ``"reproducible"`` has the
    same bits on every device (docs/use/reproducibility.md). Multiplying an image, an output channel,
    or a summed channel (its weights divided by the same) by powers of two costs no digit (docs/use/accuracy.md); in
    ``conv_backward_data`` output channels are summed, in ``conv_backward_weights`` images.

    With ``quantization`` x is int8 or uint8, w int8, bias int32, and y of the quantization's dtype: every element is
    exactly what ONNX's QLinearConv defines (docs/use/quantization.md). Forward only.
    Raises InvalidArgument or InvalidProblem before anything is written, NoSolver when every solver refuses.
    """
    operands = x, w, out
    options = (stride, padding, dilation, groups, activation, layout, math, accumulate)
    last = _LAST_FORWARD.get(id(w))
    # These lines repeat the body of _call, because calling it would add a tenth to the time of a warm call.
    if last is not None and quantization is None and (repeat := last[1].repeat) is not None:
        if bias is residual is queue is None:
            result = repeat(operands, options, None)
        else:
            result = repeat(operands, options, None, bias, residual, queue) if last[1].host else None
        if result is not None:
            return result
    return _looked_up(Request("fwd", operands, options, bias, residual, queue, quantization=quantization))


def conv_backward_data(
    dy: Array,
    w: Any,
    x_shape: Sequence[int],
    *,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    layout: Layout = "nchw",
    math: Math = "float32",
    out: Array | None = None,
    queue: Any = None,
    accumulate: bool = False,
) -> Array:
    """Gradient of ``conv`` with respect to x, of shape ``x_shape``, from the gradient ``dy`` of its result.

    Shapes and options as in ``conv``; ``accumulate`` adds to what ``out`` holds. Raises as ``conv`` does.
    """
    options = stride, padding, dilation, groups, None, layout, math, accumulate
    return _call(Request("bwd_data", (out, w, dy), options, queue=queue, shape=sizes_of("x_shape", x_shape)))


def conv_backward_weights(
    x: Array,
    dy: Any,
    w_shape: Sequence[int],
    *,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    layout: Layout = "nchw",
    math: Math = "float32",
    out: Array | None = None,
    queue: Any = None,
    accumulate: bool = False,
) -> Array:
    """Gradient of ``conv`` with respect to w, of shape ``w_shape``, from the gradient ``dy`` of its result.

    Shapes and options as in ``conv``; ``accumulate`` adds to what ``out`` holds. Raises as ``conv`` does.
    """
    options = stride, padding, dilation, groups, None, layout, math, accumulate
    return _call(Request("bwd_weights", (x, out, dy), options, queue=queue, shape=sizes_of("w_shape", w_shape)))


def conv_transpose(
    x: Array,
    w: Any,
    bias: Any = None,
    *,
    stride: Steps = 1,
    padding: Pads = 0,
    output_padding: Steps = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: Array | None = None,
    layout: Layout = "nchw",
    math: Math = "float32",
    out: Array | None = None,
    queue: Any = None,
) -> Array:
    """Transposed convolution, as PyTorch's ``conv_transpose2d``: the backward-data of a convolution, as a layer.

    x ``[mb, ic, h, w]``, w ``[ic, oc/groups, kh, kw]``, bias ``[oc]``, result ``[mb, oc, oh, ow]`` with ``oh = (h -
    1) * stride - near - far + dilation * (kh - 1) + output_padding + 1``; with ``layout="nhwc"`` channels come last,
    w ``[ic, kh, kw, oc/groups]``. ``output_padding`` is below stride or dilation. Raises as ``conv`` does.
    """
    shape, pads, zeros = transposed_shape(
        shape_of(x, "x"),
        shape_of(w, "w"),
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
    )
    x = extended(x, zeros, layout, queue) if any(zeros) else x
    options = (stride, tuple(pads), dilation, groups, activation, layout, math, False)
    return _call(Request("bwd_data", (out, w, x), options, bias, residual, queue, shape, ("out", "w", "x")))


def _call(request: Request) -> Any:
    direction, operands, options, bias, residual, queue, shape, _, _ = request
    last = LAST[direction].get(id(operands[PLACES[direction][1]]))
    if last is not None and (repeat := last[1].repeat) is not None:
        if bias is residual is queue is None:
            result = repeat(operands, options, shape)
        else:
            result = repeat(operands, options, shape, bias, residual, queue) if last[1].host else None
        if result is not None:
            return result
    return _looked_up(request)


def _looked_up(request: Request) -> Any:
    """Makes a call as ``_call`` does, but looks it up in the cache by its key."""
    direction, operands, options, bias, residual, queue, shape, _, quantization = request
    first, second, written = PLACES[direction]
    input1, input2 = operands[first], operands[second]
    key: Any = None
    last: Any = None
    call: Any = None
    runtime.refuse_forked()
    library = library_of(type(input1))
    devices = None if library is None else library.places(request.arrays)
    try:
        key = request.key(devices)
        last = LAST[direction].get(id(input2), (None, None))[1]
        call = cached_call(direction, key, input2)
    except TypeError:  # the options contain a list, which cannot be hashed, or an operand is not an array
        changed, key = tuple(map(hashable, options)), None
        if changed != options:
            return _looked_up(request._replace(options=changed))
    except AttributeError:
        key = None
    if call is None:
        converted = with_kind_of(request.arrays, library, input1, written)
        if converted is not None:  # some operands were of another kind than the first input, and have been converted
            x, w, y, bias, residual = converted
            result = _looked_up(request._replace(operands=(x, w, y), bias=bias, residual=residual))
            return result if operands[written] is None else operands[written]

        describe = functools.partial(described_call, request, library, devices)
        call = describe() if key is None else CALLS.make(key, describe)
    if quantization is not None:
        bias = table_for(quantization, call.problem, bias, options[4], library)
    elif last is call and call.repeat is None:
        call.repeat = call.replay(library, (*operands, bias, residual, queue), options, shape)
    x, w, y = operands
    return call(x, w, y, bias, None, residual, queue)


def extended(x: Any, rows: Sequence[int], layout: str, queue: Any = None) -> Any:
    """Returns a new array of x's kind and queue: ``x`` with ``rows`` zeros appended at the end of each spatial axis."""
    first_axis = 2 if layout == "nchw" else 1
    appended = [0] * len(x.shape)
    appended[first_axis : first_axis + len(rows)] = rows
    if isinstance(x, np.ndarray):
        return np.pad(x, [(0, extra) for extra in appended])
    shape, dtype = tuple(size + extra for size, extra in zip(x.shape, appended, strict=True)), x.dtype
    strides = contiguous_strides(shape, dtype.itemsize)
    queue = x.queue if queue is None else queue
    result = maker_of(type(x), shape, strides, dtype)(queue, x)
    if math.prod(x.shape):
        operands = Operands(queue, queue.context)
        source = operands.read(x, contiguous_strides(tuple(x.shape), dtype.itemsize))
        axes = [CopyAxis(*each) for each in zip(shape, contiguous(shape), contiguous(x.shape), x.shape, strict=True)]
        copy = Copy("x", "x", (*(CopyAxis(1, 0, 0, 1) for _ in range(6 - len(axes))), *axes))
        launch = copy.launch(queue.context, SimpleNamespace(itemsize=dtype.itemsize))  # type: ignore[arg-type]
        event = operands.finish(launch(queue, (result.base_data, source), operands.events or None))
        if hasattr(result, "events"):
            result.events[:] = (event,)
    return result


def explain(
    problem: Any,
    w: Any = None,
    bias: Any = None,
    *,
    device: Any = None,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: Any = None,
    layout: Layout = "nchw",
    math: Math = "float32",
) -> Explanation:
    """Every solver's answer to a problem: refused with the reason, or accepted with its rank, and the source of the
    choice.

    ``explain(problem, device)`` takes a ConvProblem or its text, and what ``runtime.find_device`` takes;
    ``explain(x, w, bias, ...)`` the arguments of a call of ``conv``, which is not made. Compiles nothing, runs nothing.
    Raises InvalidArgument, InvalidProblem, and MemoryLimit for what the device cannot hold.
    """
    from ..selection import explanation  # imported here, because a first conv() does not need it

    if isinstance(problem, (ConvProblem, str)):
        return explanation.explain(problem, w if device is None else device)
    for name, array in (("x", problem), ("w", w)):
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise InvalidArgument(
                f"explain takes a problem, such as 'mb1ic64ih56oc64kh3ph1', or arrays x and w as conv does; got "
                f"{type(array).__name__} for {name}"
            )
    dtype = str(problem.dtype).rpartition(".")[2]  # PyTorch's dtypes print as torch.float32
    options = (stride, padding, dilation, groups, activation, layout, math, False)
    described = described_problem(Request("fwd", (problem, w, None), options, bias, residual), dtype)
    queue = getattr(problem, "queue", None)
    return explanation.explain(described, device if device is not None else getattr(queue, "device", None))
