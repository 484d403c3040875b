"""``conv`` on numbers of 8 bits: arrays and a Quantization become a problem and its table.

Arrays are NumPy's, ``pyopencl.array.Array``, ``Tensor``, or another library's in host memory (torch's int8, uint8
and float8 tensors). The result is of the inputs' kind, as in ``conv``, and of the quantization's dtype.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..api.dtypes import FLOAT8, INTEGERS, QUANTIZED_INPUTS
from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..api.quantization import Quantization
from ..selection.prepared import Constant
from .arguments import Request, cached_problem, hashable
from .arrays.array_library import Library

_tables: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Constant, Any]]] = weakref.WeakKeyDictionary()
"""Tables of quantized convolutions, by quantization, problem and constant bias."""


def quantized_problem(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: str, quantization: Quantization, **options: Any
) -> ConvProblem:
    """The problem of shapes, x's dtype and ``conv``'s options, except the activation, which is in the table.

    Raises InvalidArgument, InvalidProblem.
    """
    if dtype not in QUANTIZED_INPUTS:
        raise InvalidArgument(
            f"with quantization x must be of {', '.join(QUANTIZED_INPUTS)}, got {dtype}: quantize it by "
            "np.clip(np.rint(x / x_scale) + x_zero_point, ...)"
        )
    frozen = {name: hashable(value) for name, value in options.items()}
    return cached_problem("fwd", x_shape, w_shape, None, dtype, **frozen, out_dtype=quantization.dtype)


def table_of(
    quantization: Quantization, problem: ConvProblem, bias: Any = None, activation: str | None = None
) -> Constant:
    """The table that the problem's kernels read, cached if there is no bias or it is constant.

    Raises InvalidArgument.
    """
    limits = None if problem.dtype in FLOAT8 else np.iinfo(problem.dtype)
    if limits and not limits.min <= quantization.x_zero_point <= limits.max:
        raise InvalidArgument(
            f"x_zero_point must lie within {problem.dtype}, {limits.min} to {limits.max}, "
            f"got {quantization.x_zero_point}"
        )
    tables = _tables.setdefault(quantization, {})
    key = problem.oc, id(bias), activation, problem.residual
    cached = tables.get(key)
    if cached is not None:
        return cached[0]
    values = bias.array if isinstance(bias, Constant) else bias
    values = values.numpy() if hasattr(values, "numpy") else values.get() if hasattr(values, "get") else values
    table = quantization.float8_table if problem.dtype in FLOAT8 else quantization.table
    result = Constant(table(problem.oc, values, activation=activation, residual=problem.residual))
    if bias is None or isinstance(bias, Constant):
        tables[key] = result, bias  # the entry keeps the bias alive, so that no other object gets its id
    return result


def checked_problem(request: Request, kind: str, w_kind: str) -> ConvProblem:
    """The problem of a request whose x and w are of these dtypes. Raises InvalidArgument, InvalidProblem."""
    x, w, _ = request.operands
    assert request.quantization is not None
    stride, padding, dilation, groups, _, layout, math, accumulate = request.options
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    options |= {"math": math, "residual": request.residual is not None}
    if accumulate:
        raise InvalidArgument("a quantized convolution does not accumulate: give what is to be added as residual")
    if kind in FLOAT8 and w_kind != kind:
        raise InvalidArgument(
            f"a convolution of {kind} has w of {kind} too, got {w_kind}: cast one to the other's dtype"
        )
    if kind in INTEGERS and w_kind != "int8":
        raise InvalidArgument(
            f"a quantized convolution's w is int8 with zero point 0, got {w_kind}: of uint8 subtract 128 from "
            "the weights and from their zero point; of 4 bits unpack them"
        )
    problem = quantized_problem(tuple(x.shape), tuple(w.shape), kind, request.quantization, **options)
    return problem.replace(constant_weights=True) if isinstance(w, Constant) else problem


def table_for(
    quantization: Quantization, problem: ConvProblem, bias: Any, activation: str | None, library: Library | None
) -> Constant:
    """``table_of`` a call's bias; a bias on a CUDA device is first copied to the host, which waits."""
    if library is not None and bias is not None and library.place(bias) is not None:
        if isinstance(bias, Constant):
            device_bias = bias.array
            bias = bias.seen_as("host", lambda: library.fetch(device_bias))
        else:
            bias = library.fetch(bias)
    return table_of(quantization, problem, bias, activation)
