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
from ..api.policy import current_policy
from ..api.problem import ConvProblem
from ..api.quantization import Quantization
from ..selection.prepared import Constant
from .arguments import describe
from .arrays.accepted import is_array, refuse_mask
from .arrays.array_library import Library
from .arrays.known_libraries import library_of
from .bound_call import Call, Kind
from .call_cache import CALLS
from .cuda_call import CudaCall

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
    library = library_of(type(x))
    if library is not None:
        return _of_library(library, x, w, bias, residual, out, quantization, activation, queue, options)
    try:
        key = (
            x.shape, w.shape, x.dtype, w.dtype, type(x), type(w), type(getattr(w, "array", w)),
            queue if queue is not None else getattr(x, "queue", None),
            None if residual is None else (residual.shape, residual.dtype, type(residual)),
            None if out is None else (out.shape, out.dtype, type(out)),
            quantization, activation, _tuples(tuple(options.items())), current_policy(),
        )  # fmt: skip
        call = CALLS.get(key)
    except (TypeError, AttributeError):  # an option that has no hash, or something that is no array
        key = call = None
    if call is None:

        def described() -> Call:
            _check_kinds(x, w, bias, residual, out, quantization)
            problem = _checked(x, w, x.dtype.name, w.dtype.name, quantization, residual is not None, dict(options))
            return _call(problem, table_of(quantization, problem, bias, activation), x, w, residual, out, queue)

        call = described() if key is None else CALLS.make(key, described)
    table = table_of(quantization, call.problem, bias, activation)
    return call(x, w, out, table, residual, queue)


def _check_kinds(x: Any, w: Any, bias: Any, residual: Any, out: Any, quantization: Any) -> None:
    """Raises InvalidArgument for what is none of the things that a quantized convolution takes."""
    if not isinstance(quantization, Quantization):
        raise InvalidArgument(f"quantization must be a Quantization, got {quantization!r}")
    for name, array in (("x", x), ("w", w), ("bias", bias), ("residual", residual), ("out", out)):
        if not (array is None and name in ("bias", "residual", "out")) and not is_array(array):
            raise InvalidArgument(f"{name} must be an array, got {type(array).__name__}")
        refuse_mask(name, getattr(array, "array", array))


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
    problem = quantized_problem(tuple(x.shape), tuple(w.shape), kind, quantization, residual=residual, **options)
    return problem.replace(constant_weights=True) if isinstance(w, Constant) else problem


def _call(problem: ConvProblem, table: Constant, x: Any, w: Any, residual: Any, out: Any, queue: Any) -> Call:
    """A call for arrays like these. Raises InvalidArgument."""
    dtype, shape, on_host = np.dtype(problem.out_dtype), problem.y_shape, isinstance(x, np.ndarray)
    for name, array in (("residual", residual), ("out", out)):
        if array is not None and (tuple(array.shape) != shape or array.dtype != dtype):
            raise InvalidArgument(
                f"{name} must be {dtype.name} of shape {shape}, as y is, got {array.dtype.name} of {tuple(array.shape)}"
            )
    for name, array in (("w", w), ("residual", residual), ("out", out)):
        if array is not None and not isinstance(array, Constant) and isinstance(array, np.ndarray) != on_host:
            raise InvalidArgument(f"{name} must be where x is, NumPy's or on a device")
    return Call(problem, Kind(on_host, problem.dtype), table, residual, queue, (x, w, out))


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
    _check_kinds(x, w, bias, residual, out, quantization)
    given = (x, w, bias, residual, out)
    if any(library.place(each) is not None for each in given):
        if queue is not None:
            raise InvalidArgument("arrays on a CUDA device go to their library's current stream: pass no queue")
        return _on_cuda(library, x, w, bias, residual, out, quantization, activation, options)

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


def _on_cuda(
    library: Library,
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    out: Any,
    quantization: Quantization,
    activation: str | None,
    options: dict[str, Any],
) -> Any:
    """Arrays on a CUDA device, on the caller's stream; a bias on the device, which its table is made of, waits."""
    number = library.place(x)
    if number is None:
        raise InvalidArgument("x is in host memory, and another operand on a CUDA device: bring them to one place")
    if bias is not None and library.place(bias) is not None:
        held = bias
        bias = held.seen_as("host", lambda: library.fetch(held.array)) if isinstance(held, Constant) else None
        bias = library.fetch(held) if bias is None else bias
    problem = _checked(x, w, library.dtype(x), _dtype(library, w), quantization, residual is not None, options)
    for name, array in (("w", w), ("residual", residual), ("out", out)):
        inner = array.array if isinstance(array, Constant) else array
        if inner is None or (isinstance(inner, np.ndarray) and isinstance(array, Constant)):
            continue
        if library_of(type(inner)) is not library or library.place(inner) != number:
            raise InvalidArgument(f"{name} must be a {library.name} on CUDA's device {number}, as x is")
        found = _dtype(library, inner), tuple(inner.shape)
        if name != "w" and found != (problem.out_dtype, problem.y_shape):
            raise InvalidArgument(
                f"{name} must be {problem.out_dtype} of shape {problem.y_shape}, as y is, got {found[0]} of {found[1]}"
            )
    key = problem, library, number, current_policy()
    call = CALLS.get(key)
    if call is None:
        stream = library.stream(x, number)
        call = CALLS.make(key, lambda: CudaCall(problem, library, number, 2, ("x", "w", "out"), stream))
    return call(x, w, out, table_of(quantization, problem, bias, activation), residual)


def _dtype(library: Library, array: Any) -> str:
    """By NumPy's name; of a constant that of its array."""
    inner = array.array if isinstance(array, Constant) else array
    return str(inner.dtype.name) if isinstance(inner, np.ndarray) else library.dtype(inner)
