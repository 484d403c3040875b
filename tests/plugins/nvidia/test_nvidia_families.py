"""Families of data that an accurate convolution computes alike, through the nvidia plugin's formats, emulated."""

from __future__ import annotations

import functools

import numpy as np
import pyopencl as cl
import pytest
from convdispatch_nvidia.packed.plan import NvidiaPlan
from convdispatch_nvidia.winograd.solver import WinogradPlan

from convdispatch import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import reference
from convdispatch.measurement.search.families import draw, entering, families, family_limit, plane_errors

pytestmark = [pytest.mark.usefixtures("item_by_item"), pytest.mark.computes]

TILE = {"bm": 64, "bn": 64, "wm": 1, "wn": 1, "bk": 32, "stages": 3}
PROBLEMS = {
    "3x3": "mb3ic40ih7iw6oc32kh3ph1",
    "groups": "mb3ic16ih5iw6oc16kh3ph1g2",
    "folded": "mb3ic3ih13iw12oc16kh5kw5ph2sh2sw2",
    "nhwc": "nhwc_mb3ic24ih7iw6oc16kh3ph1sh2",
    "large_planes": "mb1ic8ih40iw41oc8kh3ph1",
}


def run(queue, problem: ConvProblem, plan, operands) -> np.ndarray:
    """What a plan makes of operands; output and workspace begin as NaN."""
    out = np.full(problem.out_shape, np.nan, np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    host = {**operands, problem.written: out}
    given = [cl.Buffer(queue.context, flags, hostbuf=host[name]) for name in "xwy"]
    scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, plan.workspace_size)
    cl.enqueue_fill_buffer(queue, scratch, np.uint8(0xFF), 0, scratch.size)
    plan.enqueue(queue, *given, scratch)
    cl.enqueue_copy(queue, out, given["xwy".index(problem.written)])
    return out


@functools.lru_cache(maxsize=32)  # every format of a problem is asked for the same
def drawn(problem: ConvProblem, family: str) -> tuple:
    """Operands, the float64 result, and what enters each of its elements."""
    operands = draw(family, problem)
    with np.errstate(all="ignore"):
        return operands, reference.compute(problem, **operands), entering(problem, operands)


def errors(queue, problem: ConvProblem, plan, family: str) -> float:
    """The worst plane's."""
    operands, expected, entered = drawn(problem, family)
    out = run(queue, problem, plan, operands)
    return float(plane_errors(problem, out, expected, entered, spread=True).max())


def check_families(queue, problem: ConvProblem, plan) -> None:
    """Every family errs as normal data do, within the contract's limits."""
    found = {family: errors(queue, problem, plan, family) for family in families(problem.direction)}
    limits = {family: family_limit(problem, family, found["normal"]) for family in found}
    assert not {family: error for family, error in found.items() if not error <= limits[family]}, (found, limits)


FORMATS = ["half2", "half1", "bfloat2"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", list(PROBLEMS))
def test_packed(queue, full, direction, shape, name):
    """A scale a row, a column and a summed index costs no digit; half1 errs as TF32 does.

    A Latin square: every shape meets every direction and every format, every direction every format.
    """
    turn = list(PROBLEMS).index(shape) + DIRECTIONS.index(direction)
    if not full and name != FORMATS[turn % 3]:
        pytest.skip("thinned out; --full runs it")
    problem = ConvProblem.parse(f"{direction}_f32_{PROBLEMS[shape]}")
    plan = NvidiaPlan(queue.context, problem, {**TILE, "format": name}, "wgmma", emulate=True)
    if name == "half1":
        worst = errors(queue, problem, plan, "normal")
        found = {family: errors(queue, problem, plan, family) for family in families(direction)}
        assert all(error < max(3 * worst, 1e-3) for error in found.values()), found
    else:
        check_families(queue, problem, plan)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_stacked(queue, direction):
    """Phases that are stacked, and what is folded, have their channels' scales."""
    problem = ConvProblem.parse(f"{direction}_f32_mb3ic6ih11iw10oc40kh5ph2sh2sw2")
    tile = {**TILE, "format": "half2", **({"stacked": True} if direction == "bwd_data" else {})}
    check_families(queue, problem, NvidiaPlan(queue.context, problem, tile, "wgmma", emulate=True))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_windows(queue, direction):
    """Rows of a window, padded positions among them, have their images' scales; in fragments of mma."""
    problem = ConvProblem.parse(f"{direction}_f32_mb3ic24ih6iw5oc16kh3ph1")
    extra = {"window": True, "bm": 32, "bn": 32} if direction != "bwd_weights" else {"wm": 2, "wn": 2}
    tile = {**TILE, "format": "half2", "stages": 2, **extra}
    check_families(queue, problem, NvidiaPlan(queue.context, problem, tile, "mma", emulate=True))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_winograd(queue, full, direction, layout):
    """Transforms of tiles mix pixels alone, so scales of channels and images pass through them."""
    if not full and (layout == "nhwc") != DIRECTIONS.index(direction) % 2:
        pytest.skip("thinned out; --full runs it")
    problem = ConvProblem.parse(f"{direction}_f32_{layout}_mb3ic40ih10iw9oc32kh3ph1")
    plan = WinogradPlan(queue.context, problem, {**TILE, "bk": 64, "format": "half2", "stages": 3}, emulate=True)
    check_families(queue, problem, plan)


@pytest.mark.parametrize(("number", "name"), list(enumerate(["half2", "half1", "winograd"])))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_powers_of_two_change_no_bit(queue, full, direction, number, name):
    """The summed axis times powers of two from -40 to 40, its partner divided: the same bits, in any format."""
    if not full and (number + DIRECTIONS.index(direction)) % 2:
        pytest.skip("thinned out; --full runs it")
    problem = ConvProblem.parse(f"{direction}_f32_mb5ic16ih6iw6oc24kh3ph1")
    if name == "winograd":
        plan = WinogradPlan(queue.context, problem, {**TILE, "bk": 64, "format": "half2"}, emulate=True)
    else:
        plan = NvidiaPlan(queue.context, problem, {**TILE, "format": name}, "wgmma", emulate=True)
    operands = draw("normal", problem)
    first, second = {"fwd": "xw", "bwd_data": "yw", "bwd_weights": "xy"}[direction]
    axis, partner = {"fwd": (1, 1), "bwd_data": (1, 0), "bwd_weights": (0, 0)}[direction]
    count = operands[first].shape[axis]
    powers = 2.0 ** np.random.default_rng(3).permutation(np.rint(np.linspace(-40, 40, count)))

    def along(place: int) -> np.ndarray:
        return powers.reshape([-1 if each == place else 1 for each in range(4)]).astype(np.float32)

    scaled = {first: operands[first] * along(axis), second: operands[second] / along(partner)}
    assert np.array_equal(run(queue, problem, plan, operands), run(queue, problem, plan, scaled))
