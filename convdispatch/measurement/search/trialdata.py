"""The data of a trial: random operands for a problem, and the largest error at which a result counts as right."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np

from ...api.dtypes import ALL_DTYPES, INTEGERS, numpy_dtype
from ...api.problem import ConvProblem
from .. import quantized, reference

RANDOM_PERIOD = 4194301
"""The period in elements of repeated random data; it is prime, so that repeats fall on different channels and
pixels."""
_MATH_LIMITS = {"float32": 1e-5, "tf32": 2e-3, "fast": 5e-2}


def error_limit(problem: ConvProblem) -> float:
    """The largest relative error (norm, against float64, standard normal data) at which a result counts as right.

    For float32 data, and float32 results of float8, ``math`` decides; ``"ieee"`` and ``"reproducible"`` allow twice the
    error of a plain float32 sum of the same length.
    """
    if problem.dtype in INTEGERS:
        return 0.0
    if problem.written_dtype != "float32":
        return ALL_DTYPES[problem.written_dtype].max_error
    if problem.math not in ("ieee", "reproducible"):
        return _MATH_LIMITS[problem.math]
    taps = problem.kd * problem.kh * problem.kw
    length = {
        "fwd": problem.ic // problem.g * taps,
        "bwd_data": problem.oc // problem.g * taps,
        "bwd_weights": problem.mb * problem.od * problem.oh * problem.ow,
    }[problem.direction]
    return 2 * _plain_error(max(1, min(length, 1 << 18)))


@functools.lru_cache(maxsize=256)
def _plain_error(length: int) -> float:
    """The relative error of running float32 sums of ``length`` products, over 32 sums."""
    random = np.random.default_rng(length)
    a, b = random.standard_normal((2, 32, length), np.float32)
    sums = np.cumsum(a * b, axis=1, dtype=np.float32)[:, -1]
    expected = (a.astype(np.float64) * b).sum(axis=1)
    return max(reference.relative_error(sums, expected), 2.0**-24)


def random_operands(problem: ConvProblem, seed: int) -> dict[str, np.ndarray]:
    """Standard normal arrays for a problem's operands, by name; ``initial`` is the output's previous content."""
    if problem.quantized:
        return quantized.random_operands(problem, seed)
    random = np.random.default_rng(seed)
    dtypes = {name: numpy_dtype(problem.form(name)[1]) for name in operand_shapes(problem)}
    return {name: _normal(random, shape, dtypes[name]) for name, shape in operand_shapes(problem).items()}


def operand_shapes(problem: ConvProblem) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all operands that a problem reads, by name, without packed forms."""
    shapes = {name: getattr(problem, name + "_shape") for name in "xwy" if name != problem.written}
    shapes |= {name: problem.form(name)[0] for name in problem.extras if name != "sums"}
    return shapes | ({"initial": problem.out_shape} if problem.accumulate else {})


def _normal(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Standard normal data; after RANDOM_PERIOD elements they repeat, because drawing large arrays takes long."""
    count = math.prod(shape)
    kind = np.float64 if dtype == np.float64 else np.float32
    block = random.standard_normal(min(count, RANDOM_PERIOD), kind).astype(dtype)
    return block.reshape(shape) if count <= RANDOM_PERIOD else np.resize(block, shape)


def operands_of(problem: ConvProblem, host: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of ``host`` that the reference reads for a problem."""
    names = [name for name in "xwy" if name != problem.written]
    names += [name for name in problem.extras if name != "sums"]
    return {name: host[name] for name in [*names, *(["initial"] if problem.accumulate else [])]}
