"""Quantized convolutions for trials: random operands with a table, and the exact result as ONNX rounds it.

Sums are integers in float64; the operations after them are float32, in the order that ``Quantization`` defines. A
solver's result is right if every element equals this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..api.dtypes import FLOAT8, HEADER, numpy_dtype
from ..api.problem import ConvProblem
from ..api.quantization import Quantization, Table


def random_operands(problem: ConvProblem, seed: int, whole: bool = False) -> dict[str, np.ndarray]:
    """x and w over all values of 8 bits, a residual, and a table with which y covers its range and saturates.

    For float8 they are normal or, with ``whole``, integers with scales for which all but the last rounding is exact.
    """
    random = np.random.default_rng(seed)
    if problem.dtype in FLOAT8:
        return _float8_operands(problem, random, whole)
    out_dtype, limits = problem.out_dtype or "int32", np.iinfo(problem.dtype)
    x = random.integers(limits.min, limits.max + 1, problem.x_shape).astype(problem.dtype)
    w = random.integers(-128, 128, problem.w_shape).astype(np.int8)
    length = problem.ic // problem.g * problem.kd * problem.kh * problem.kw
    # This is about the standard deviation of a sum of ``length`` products of 8-bit values.
    spread = 128.0 * 74.0 * math.sqrt(length)
    scale = (random.random(problem.oc) + 0.5) * (60.0 if problem.out_itemsize == 1 else 1.0) / spread
    operands = {"x": x, "w": w}
    parameters = {"x_zero_point": int(random.integers(limits.min, limits.max + 1)), "dtype": out_dtype}
    if problem.out_itemsize == 1:
        low, high = np.iinfo(out_dtype).min, np.iinfo(out_dtype).max
        parameters |= {"y_scale": 1.0, "y_zero_point": int(random.integers(low // 2 + high // 4, high))}
        parameters |= {"residual_zero_point": int(random.integers(low, high + 1)), "residual_scale": 0.37}
        if problem.residual and seed % 2:
            parameters |= {"sum_scale": 1.5, "y_scale": 1.25, "sum_zero_point": int(random.integers(low, high + 1))}
    quantization = Quantization(w_scale=scale.astype(np.float32), **parameters)  # type: ignore[arg-type]
    bias = random.integers(-(1 << 12), 1 << 12, problem.oc).astype(np.int32)
    activation = "relu" if seed % 3 == 0 else None
    operands["bias"] = quantization.table(problem.oc, bias, activation=activation, residual=problem.residual)
    if problem.residual:
        if np.dtype(out_dtype).kind in "iu":
            limits_out = np.iinfo(out_dtype) if problem.out_itemsize == 1 else np.iinfo(np.int16)
            drawn = random.integers(limits_out.min, limits_out.max + 1, problem.y_shape)
            operands["residual"] = drawn.astype(out_dtype)
        else:
            operands["residual"] = random.standard_normal(problem.y_shape).astype(out_dtype)
    return operands


def _float8_operands(problem: ConvProblem, random: np.random.Generator, whole: bool) -> dict[str, np.ndarray]:
    def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        values = random.integers(-8, 9, shape) if whole else random.standard_normal(shape)
        return values.astype(numpy_dtype(dtype))

    length = problem.ic // problem.g * problem.kd * problem.kh * problem.kw
    scale = (random.random(problem.oc) + 0.5) / math.sqrt(length)
    parameters: dict[str, Any] = {"dtype": problem.out_dtype, "residual_scale": 0.375 if whole else 0.37}
    if whole:  # About 24 is the standard deviation of a product of two of these integers.
        scale = 2.0 ** np.rint(np.log2(scale / 24))
    if problem.out_dtype in FLOAT8:
        import ml_dtypes

        scaled = 3 / float(ml_dtypes.finfo(numpy_dtype(problem.out_dtype)).max)
        parameters["y_scale"] = 2.0 ** round(math.log2(scaled)) if whole else scaled
    if problem.residual and problem.out_dtype not in FLOAT8:
        parameters["residual_scale"] = 1.0
    bias = scale * random.integers(-50, 50, problem.oc)
    quantization = Quantization(x_scale=1.0 if whole else 0.9, w_scale=scale.astype(np.float32), **parameters)
    operands = {"x": drawn(problem.x_shape, problem.dtype), "w": drawn(problem.w_shape, problem.dtype)}
    activation = "clip(-1.5, 2)" if random.integers(3) == 0 else None
    operands["bias"] = quantization.float8_table(problem.oc, bias.astype(np.float32), activation=activation)
    if problem.residual:
        operands["residual"] = drawn(problem.y_shape, problem.written_dtype)
    return operands


def _float8_finished(
    problem: ConvProblem, sums: np.ndarray, floats: np.ndarray, channel: Any, residual: np.ndarray | None
) -> np.ndarray:
    oc, out_dtype = problem.oc, numpy_dtype(problem.written_dtype)
    v = sums.astype(np.float32) * channel(floats[HEADER + oc :]) + channel(floats[HEADER : HEADER + oc])
    if residual is not None:
        v = v + residual.astype(np.float32) * floats[Table.residual_scale]
    v = np.clip(v, floats[Table.low], floats[Table.high])
    if problem.written_dtype in FLOAT8:
        import ml_dtypes

        largest = np.float32(ml_dtypes.finfo(out_dtype).max)
        v = np.clip(v / floats[Table.y_scale], -largest, largest)
    return v.astype(out_dtype).astype(np.float64)


def centred(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """x minus its zero point, in float64, so that padding adds 0 to a sum."""
    return x.astype(np.float64) - float(table[Table.x_zero])


def finished(
    problem: ConvProblem,
    sums: np.ndarray,
    table: np.ndarray,
    channel: Callable[[np.ndarray], np.ndarray],
    residual: np.ndarray | None,
) -> np.ndarray:
    """y in float64, from exact sums of the same shape; ``channel`` broadcasts numbers per channel to that shape."""
    oc, floats = problem.oc, table.view(np.float32)
    if problem.dtype in FLOAT8:
        return _float8_finished(problem, sums, floats, channel, residual)
    integers = sums.astype(np.int64) + channel(table[HEADER : HEADER + oc]).astype(np.int64)
    if problem.out_dtype == "int32":
        if residual is not None:
            integers = _as_int32(integers) + residual.astype(np.int64)
        return np.clip(_as_int32(integers), table[Table.least], table[Table.most]).astype(np.float64)
    v = _as_int32(integers).astype(np.float32) * channel(floats[HEADER + oc :])
    if residual is not None:
        v = np.rint(v) if table[Table.rounds] else v
        v = np.clip(v, floats[Table.sum_low], floats[Table.sum_high]) * floats[Table.sum_scale]
        r = residual.astype(np.float32) - np.float32(table[Table.residual_zero])
        v = v + r * floats[Table.residual_scale]
        v = v / floats[Table.y_scale] if problem.out_itemsize == 1 else v
    v = np.clip(v, floats[Table.low], floats[Table.high])
    if problem.out_itemsize == 1:
        return np.rint(v).astype(np.float64) + float(table[Table.y_zero])
    return v.astype(problem.out_dtype).astype(np.float64)


def _as_int32(whole: np.ndarray) -> np.ndarray:
    """Integers after the overflow of int32, as int64."""
    return whole.astype(np.int32).astype(np.int64)
