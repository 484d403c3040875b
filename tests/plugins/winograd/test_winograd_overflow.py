"""The range of every solver: what transforms make in between is larger than the results, and must not be infinite."""

from __future__ import annotations

import functools

import convdispatch_fft
import convdispatch_im2col
import convdispatch_implicitgemm
import convdispatch_onednn
import convdispatch_winograd
import numpy as np
import pytest
from plans import SMALL, computed

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement import reference

pytestmark = pytest.mark.usefixtures("item_by_item")

PLUGINS = (convdispatch_winograd, convdispatch_fft, convdispatch_im2col, convdispatch_implicitgemm, convdispatch_onednn)
DECLARED = {each.name: each for plugin in PLUGINS for each in plugin.convdispatch_solvers()}
SOLVERS = {name: each.solver for name, each in DECLARED.items()}
LINES = {"3": "mb8ic16ih24iw24oc16kh3ph1", "5": "mb8ic16ih24iw24oc16kh5ph2", "7": "mb8ic16ih24iw24oc16kh7ph3"}
"""By the taps that a solver's name ends with."""


def error(queue, problem: ConvProblem, solver, *magnitudes: float) -> float:
    """Relative error of normal data times each operand's magnitude; infinite where the result is not finite."""
    host, expected = _data(problem, *magnitudes)
    config = next(iter(solver.configs(problem, _device(queue, solver))))
    got = computed(queue, problem, solver.plan(queue.context, problem, config), host)
    return reference.relative_error(got, expected)


@functools.cache
def _data(problem: ConvProblem, *magnitudes: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What a problem reads and the expected result: the same for every solver."""
    random = np.random.default_rng(7)
    names = [name for name in "xwy" if name != problem.written]
    read = {
        name: (random.standard_normal(getattr(problem, name + "_shape")) * magnitude).astype(np.float32)
        for name, magnitude in zip(names, magnitudes, strict=True)
    }
    return read, reference.compute(problem, **read)


def _device(queue, solver) -> DeviceInfo:
    here = runtime.device_info(queue.device)
    return here if DECLARED[solver.name].serves(here) is None else SMALL


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", list(SOLVERS))
def test_finite_at_1e35(queue, full, thinned, name, direction):
    """Products of 1e35, whose sums are a hundredth of what float32 holds, overflow in no transform.

    A data gradient is a forward's with the kernel turned: unless ``full`` each solver takes one of the two.
    """
    thinned(direction == DIRECTIONS[list(SOLVERS).index(name) % 2])
    solver = SOLVERS[name]
    problem = ConvProblem.parse(f"{direction}_f32_{LINES.get(name[-1], LINES['3'])}")
    device = _device(queue, solver)
    why = (getattr(solver, "limits", None) or solver.rejects)(problem, device)
    if why:
        pytest.skip(why)
    assert error(queue, problem, solver, 1e18, 1e17) < 2 * error(queue, problem, solver, 1.0, 1.0)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("name", [name for name in SOLVERS if name[-3:] in ("6x3", "7x3")])
def test_no_digit_is_lost_at_1e_19(queue, name, direction):
    """Results of 1e-37 are normal numbers; what large tiles multiply in between must not be far below them."""
    solver = SOLVERS[name]
    problem = ConvProblem.parse(f"{direction}_f32_{LINES[name[-1]]}")
    why = (getattr(solver, "limits", None) or solver.rejects)(problem, _device(queue, solver))
    if why:
        pytest.skip(why)
    normal = error(queue, problem, solver, 1.0, 1.0)
    assert error(queue, problem, solver, 1e-19, 1e-19) < 2 * normal
    assert error(queue, problem, solver, 1.0, 1e-38) < 2 * normal
