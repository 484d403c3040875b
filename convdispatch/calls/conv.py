"""conv, conv_backward_data, conv_backward_weights, conv_transpose: the calls that a framework makes.

Arrays are NumPy's, ``pyopencl.array.Array``, ``convdispatch.Tensor``, or another library's on the host or a CUDA device
(see ``libraries``); what comes in decides what goes out. Calls on host memory return when the result is there; the
others enqueue on their queue, or their library's current stream, and return at once.

A warm call is one look-up: everything that shapes, dtypes and options decide was decided when they were first seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..api.literals import Activation, Array, Layout, Math, Padding, Pads, Steps
from ..api.policy import current_policy
from ..api.quantization import Quantization
from ..device import runtime
from ..selection.prepared import Constant, constant
from .arguments import described_problem, sizes_of, transposed_shape
from .arrays.accepted import brought, shape_of
from .arrays.array_library import Library
from .arrays.known_libraries import BARE, Torch, library_of
from .bound_call import PLACES, Call, view_of
from .call_cache import CALLS, LAST, cached_call
from .cuda_call import CudaCall, one_library
from .guarded_replay import replay_on_host, replay_on_queue, replay_on_stream
from .output_padding import extended
from .quantized import quantized_conv

__all__ = ["constant", "conv", "conv_backward_data", "conv_backward_weights", "conv_transpose"]

_LAST_FORWARD = LAST["fwd"]
_READ = {"fwd": (0, 1), "bwd_data": (2, 1), "bwd_weights": (0, 2)}
_WRITTEN = {"fwd": 2, "bwd_data": 0, "bwd_weights": 1}


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
    float32 sum's error, ``"tf32"`` 2e-3, ``"fast"`` what its solver documents. Multiplying an image, an output channel,
    or a summed channel (its weights divided by the same) by powers of two costs no digit (docs/use/accuracy.md); in
    ``conv_backward_data`` output channels are summed, in ``conv_backward_weights`` images.

    With ``quantization`` x is int8 or uint8, w int8, bias int32, and y of the quantization's dtype: every element is
    exactly what ONNX's QLinearConv defines (docs/use/quantization.md). Forward only.
    Raises InvalidArgument or InvalidProblem before anything is written, NoSolver when every solver refuses.
    """
    if quantization is not None:
        return quantized_conv(
            x, w, bias, quantization, stride=stride, padding=padding, dilation=dilation, groups=groups,
            activation=activation, residual=residual, layout=layout, math=math, out=out, queue=queue,
            accumulate=accumulate,
        )  # fmt: skip
    operands = x, w, out
    options = (stride, padding, dilation, groups, activation, layout, math, accumulate)
    last = _LAST_FORWARD.get(id(w))
    if last is not None and (again := last.again) is not None:  # as _call has it: a call of it would cost a tenth
        if bias is residual is queue is None:
            done = again("fwd", operands, options, None)
        else:
            done = again("fwd", operands, options, None, bias, residual, queue) if last.host else None
        if done is not None:
            return done
    return _looked_up("fwd", operands, bias, residual, queue, options)


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
    return _call(
        "bwd_data",
        (out, w, dy),
        None,
        None,
        queue,
        (stride, padding, dilation, groups, None, layout, math, accumulate),
        sizes_of("x_shape", x_shape),
    )


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
    return _call(
        "bwd_weights",
        (x, out, dy),
        None,
        None,
        queue,
        (stride, padding, dilation, groups, None, layout, math, accumulate),
        sizes_of("w_shape", w_shape),
    )


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
    if not (hasattr(x, "shape") and hasattr(w, "shape")):
        x, w = brought((x, w), x, 2) or (x, w)
    shape, pads, rows = transposed_shape(
        shape_of(x, "x"),
        shape_of(w, "w"),
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
    last = LAST[direction].get(id(operands[PLACES[direction][1]]))
    if last is not None and (again := last.again) is not None:
        if bias is residual is queue is None:
            done = again(direction, operands, options, shape)
        else:
            done = again(direction, operands, options, shape, bias, residual, queue) if last.host else None
        if done is not None:
            return done
    return _looked_up(direction, operands, bias, residual, queue, options, shape, names)


def _looked_up(
    direction: str,
    operands: tuple[Any, Any, Any],
    bias: Any,
    residual: Any,
    queue: Any,
    options: tuple[Any, ...],
    shape: tuple[int, ...] | None = None,
    names: tuple[str, str, str] = ("x", "w", "y"),
) -> Any:
    """As ``_call``, by all that decides the call."""
    first, second, written = PLACES[direction]
    read, other = operands[first], operands[second]
    runtime.refuse_forked()
    library = library_of(kind := type(read))
    if library is not None and library is not BARE:
        return _call_library_arrays(library, direction, operands, bias, residual, queue, options, shape, names)
    try:
        dtype, beside = read.dtype, other.dtype
        key: Any = (
            direction,
            read.shape,
            other.shape,
            shape,
            dtype,
            beside is dtype or beside,  # no None: NumPy's float64 equals it
            options,
            kind,
            type(other),
            type(operands[written]),
            queue if queue is not None or kind is np.ndarray else getattr(read, "queue", None),
            None if bias is None else (bias.shape, bias.dtype, type(bias)),
            None if residual is None else (residual.shape, residual.dtype, type(residual)),
            current_policy(),
        )
        last = LAST[direction].get(id(other))
        call = cached_call(direction, key, other)
    except TypeError:  # a list among the options, or something that is no array
        changed = tuple(map(_hashable, options))
        if changed != options:
            return _looked_up(direction, operands, bias, residual, queue, changed, shape, names)
        key = call = last = None
    except AttributeError:
        key = call = last = None
    if call is None:
        done = _brought(direction, operands, bias, residual, queue, options, shape, names)
        if done is not None:
            return done

        def describe_call() -> Call:
            return _describe_call(direction, operands, bias, residual, queue, options, shape, names)

        call = describe_call() if key is None else CALLS.make(key, describe_call)
    if last is not None and last is call and call.again is None and call.fast_path:
        if call.host:
            given = (*operands, bias, residual, queue)
            call.again = replay_on_host(call, call.fast_path, given, options, shape)
        elif bias is residual is queue is None:
            call.again = replay_on_queue(call, operands, options, shape)
    x, w, y = operands
    return call(x, w, y, bias, residual, queue)


def _brought(direction: str, operands: tuple[Any, Any, Any], bias: Any, residual: Any, *rest: Any) -> Any:
    """The call's result where an operand had to be brought to the leading one's kind first; else None."""
    lead, _, written = PLACES[direction]
    given = brought((*operands, bias, residual), operands[lead], written)
    if given is None:
        return None
    result, out = _call(direction, given[:3], *given[3:], *rest), operands[written]
    return result if out is None else out


def _hashable(option: Any) -> Any:
    """An option's lists as tuples, so that a call with lists is found again too."""
    return tuple(map(_hashable, option)) if type(option) in (list, tuple) else option


def _call_library_arrays(
    library: Library,
    direction: str,
    operands: tuple[Any, Any, Any],
    bias: Any,
    residual: Any,
    queue: Any,
    options: tuple[Any, ...],
    shape: tuple[int, ...] | None,
    names: tuple[str, str, str],
) -> Any:
    """As ``_call`` for arrays of another library."""
    (read, other), written = _READ[direction], _WRITTEN[direction]
    lead, second, given = operands[read], operands[other], (*operands, bias, residual)
    looked = library.places(given)
    key = None
    try:
        dtype, beside = lead.dtype, second.dtype
        key = (
            direction, lead.shape, second.shape, shape, dtype, beside is dtype or beside, options, looked,
            library, queue,
            None if bias is None else (bias.shape, bias.dtype),
            None if residual is None else (residual.shape, residual.dtype), current_policy(),
        )  # fmt: skip
        last = LAST[direction].get(id(second))
        call = cached_call(direction, key, second)
    except (TypeError, AttributeError):  # a list among the options, or something that is no array
        key = call = last = None
    if call is None:
        done = _brought(direction, operands, bias, residual, queue, options, shape, names)
        if done is not None:
            return done
    if looked[read] is None:
        if call is None:

            def on_host() -> Call:
                kind, places = type(lead), looked[: len(given)]
                if any(each is not None and type(each) is not kind for each in given) or any(
                    place is not None for place in places
                ):
                    one_library(library, direction, given, places, names)

                x, w, y, *rest = (view_of(library, each) for each in given)
                made = _describe_call(direction, (x, w, y), *rest, queue, options, shape, names)
                made.adopt(library, lead)
                return made

            call = on_host() if key is None else CALLS.make(key, on_host)
        warm = last is not None and last is call and call.again is None and call.fast_path
        if warm and type(library) is Torch and type(second) is not Constant:
            call.again = replay_on_host(call, call.fast_path, (*given, queue), options, shape)
        return call(*given, queue)
    if call is None:
        if queue is not None:
            raise InvalidArgument("arrays on a CUDA device go to their library's current stream: pass no queue")

        def describe_call() -> CudaCall:
            roles, dtype = one_library(library, direction, given, looked[: len(given)], names)
            problem = described_problem(direction, operands, bias, residual, dtype, options, shape, names)
            return CudaCall(problem, library, looked[read], written, roles, library.stream(lead, looked[read]))

        call = describe_call() if key is None else CALLS.make(key, describe_call)
    if last is not None and last is call and call.again is None and call.plain and type(library) is Torch:
        call.again = replay_on_stream(call, library, operands, options, shape)
    return call(*given)


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
    for place, (array, name) in enumerate(zip(operands, names, strict=True)):
        if place != _WRITTEN[direction]:
            shape_of(array, "dy" if name == "y" and direction != "fwd" else name)
    kind = Call.kind_of(operands, bias, residual, direction, names)
    problem = described_problem(direction, operands, bias, residual, kind.dtype, options, shape, names)
    return Call(problem, kind, bias, residual, queue, operands, names)
