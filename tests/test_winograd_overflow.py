"""Winograd's intermediates are larger than its results: from which magnitude on they are infinite."""

from __future__ import annotations

import functools

import convdispatch_winograd
import numpy as np
import pyopencl as cl
import pytest
from plans import SMALL

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement import reference

pytestmark = pytest.mark.usefixtures("item_by_item")

SOLVERS = {each.name: each.solver for each in convdispatch_winograd.convdispatch_solvers()}
LINES = {3: "mb8ic16ih24iw24oc16kh3ph1", 5: "mb8ic16ih24iw24oc16kh5ph2", 7: "mb8ic16ih24iw24oc16kh7ph3"}


def error(queue, problem: ConvProblem, solver, magnitude: float) -> float:
    """Relative error of normal data times ``magnitude``, both operands; infinite where the result is not finite."""
    host, expected = _data(problem, magnitude)
    host = {**host, problem.written: np.full(problem.out_shape, np.nan, np.float32)}
    config = next(iter(solver.configs(problem, _device(queue, solver))))
    plan, flags = solver.plan(queue.context, problem, config), cl.mem_flags.READ_WRITE
    given = {k: cl.Buffer(queue.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=v) for k, v in host.items()}
    scratch = cl.Buffer(queue.context, flags, max(4, plan.workspace_size))
    plan.enqueue(queue, given["x"], given["w"], given["y"], scratch)
    cl.enqueue_copy(queue, host[problem.written], given[problem.written])
    return reference.relative_error(host[problem.written], expected)


@functools.cache
def _data(problem: ConvProblem, magnitude: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What a problem reads and the expected result: the same for every solver."""
    random = np.random.default_rng(7)
    shapes = {name: getattr(problem, name + "_shape") for name in "xwy" if name != problem.written}
    read = {name: (random.standard_normal(shape) * magnitude).astype(np.float32) for name, shape in shapes.items()}
    return read, reference.compute(problem, **read)


def _device(queue, solver) -> DeviceInfo:
    return SMALL if ".tiled" in solver.name or ".fused" in solver.name else runtime.device_info(queue.device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", list(SOLVERS))
def test_finite_at_1e16(queue, full, name, direction):
    """Operands of 1e16 each overflow nowhere; weights' gradients, which are transformed the furthest, not at 1e17.

    A data gradient is a forward's with the kernel turned: unless ``full`` each solver takes one of the two.
    """
    if not full and direction == DIRECTIONS[list(SOLVERS).index(name) % 2]:
        pytest.skip("thinned out; --full runs it")
    solver = SOLVERS[name]
    problem = ConvProblem.parse(f"{direction}_f32_{LINES[int(name[-1])]}")
    why = (getattr(solver, "limits", None) or solver.rejects)(problem, _device(queue, solver))
    if why:
        pytest.skip(why)
    normal = error(queue, problem, solver, 1.0)
    assert error(queue, problem, solver, 1e16) < 2 * normal
    if direction == "bwd_weights":
        assert error(queue, problem, solver, 1e17) < 2 * normal


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("name", [name for name in SOLVERS if name[-3] in "67"])
def test_no_digit_is_lost_at_1e_19(queue, name, direction):
    """Results of 1e-37 are normal numbers; what large tiles multiply in between must not be far below them."""
    solver = SOLVERS[name]
    problem = ConvProblem.parse(f"{direction}_f32_{LINES[int(name[-1])]}")
    why = (getattr(solver, "limits", None) or solver.rejects)(problem, _device(queue, solver))
    if why:
        pytest.skip(why)
    assert error(queue, problem, solver, 1e-19) < 2 * error(queue, problem, solver, 1.0)
