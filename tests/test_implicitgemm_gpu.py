"""The GPU room of implicitgemm, run on whatever device there is: plans are made directly, as a GPU would get them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyopencl as cl
import pytest
from checking import GUARD, TOLERANCE, Guarded, compare, make_operands
from convdispatch_implicitgemm.gpu import gpu_solvers

from convdispatch import ConvProblem, runtime, shapes
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS

SMALL = DeviceInfo("small", "arm", "gpu", "", max_work_group_size=256, max_work_item_sizes=(256, 256, 64),
                   local_mem_size=32768, compute_units=4, fp64=True)  # fmt: skip
SOLVERS = {solver.name: solver for solver in gpu_solvers()}


def region(guarded: Guarded) -> cl.Buffer:
    """The payload of a guarded array as a buffer of its own."""
    return guarded.buffer.get_sub_region(guarded.start, max(1, guarded.nbytes))


def check(queue, problem: ConvProblem, name: str, config=None, *, data: str = "integer") -> None:
    """Run one configuration (the first by default) twice between guard zones; compare with the reference."""
    solver = SOLVERS[name]
    config = dict(config if config is not None else next(iter(solver.configs(problem, SMALL))))
    plan = solver.plan(queue.context, problem, config)
    assert plan.workspace_size == solver.workspace(problem, SMALL, config)
    operands, expected = make_operands(problem, data)
    given = {key: Guarded(array, queue) for key, array in operands.present().items() if key != "initial"}
    scratch = Guarded(np.full(max(1, plan.workspace_size), 0xFF, np.uint8), queue)
    buffers = {key: region(value) for key, value in given.items()}
    hint = f"{problem} {name} {config}"
    if getattr(plan, "packed_size", 0):
        packed = Guarded(np.full(plan.packed_size, 0xFF, np.uint8), queue)
        plan.pack(queue, buffers["w"], region(packed)).wait()
        buffers["w"] = region(packed)
        assert packed.damage(payload_too=False) is None, hint
    extras = {key: buffers[key] for key in ("bias", "residual") if key in buffers}
    for _ in range(2):
        blank = operands.initial if problem.accumulate else np.full(problem.out_shape, np.nan, expected_dtype(problem))
        out = Guarded(blank, queue)
        buffers[problem.written] = region(out)
        plan.enqueue(queue, buffers["x"], buffers["w"], buffers["y"], region(scratch), **extras).wait()
        for key, guarded in {**given, "workspace": scratch, "out": out}.items():
            damage = guarded.damage(payload_too=key not in ("out", "workspace"))
            assert damage is None, f"{hint}: {key}: {damage}"
        limit = 0.0 if data == "integer" else TOLERANCE[problem.dtype]
        compare(out.read()[1], expected, limit, hint)


def expected_dtype(problem: ConvProblem) -> np.dtype:
    """The output's dtype."""
    from checking import numpy_dtype

    return numpy_dtype(problem.dtype)


def tables() -> list:
    """Every near miss in every direction."""
    return [
        pytest.param(entry.problem.replace(direction=direction), id=f"{direction}-{entry.name}")
        for table in ("near_miss", "basic")
        for entry in shapes.load(table)
        for direction in DIRECTIONS
    ]


@pytest.mark.parametrize("problem", tables())
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_near_misses(queue, problem, layout):
    problem = problem.replace(layout=layout)
    for name, solver in SOLVERS.items():
        if problem.mb and solver.limits(problem, SMALL) is None:
            check(queue, problem, name)
