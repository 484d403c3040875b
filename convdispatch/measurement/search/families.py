"""Families of data that an accurate convolution computes equally well, drawn for a problem; and errors by plane.

Errors are relative to the terms that enter an output: an accurate solver loses no digit if an image or an output
channel is scaled, or a summed axis of one operand is scaled and that of the other divided by the same. The summed axis
is input channels forward, output channels in data gradients, images in weight gradients. A plane is an image and
channel of the written tensor, or an oc and ic of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...api.problem import ConvProblem
from .. import reference
from .trialdata import error_limit, operands_of, random_operands

FAMILIES = {
    "normal": "standard normal",
    "summed_tens": "the summed axis times powers of ten from -4 to 4, its partner divided by the same",
    "summed_twos": "the summed axis times powers of two from -13 to 13, its partner divided by the same",
    "outputs": "output channels of what is written times powers of ten from -6 to 0",
    "inputs": "weights' gradients only: input channels times powers of ten from -6 to 0",
    "images": "images times powers of ten from -6 to 0",
    "scaled": "summed axis, outputs and images (inputs for weights' gradients) scaled by powers of ten, all at once",
    "large": "one operand times 1e18, the other times 1e17",
    "small": "both operands times 1e-19",
    "opposite": "one operand times 1e17, the other times 1e-19",
    "outlier": "one element of 1e6",
    "positive": "absolute values of normal data",
    "nonfinite": "an infinity and a NaN in one image's first channel, normal data elsewhere",
    "nonfinite_partner": "a NaN in the other operand's last filter (channel, for weights' gradients)",
}
"""The families of data by name, each with its description. Powers are evenly spaced, in random order; float16 has a
narrower range of them, and bfloat16 1e16 and 1e-16, because CPUs' products of bfloat16 flush subnormal sums to 0."""

_INPUTS_OF = {"fwd": ("x", "w"), "bwd_data": ("y", "w"), "bwd_weights": ("x", "y")}
_SUMMED_AXIS = {"fwd": "ic", "bwd_data": "oc", "bwd_weights": "mb"}
_OUTPUT_AXIS = {"fwd": ("w", "oc"), "bwd_data": ("w", "ic"), "bwd_weights": ("y", "oc")}
_ERROR_FLOOR = 1e-6
"""The relative error of a plane that is always allowed for float32 data."""
_OUTLIER_ERROR_FLOOR = 2e-5
"""The relative error of a plane that is always allowed for float32 data with one outlier."""


def families(direction: str) -> tuple[str, ...]:
    """The names of the families that a direction has, ``"normal"`` first."""
    return tuple(name for name in FAMILIES if name != "inputs" or direction == "bwd_weights")


def draw(family: str, problem: ConvProblem, seed: int = 0) -> dict[str, np.ndarray]:
    """A problem's operands by name, in its dtype: normal data (``random_operands``), changed into those of a family.

    Bias, residual and ``initial``, the output's previous content, are scaled as the plane to which they are added.
    """
    operands = random_operands(problem, seed)
    if family != "normal":
        _Draw(problem, operands, np.random.default_rng([seed, 1 + list(FAMILIES).index(family)])).apply(family)
    return operands


class _Draw:
    """Changes normal operands into those of a family, by replacing the entries of the dictionary ``made``."""

    def __init__(self, problem: ConvProblem, made: dict[str, np.ndarray], random: np.random.Generator) -> None:
        self.problem, self.made, self.random = problem, made, random
        self.data, self.other = _INPUTS_OF[problem.direction]
        self.narrow = problem.dtype == "float16"

    def apply(self, family: str) -> None:
        direction = self.problem.direction
        span, down = (1.5, 1.5) if self.narrow else (4, 6)
        large, small = {"float16": (10.0, 0.1), "bfloat16": (1e16, 1e-16)}.get(self.problem.dtype, (1e17, 1e-19))
        summed = _SUMMED_AXIS[direction]
        steps: dict[str, list[Callable[[], None]]] = {
            "summed_tens": [lambda: self._summed(10.0 ** self._even(summed, -span, span))],
            "summed_twos": [lambda: self._summed(2.0 ** np.rint(self._even(summed, -3.32 * span, 3.32 * span)))],
            "outputs": [lambda: self._plane(*_OUTPUT_AXIS[direction], down)],
            "inputs": [lambda: self._plane("x", "ic", down)],
            "images": [lambda: self._plane(self.data, "mb", down)],
            "large": [lambda: self._times(large * (10 if self.problem.dtype == "float32" else 1), large)],
            "small": [lambda: self._times(small, small)],
            "opposite": [lambda: self._times(large, small)],
            "outlier": [lambda: self._put(self.data, 0.4, 1e3 if self.narrow else 1e6)],
            "positive": [lambda: self._each(np.abs)],
            "nonfinite": [lambda: self._put(self.data, 0.4, np.inf), lambda: self._put(self.data, 1.0, np.nan)],
            "nonfinite_partner": [self._partner],
        }
        outer = "inputs" if direction == "bwd_weights" else "images"
        steps["scaled"] = [*steps["summed_tens"], *steps["outputs"], *steps[outer]]
        for step in steps[family]:
            step()

    def _even(self, letter: str, low: float, high: float) -> np.ndarray:
        count = getattr(self.problem, letter)
        if count < 2:
            return self.random.uniform(low, high, count)
        return self.random.permutation(np.linspace(low, high, count))

    def _scale(self, name: str, letter: str, factors: np.ndarray) -> None:
        if name in self.made:
            array = self.made[name]
            scaled = self._along(name, letter, factors).astype(np.float64 if array.itemsize > 4 else np.float32)
            self.made[name] = (array * scaled).astype(array.dtype, copy=False)

    def _along(self, name: str, letter: str, factors: np.ndarray) -> np.ndarray:
        """Factors along the axis ``letter``, shaped to multiply x, w, y, or what has its written shape."""
        problem, tensor = self.problem, name if name in "xwy" else self.problem.written
        last = problem.layout == "nhwc"
        rank = problem.ndim + 2
        # The filters of group k read the input channels from k * ic/g on.
        if tensor == "w" and letter == "ic":
            rows = factors.reshape(problem.g, -1).repeat(problem.oc // problem.g, axis=0)
            kept = (0, rank - 1) if last else (0, 1)
            return np.expand_dims(rows, tuple(axis for axis in range(rank) if axis not in kept))
        is_first = letter == "mb" or tensor == "w"
        axis = 0 if is_first else rank - 1 if last else 1
        return factors.reshape([-1 if index == axis else 1 for index in range(rank)])

    def _summed(self, factors: np.ndarray) -> None:
        letter = _SUMMED_AXIS[self.problem.direction]
        self._scale(self.data, letter, factors)
        self._scale(self.other, letter, 1 / factors)

    def _plane(self, name: str, letter: str, down: float) -> None:
        factors = 10.0 ** self._even(letter, -down, 0)
        self._scale(name, letter, factors)
        if letter == "mb" and self.problem.direction == "bwd_weights":
            return  # The gradient of the weights sums over images, so scaling an image scales no plane.
        for extra in ("residual", "initial"):
            self._scale(extra, letter, factors)
        if "bias" in self.made and letter != "mb":
            self.made["bias"] = (self.made["bias"] * factors).astype(self.made["bias"].dtype)

    def _times(self, data: float, other: float) -> None:
        for name, factor in ((self.data, data), (self.other, other)):
            array = self.made[name]
            self.made[name] = (array * factor).astype(array.dtype, copy=False)

    def _each(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        for name in (self.data, self.other):
            self.made[name] = function(self.made[name])

    def _put(self, name: str, position: float, value: float, outer: int = 0, channel: int = 0) -> None:
        """Set the element at ``place`` (0 to 1) of a plane of x, w or y."""
        array = self.made[name] = self.made[name].copy()
        if array.size:
            plane = (np.moveaxis(array, -1, 1) if self.problem.layout == "nhwc" else array)[outer, channel]
            plane[np.unravel_index(int(position * (plane.size - 1)), plane.shape)] = value

    def _partner(self) -> None:
        filters = self.other == "w"
        self._put(self.other, 0.5, np.nan, outer=-1 if filters else 0, channel=-1)


def entering(problem: ConvProblem, operands: Mapping[str, np.ndarray], at: np.ndarray | None = None) -> np.ndarray:
    """The size of the terms of each output: the root of the sum of its products' squares, float64.

    This is the expected size of a sum of independent terms, and not zero if they happen to cancel. With ``at`` only
    for those flat indices.
    """
    plain = problem.replace(activation=None, bias=False, residual=False, accumulate=False, constant_weights=False)
    plain = plain.replace(norm=None, sums=False)
    with np.errstate(invalid="ignore", over="ignore"):
        squares = {name: _wide(array, at is None) ** 2 for name, array in operands_of(plain, operands).items()}
        return np.sqrt(reference.compute(plain, **squares) if at is None else reference.sample(plain, at, **squares))


def _wide(array: np.ndarray, exact: bool) -> np.ndarray:
    """The array in float64 if ``exact``, else in float32, because whole tensors are squared for a few samples."""
    return array.astype(np.float64 if exact or array.dtype == np.float64 else np.float32)


def plane_errors(
    problem: ConvProblem, got: np.ndarray, expected: np.ndarray, entered: np.ndarray | None = None, spread: bool = False
) -> np.ndarray:
    """The error of each plane, [outer, channels]: the norm of its differences over that of the expected values, or of
    ``entered`` (the result of ``entering``) if that is larger.

    Infinite for a plane that is not finite where it should be, or finite where an infinity or NaN is expected. With
    ``spread`` further elements of a plane may be infinite or NaN if one is expected in it, because transforms of tiles
    and stored zeros of padding spread them.
    """
    got, expected = _planes(problem, got), _planes(problem, expected)
    entered = expected if entered is None else _planes(problem, entered)
    is_expected, is_finite = np.isfinite(expected), np.isfinite(got)
    spoilt = is_expected & ~is_finite
    if spread:
        spoilt &= is_expected.all(axis=-1, keepdims=True)
    are_finite = is_expected & is_finite
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = _norm(np.where(are_finite, got - expected, 0))
        size = np.maximum(
            _norm(np.where(are_finite, expected, 0)), _norm(np.where(are_finite & np.isfinite(entered), entered, 0))
        )
        error = np.where(difference == 0, 0.0, difference / size)
    error[(spoilt | (~is_expected & is_finite)).any(axis=-1)] = np.inf
    return error


def _planes(problem: ConvProblem, array: np.ndarray) -> np.ndarray:
    """A tensor of the written shape as float64 [outer, channels, elements]."""
    array = np.moveaxis(array, -1, 1) if problem.layout == "nhwc" else array
    return array.astype(np.float64).reshape(*array.shape[:2], -1)


def _norm(planes: np.ndarray) -> np.ndarray:
    return np.sqrt((planes**2).sum(axis=-1))


def plane_positions(problem: ConvProblem, planes: int = 16, each: int = 16, seed: int = 0) -> np.ndarray:
    """Flat indices into the written tensor, [planes, each]; each row is in one plane, or in neighbouring small planes.

    The first and the last plane are included. Empty for an empty tensor.
    """
    shape = problem.out_shape
    if not np.prod(shape):
        return np.empty((0, each), np.int64)
    channel_last = problem.layout == "nhwc"
    outer, channels = shape[0], shape[-1] if channel_last else shape[1]
    pixels = int(np.prod(shape)) // (outer * channels)
    random = np.random.default_rng(seed)
    rows = np.concatenate([[0, outer * channels - 1], random.integers(0, outer * channels, planes - 2)])
    spread = -(-each // pixels)  # So many neighbouring planes together have enough elements.
    plane = (rows[:, None] + random.integers(0, spread, (planes, each)) * (1 - 2 * (rows[:, None] > 0))) % (
        outer * channels
    )
    pixel = random.integers(0, pixels, (planes, each))
    image, channel = np.divmod(plane, channels)
    return (image * pixels + pixel) * channels + channel if channel_last else plane * pixels + pixel


def family_limit(problem: ConvProblem, family: str, normal: float) -> float:
    """The largest allowed error of a plane on a family's data, ``normal`` being the worst on normal data.

    For float32 data under ``"float32"`` and ``"ieee"`` three times ``normal``, or 1e-6 (2e-5 with one outlier) if that
    is larger; otherwise the error limit of dtype and ``math``.
    """
    floor = _OUTLIER_ERROR_FLOOR if family == "outlier" else _ERROR_FLOOR
    if problem.dtype != "float32" or problem.math not in ("float32", "ieee", "reproducible"):
        floor = error_limit(problem)
    return max(3 * normal, floor)


PLANES = 8
"""The number of planes of the output that are compared."""
ELEMENTS_PER_PLANE = 8
"""The number of elements of each plane that are compared."""


class Scaled:
    """A trial's second data: a problem's operands of the family "scaled", and the expected values of sampled planes.

    A solver that uses one scale for a whole tensor is right on normal data and loses digits on these.
    """

    def __init__(self, problem: ConvProblem, seed: int = 0) -> None:
        self.host: Mapping[str, np.ndarray] = draw("scaled", problem, seed)
        self.at = plane_positions(problem, PLANES, ELEMENTS_PER_PLANE, seed)
        self._expected: dict[ConvProblem, tuple[np.ndarray, np.ndarray]] = {}

    def error(self, problem: ConvProblem, got: np.ndarray) -> float:
        """The error of the worst plane of ``got``, the result's elements at ``at.ravel()``, relative to the size of its
        terms; infinite if an element is not finite.

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
