"""The data of a trial: random operands for a problem, and the largest error at which a result counts as right."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np

from ...api.dtypes import ALL_DTYPES, INTEGERS, numpy_dtype
from ...api.problem import ConvProblem
from .. import quantized, reference
from .families import draw, entering, plane_positions

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


PLANES = 8
"""The number of planes of the output that are compared."""
ELEMENTS_PER_PLANE = 8
"""The number of elements of each plane that are compared."""


class Scaled:
    """A problem's operands of the family "scaled", and the expected values of sampled planes."""

    def __init__(self, problem: ConvProblem, seed: int = 0) -> None:
        self.host: Mapping[str, np.ndarray] = draw("scaled", problem, seed)
        self.at = plane_positions(problem, PLANES, ELEMENTS_PER_PLANE, seed)
        self._expected: dict[ConvProblem, tuple[np.ndarray, np.ndarray]] = {}

    def error(self, problem: ConvProblem, got: np.ndarray) -> float:
        """The error of ``got``, the result's elements at ``at.ravel()``; infinite if one is not finite.

        ``problem`` is that of the operands, perhaps without a part of its epilogue.
        """
        if not self.at.size:
            return 0.0
        if problem not in self._expected:
            at, operands = self.at.ravel(), operands_of(problem, self.host)
            expected = reference.sample(problem, at, **operands)
            size = np.maximum(np.abs(expected), entering(problem, operands, at))
            self._expected[problem] = expected, np.maximum(size, np.finfo(np.float64).tiny)
        expected, size = self._expected[problem]
        got = np.asarray(got).astype(np.float64).ravel()
        if not np.isfinite(got).all():
            return float("inf")
        errors = ((got - expected) / size).reshape(self.at.shape)
        return float(np.sqrt((errors**2).mean(axis=1)).max())

    @staticmethod
    def limit(problem: ConvProblem, normal: float) -> float:
        """The largest error that counts as right, if the error on normal data is ``normal``."""
        return max(error_limit(problem), 3 * normal)
