"""``conv`` on integers of 8 bits: arrays and a Quantization become a problem, its table and a plan that runs.

Arrays are NumPy's, ``pyopencl.array.Array``, ``Tensor``, or another library's in host memory (torch's int8 and uint8
tensors). What comes in decides what goes out, as in ``conv``; y is of the quantization's dtype.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import numpy as np

from ..api.dtypes import INTEGERS
from ..api.errors import InvalidArgument
from ..api.policy import current_policy, forbid_when_frozen
from ..api.problem import ConvProblem
from ..api.quantization import Quantization
from ..device import runtime
from ..device.commands import host_memory
from ..selection import dispatch
from ..selection.prepared import Constant
from .arguments import describe
from .arrays.accepted import is_array, refuse_mask
from .arrays.array_library import Library
from .arrays.known_libraries import library_of
from .arrays.operands import Operands, check_written, contiguous_strides, overlaps
from .bound_call import maker_of
from .quantized_cuda import CudaQuantized

_tables: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Constant, Any]]] = weakref.WeakKeyDictionary()
"""By quantization, and by bias where that is constant: tables that need not be made again."""


def quantized_problem(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, quantization: Quantization, **options: Any
) -> ConvProblem:
    """The problem of shapes, x's dtype and options as ``conv`` has them, but for the activation, which is in the table.

    Raises InvalidArgument, InvalidProblem.
    """
    if dtype not in INTEGERS:
        raise InvalidArgument(
            f"with quantization x must be of {', '.join(INTEGERS)}, got {dtype}: quantize it by "
            "np.clip(np.rint(x / x_scale) + x_zero_point, ...)"
        )
    frozen = {name: _tuples(value) for name, value in options.items()}
    return _described(x_shape, w_shape, dtype, quantization.dtype, **frozen)


@functools.lru_cache(maxsize=1024)
def _described(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, out_dtype: str, **options: Any
) -> ConvProblem:
    given: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "nchw"}
    return describe("fwd", x_shape, w_shape, None, dtype, **given | options, out_dtype=out_dtype)


def _tuples(option: Any) -> Any:
    return tuple(map(_tuples, option)) if isinstance(option, list | tuple) else option


def table_of(
    quantization: Quantization, problem: ConvProblem, bias: Any = None, activation: str | None = None
) -> Constant:
    """The table that the problem's kernels read, made once where the bias is constant or there is none.

    Raises InvalidArgument.
    """
    limits = np.iinfo(problem.dtype)
    if not limits.min <= quantization.x_zero_point <= limits.max:
        raise InvalidArgument(
            f"x_zero_point must lie within {problem.dtype}, {limits.min} to {limits.max}, "
            f"got {quantization.x_zero_point}"
        )
    known = _tables.setdefault(quantization, {})
    key = problem.oc, id(bias), activation, problem.residual
    found = known.get(key)
    if found is not None:
        return found[0]
    values = bias.array if isinstance(bias, Constant) else bias
    values = values.numpy() if hasattr(values, "numpy") else values.get() if hasattr(values, "get") else values
    made = Constant(quantization.table(problem.oc, values, activation=activation, residual=problem.residual))
    if bias is None or isinstance(bias, Constant):
        known[key] = made, bias  # the bias lives as long, so that its id stays its own
    return made


def quantized_conv(
    x: Any,
    w: Any,
    bias: Any,
    quantization: Any,
    *,
    activation: str | None = None,
    residual: Any = None,
    out: Any = None,
    queue: Any = None,
    **options: Any,
) -> Any:
    """``conv(x, w, bias, quantization=...)``. Raises as ``conv`` does."""
    if not isinstance(quantization, Quantization):
        raise InvalidArgument(f"quantization must be a Quantization, got {quantization!r}")
    for name, array in (("x", x), ("w", w), ("bias", bias), ("residual", residual), ("out", out)):
        if not (array is None and name in ("bias", "residual", "out")) and not is_array(array):
            raise InvalidArgument(f"{name} must be an array, got {type(array).__name__}")
        refuse_mask(name, getattr(array, "array", array))
    library = library_of(type(x))
    if library is not None:
        return _of_library(library, x, w, bias, residual, out, quantization, activation, queue, options)
    problem = _checked(x, w, x.dtype.name, w.dtype.name, quantization, residual is not None, options)
    if isinstance(w, Constant):
        problem = problem.replace(constant_weights=True)
    table = table_of(quantization, problem, bias, activation)
    dtype, shape = np.dtype(quantization.dtype), problem.y_shape
    for name, array in (("residual", residual), ("out", out)):
        if array is not None and (tuple(array.shape) != shape or array.dtype != dtype):
            raise InvalidArgument(
                f"{name} must be {dtype.name} of shape {shape}, as y is, got {array.dtype.name} of {tuple(array.shape)}"
            )
    return _run(problem, table, x, w, residual, out, queue)


def _checked(
    x: Any, w: Any, kind: str, w_kind: str, quantization: Quantization, residual: bool, options: dict[str, Any]
) -> ConvProblem:
    """The problem of arrays of these dtypes. Raises InvalidArgument, InvalidProblem."""
    if options.pop("accumulate", False):
        raise InvalidArgument("a quantized convolution does not accumulate: give what is to be added as residual")
    if w_kind != "int8":
        raise InvalidArgument(
            f"a quantized convolution's w is int8 with zero point 0, got {w_kind}: of uint8 subtract 128 from "
            "the weights and from their zero point; of 4 bits unpack them"
        )
    return quantized_problem(tuple(x.shape), tuple(w.shape), kind, quantization, residual=residual, **options)


def _run(problem: ConvProblem, table: Constant, x: Any, w: Any, residual: Any, out: Any, queue: Any) -> Any:
    on_host, dtype = isinstance(x, np.ndarray), np.dtype(problem.out_dtype)
    for name, array in (("w", w), ("residual", residual), ("out", out)):
        inner = array.array if isinstance(array, Constant) else array
        if inner is not None and isinstance(inner, np.ndarray) != on_host and not isinstance(array, Constant):
            raise InvalidArgument(f"{name} must be where x is, NumPy's or on a device")
    queue = queue or (runtime.queue() if on_host else x.queue)
    if queue is None:
        raise InvalidArgument("the array has no queue: pass queue=, or give the array one with with_queue()")
    strides = contiguous_strides(problem.y_shape, dtype.itemsize)
    result = out
    if on_host:
        if out is not None:
            check_written(out)
        read = [getattr(each, "array", each) for each in (x, w, residual) if each is not None]
        aliased = out is not None and any(np.may_share_memory(out, each) for each in read)
        if out is None or aliased or not out.flags.carray:
            result = host_memory.empty(
                queue.device, problem.y_shape, dtype, max(1, problem.out_itemsize * _count(problem))
            )
    elif out is None:
        forbid_when_frozen("allocate the result (pass out=)")
        result = maker_of(type(x), problem.y_shape, strides, dtype)(queue, x)
    else:
        shifted = residual if residual is not None and residual.offset != out.offset else None
        for name, array in (("x", x), ("w", w), ("residual", shifted)):
            if array is not None and overlaps(out, array):
                raise InvalidArgument(
                    f"out shares memory with {name}, which would change while it is read: pass an out of its own"
                )
    if _count(problem):
        prepared = dispatch.prepare(problem, queue.context, current_policy())
        brought = Operands(queue, queue.context, on_host and host_memory.has_system_svm(queue.device))
        try:
            given = [brought.read(each, contiguous_strides(each.shape, each.dtype.itemsize)) for each in (x, w)]
            words = brought.read(table, (4,))
            added = None if residual is None else brought.read(residual, strides)
            memory = brought.write(result, strides)
            promise = w if isinstance(w, Constant) else None
            rest = words, added, brought.events or None, promise
            event = brought.finish(dispatch.run(problem, prepared, brought.commands, *given, memory, *rest))
        except BaseException:
            brought.abandon()
            raise
        if hasattr(result, "events"):
            result.events[:] = (event,)
    if out is not None and result is not out:
        out[...] = result
        return out
    return result


def _count(problem: ConvProblem) -> int:
    return int(np.prod(problem.y_shape))


def _of_library(
    library: Library,
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    out: Any,
    quantization: Quantization,
    activation: str | None,
    queue: Any,
    options: dict[str, Any],
) -> Any:
    """Another library's arrays, in host memory or on a CUDA device, read and written in place."""
    given = (x, w, bias, residual, out)
    if any(library.place(each) is not None for each in given):
        if queue is not None:
            raise InvalidArgument("arrays on a CUDA device go to their library's current stream: pass no queue")
        call = CudaQuantized(library, x)
        bias = call.on_host(bias)
        kind, w_kind = library.dtype(x), call.dtype(w)
        problem = _checked(x, w, kind, w_kind, quantization, residual is not None, options)
        if isinstance(w, Constant):
            problem = problem.replace(constant_weights=True)
        return call(problem, table_of(quantization, problem, bias, activation), w, residual, out)

    def seen(array: Any) -> Any:
        if array is None or isinstance(array, np.ndarray):
            return array
        if isinstance(array, Constant):
            return array.seen_as("host", lambda: library.host(array.array))
        return library.host(array)

    x_, w_, bias_, residual_, out_ = map(seen, given)
    y = quantized_conv(
        x_, w_, bias_, quantization, activation=activation, residual=residual_, out=out_, queue=queue, **options
    )
    return out if out is not None else library.from_host(y, x[:0])
