"""Families of data: what they scale, what they leave, and that errors plane by plane tell a bad plane from a good."""

from __future__ import annotations

import numpy as np
import pytest

from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import reference
from convdispatch.measurement.search.families import (
    FAMILIES,
    draw,
    entering,
    families,
    family_limit,
    plane_errors,
    plane_positions,
)
from convdispatch.measurement.search.trialdata import operands_of, random_operands

SHAPES = [
    "mb3ic8ih7iw5oc6kh3kw3ph1pw1g2",
    "nhwc_mb3ic4ih7iw6oc6kh3kw2sh2",
    "mb4ic3iw19oc5kw4",
    "mb2ic5ih6iw4oc5kh3kw3g5",
]
PROBLEMS = [ConvProblem.parse(f"{direction}_f32_{text}") for direction in DIRECTIONS for text in SHAPES]
IDS = [str(problem) for problem in PROBLEMS]


def compute(problem: ConvProblem, operands: dict) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return reference.compute(problem, **operands_of(problem, operands))


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_powers_of_two_on_the_summed_axis_cancel_exactly(problem):
    scaled = draw("summed_twos", problem)
    normal = random_operands(problem, 0)
    assert any((scaled[name] != normal[name]).mean() > 0.5 for name in normal)
    expected = compute(problem, normal)
    assert np.abs(compute(problem, scaled) - expected).max() <= 1e-13 * np.abs(expected).max()


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_planes_are_scaled_as_a_whole(problem):
    normal = compute(problem, draw("normal", problem))
    for family in {"outputs", "images", "inputs"} & set(families(problem.direction)):
        if problem.direction == "bwd_weights" and family == "images":
            continue  # summed there: what is written changes otherwise
        scaled = compute(problem, draw(family, problem))
        places = np.moveaxis(scaled / normal, -1, 1) if problem.layout == "nhwc" else scaled / normal
        planes = places.reshape(*places.shape[:2], -1)
        assert planes == pytest.approx(
            np.broadcast_to(np.median(planes, axis=-1, keepdims=True), planes.shape), rel=0.1
        )
        assert 1e-7 < planes.min() < 0.5
        assert planes.max() < 1.1


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_a_plain_float32_sum_keeps_its_error_and_one_scale_for_a_tensor_does_not(problem):
    """Rounding of products stands for a plain sum; float16 halves with one scale for each tensor lose digits."""
    lost = set()
    normal = {}
    for family in families(problem.direction):
        operands = draw(family, problem)
        expected, entered = compute(problem, operands), entering(problem, operands)
        for name, rounded in (("float32", _float32), ("one scale", _halves)):
            got = compute(problem, {key: rounded(value) for key, value in operands.items()})
            error = plane_errors(problem, got, expected, entered, spread="partner" in family).max()
            if not error <= family_limit(problem, family, normal.setdefault(name, error)):
                lost.add((name, family))
    assert not {family for name, family in lost if name == "float32"}
    assert {"summed_tens", "summed_twos", "scaled", "outputs", "nonfinite"} <= {
        f for name, f in lost if name != "float32"
    }


def _float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64) * (1 + 2.0**-25)


def _halves(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = 2.0 ** np.ceil(np.log2(np.abs(array).max()))
        high = (array / scale).astype(np.float16).astype(np.float64)
        low = (array / scale - high).astype(np.float16)
        return (high + low) * scale


@pytest.mark.parametrize("layout", ["", "nhwc_"])
def test_a_bad_plane_does_not_hide_in_a_good_tensor(layout):
    problem = ConvProblem.parse(f"fwd_f32_{layout}mb2ic4ih6iw5oc3kh3kw3ph1pw1")
    operands = draw("outputs", problem)
    expected = compute(problem, operands)
    got = expected.copy()
    planes = np.moveaxis(got, -1, 1) if layout else got
    small = int(np.argmin(np.linalg.norm(planes[1].reshape(3, -1), axis=1)))
    planes[1, small] *= 1.01
    errors = plane_errors(problem, got, expected)
    assert errors.shape == (2, 3)
    assert errors[1, small] == pytest.approx(0.01)
    assert np.count_nonzero(errors) == 1
    assert reference.relative_error(got, expected) < 1e-3


def test_what_cancels_is_measured_by_what_enters():
    problem = ConvProblem.parse("fwd_f32_mb1ic2ih1iw1oc1kh1kw1")
    operands = {"x": np.array([1.0, -1.0]).reshape(1, 2, 1, 1), "w": np.ones((1, 2, 1, 1))}
    entered = entering(problem, operands)
    assert entered.item() == pytest.approx(2**0.5)
    assert entering(problem, operands, np.array([0])) == pytest.approx(2**0.5)
    assert plane_errors(problem, np.full((1, 1, 1, 1), 1e-7), np.zeros((1, 1, 1, 1)), entered).item() < 1e-7


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_infinities_and_nans_in_place(direction):
    problem = ConvProblem.parse(f"{direction}_f32_mb3ic4ih7iw6oc5kh3kw3ph1pw1")
    operands = draw("nonfinite", problem)
    expected = compute(problem, operands)
    bad = ~np.isfinite(expected)
    assert 0 < bad.mean() < 0.8
    clean = np.argwhere(~bad.reshape(*bad.shape[:2], -1).any(-1))
    assert len(clean)
    assert plane_errors(problem, expected, expected).max() == 0
    swallowed = np.where(bad, 0, expected)
    assert np.isinf(plane_errors(problem, swallowed, expected)).any()
    everywhere = np.where(bad.reshape(*bad.shape[:2], -1).any(-1)[:, :, None, None], np.nan, expected)
    assert plane_errors(problem, everywhere, expected, spread=True).max() == 0
    if direction != "bwd_weights":
        assert np.isinf(plane_errors(problem, everywhere, expected)).any()
    outside = everywhere.copy()
    outside[(*clean[0], 0, 0)] = np.nan
    assert np.isinf(plane_errors(problem, outside, expected, spread=True)[tuple(clean[0])])


@pytest.mark.parametrize("problem", PROBLEMS, ids=IDS)
def test_positions_of_planes(problem):
    at = plane_positions(problem, planes=6, each=9)
    assert at.shape == (6, 9)
    where = np.unravel_index(at, problem.out_shape)
    last = problem.layout == "nhwc"
    outer, channel = where[0], where[-1 if last else 1]
    pixels = int(np.prod(problem.out_shape)) // (problem.out_shape[0] * problem.out_shape[-1 if last else 1])
    assert outer[0].min() == 0
    assert outer[1].max() == problem.out_shape[0] - 1
    if pixels >= 9:
        assert all(len(set(zip(o, c))) == 1 for o, c in zip(outer, channel))


def test_every_family_has_words_and_can_be_drawn_in_every_dtype():
    for dtype in ("f32", "f64", "f16"):
        for direction in DIRECTIONS:
            problem = ConvProblem.parse(f"{direction}_{dtype}_mb2ic4ih5iw4oc6kh3kw3g2")
            for family in families(direction):
                made = draw(family, problem)
                again = draw(family, problem)
                assert all(made[name].tobytes() == again[name].tobytes() for name in made)
                assert all(array.dtype == random_operands(problem, 0)[name].dtype for name, array in made.items())
                if not family.startswith("nonfinite"):
                    assert all(np.isfinite(array).all() for array in made.values()), family
    assert set(FAMILIES) == {name for direction in DIRECTIONS for name in families(direction)}
