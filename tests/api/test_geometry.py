"""The header's geometry: its phases are the convolution, its strides are memory's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import shape_tables
from checking import make_operands, numpy_dtype

from convdispatch import ConvProblem
from convdispatch.api import Geometry, TensorLayout, geometry_of
from convdispatch.api.problem import LAYOUTS

ENTRIES = [entry for table in ("near_miss", "basic") for entry in shape_tables.load(table) if entry.problem.mb]


def deep(array: np.ndarray) -> np.ndarray:
    """A channels-first tensor with all three axes."""
    return array.reshape(*array.shape[:2], *(1,) * (5 - array.ndim), *array.shape[2:]).astype(float)


def gathered(geometry: Geometry, source: np.ndarray, positions: list[np.ndarray]) -> np.ndarray:
    """What a phase's places read at one tap; 0 outside the source."""
    found = source
    for axis, places in enumerate(positions):
        exists = (places >= 0) & (places < geometry.source.size[axis])
        assert exists.all() or not geometry.inside(axis)
        found = np.take(found, np.where(exists, places, 0), axis=2 + axis)
        found = found * exists.reshape(-1, *(1,) * (2 - axis))
    return found


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_phases_are_the_convolution(entry, direction):
    """Every place of the target is written once, with the sum over its phase's taps that the reference has."""
    problem = entry.problem.replace(direction=direction)
    operands, expected = make_operands(problem)
    geometry, (source,) = geometry_of(problem), [getattr(operands, name) for name in "xy" if name != problem.written]
    source, weights, expected = deep(source), deep(operands.w), deep(expected)
    weights = weights.reshape(problem.g, -1, *weights.shape[1:])  # [g, oc/g, ic/g, taps]
    result, written = np.zeros(expected.shape), np.zeros(geometry.target.size, int)
    equation = "gmc,igczyx->igmzyx" if direction == "fwd" else "gcm,igczyx->igmzyx"
    for phase in geometry.phases:
        places = [f + np.arange(n) * s for f, n, s in zip(phase.first, phase.count, geometry.out_step, strict=True)]
        written[np.ix_(*places)] += 1
        sums = 0.0
        for tap in itertools.product(*map(range, phase.taps)):
            axes = zip(phase.origin, phase.count, tap, geometry.step, geometry.spread, strict=True)
            read = gathered(geometry, source, [o + np.arange(n) * step + t * spread for o, n, t, step, spread in axes])
            kernel = tuple(first + t * step for first, t, step in zip(phase.tap0, tap, geometry.tap_step, strict=True))
            read = read.reshape(problem.mb, problem.g, -1, *phase.count)
            sums = sums + np.einsum(equation, weights[:, :, :, *kernel], read)
        result[:, :, *np.ix_(*places)] = np.reshape(sums, (problem.mb, -1, *phase.count)) if phase.volume else 0
    assert (written == 1).all()
    assert sum(phase.volume for phase in geometry.phases) <= geometry.volume
    np.testing.assert_array_equal(result, expected)


def test_reads_are_the_least_and_the_greatest_position():
    for entry, direction in itertools.product(ENTRIES, ("fwd", "bwd_data")):
        geometry = geometry_of(entry.problem.replace(direction=direction))
        for phase, axis in itertools.product(geometry.phases, range(3)):
            at = [
                phase.origin[axis] + place * geometry.step[axis] + tap * geometry.spread[axis]
                for place in range(phase.count[axis])
                for tap in range(phase.taps[axis] if phase.volume else 0)
            ]
            reads = phase.reads(axis, geometry.step[axis], geometry.spread[axis])
            assert (reads.start, reads.stop) == ((min(at), max(at) + 1) if at else (0, 0)), (entry.name, axis)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", ["g2mb2ic6ih5iw7oc4kh3kw2", "mb2ic3id4ih5iw6oc2kd2kh3kw1", "mb2ic3iw9oc5kw4"])
def test_strides_are_those_of_arrays(text, layout):
    problem = ConvProblem.parse(text).replace(layout=layout)
    for name in "xwy":
        array = np.empty(getattr(problem, name + "_shape"), numpy_dtype(problem.dtype))
        image, *rest = (step // array.itemsize for step in array.strides)
        channel, axes = (rest[0], rest[1:]) if layout == "nchw" else (rest[-1], rest[:-1])
        found = TensorLayout.of(problem, name)
        assert (found.image, found.channel) == (image, channel)
        assert list(found.axes[3 - problem.ndim :]) == axes
        assert found.pixels * found.channels * array.shape[0] == array.size


def test_pointwise_is_a_plain_product():
    pointwise = {
        "mb2ic4ih6oc8kh1": True,
        "g2mb2ic4ih6oc8kh1": True,
        "bwd_data_mb2ic4ih6oc8kh1": True,
        "mb2ic4ih6oc8kh1sh2": False,
        "bwd_data_mb2ic4ih6oc8kh1sh2": False,
        "mb2ic4ih6oc8kh1ph1": False,
        "mb2ic4ih6oc8kh3ph1": False,
    }
    assert {text: geometry_of(ConvProblem.parse(text)).pointwise for text in pointwise} == pointwise
