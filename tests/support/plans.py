"""Plans that a solver makes directly, as a GPU would get them, run on whatever device there is.

Every operand lies between guard zones, outputs and workspaces begin as NaN, and each plan runs twice and must write
the same bits. A failure names problem, solver and configuration.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
import shape_tables
from checking import TOLERANCE, Guarded, compare, make_operands, numpy_dtype

from convdispatch.api import ConvProblem, Solver
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.device import runtime
from convdispatch.measurement import reference

SMALL = DeviceInfo("small", "arm", "gpu", "", max_work_group_size=256, max_work_item_sizes=(256, 256, 64),
                   local_mem_size=32768, compute_units=4, fp64=True)  # fmt: skip
"""A phone's GPU: what every configuration that tests run must fit."""
LARGE = DeviceInfo("large", "nvidia", "gpu", "sm_90", max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64),
                   local_mem_size=49152, compute_units=132, fp64=True, global_mem_size=140 << 30,
                   max_alloc_size=35 << 30)  # fmt: skip


def first(problem: ConvProblem, solver: Solver, device: DeviceInfo = SMALL, **changes: Any) -> dict[str, Any]:
    """The solver's first configuration, with changes, as it comes back from a record."""
    return json.loads(json.dumps({**next(iter(solver.configs(problem, device))), **changes}))


def declared(plugin: Any, device: DeviceInfo) -> dict[str, Solver]:
    """A plugin's solvers that serve a device, by name."""
    return {each.name: each.solver for each in plugin.convdispatch_solvers() if each.serves(device) is None}


def check_solver(
    queue: cl.CommandQueue,
    problem: ConvProblem,
    solver: Solver,
    config: Mapping[str, Any] | None = None,
    *,
    data: str = "integer",
    limit: float | None = None,
) -> float:
    """Run one configuration (the first by default) as ``check_plan`` does; its workspace is what the solver said."""
    config = first(problem, solver) if config is None else json.loads(json.dumps(dict(config)))
    return check_config(queue, problem, solver, config, SMALL, data=data, limit=limit)


def check_config(
    queue: cl.CommandQueue,
    problem: ConvProblem,
    solver: Solver,
    config: Mapping[str, Any],
    info: DeviceInfo | None = None,
    **options: Any,
) -> float:
    """The configuration's plan by ``check_plan``; its workspace is what the solver said, of the queue's device if no
    other is given."""
    plan, hint = solver.plan(queue.context, problem, config), f"{problem} {type(solver).__name__} {config}"
    info = info or runtime.device_info(queue.device)
    assert plan.workspace_size == solver.workspace(problem, info, config), hint
    return check_plan(queue, problem, plan, hint, **options)


def check_changes(queue: cl.CommandQueue, problem: ConvProblem, solver: Solver, *changes: dict, **options) -> float:
    """The solver's first configuration on the queue's device, with each of the changes; the last error."""
    info = runtime.device_info(queue.device)
    assert solver.rejects(problem, info) is None, problem
    config = next(iter(solver.configs(problem, info)))
    for change in changes or ({},):
        changed = {**config, **{key: value for key, value in change.items() if key in config}}
        error = check_config(queue, problem, solver, changed, **options)
    return error


def check_plan(
    queue: cl.CommandQueue,
    problem: ConvProblem,
    plan: Any,
    hint: str,
    *,
    data: str = "integer",
    limit: float | None = None,
    used: list[int] | None = None,
) -> float:
    """Run a plan twice between guard zones and compare with the reference; the relative error.

    ``limit`` is the error allowed: by default none for ``"integer"`` data, for ``"real"`` ones what the dtype allows.
    ``used`` gets the bytes of the workspace up to the last that was written.
    """
    if limit is None:
        limit = 0.0 if data == "integer" else TOLERANCE[problem.dtype]
    operands, expected = make_operands(problem, data)
    given = {key: Guarded(array, queue) for key, array in operands.present().items() if key != "initial"}
    scratch = Guarded(np.full(max(1, plan.workspace_size), 0xFF, np.uint8), queue)
    buffers = {key: _region(value) for key, value in given.items()}
    if getattr(plan, "packed_size", 0):
        packed = Guarded(np.full(plan.packed_size, 0xFF, np.uint8), queue)
        plan.pack(queue, buffers["w"], _region(packed)).wait()
        buffers["w"] = _region(packed)
        assert packed.damage(payload_too=False) is None, hint
    extras = {key: buffers[key] for key in ("bias", "residual") if key in buffers}
    blank = np.full(problem.out_shape, np.nan, numpy_dtype(problem.dtype))
    results = []
    for _ in range(2):
        out = Guarded(operands.initial if problem.accumulate else blank, queue)
        buffers[problem.written] = _region(out)
        plan.enqueue(queue, buffers["x"], buffers["w"], buffers["y"], _region(scratch), **extras).wait()
        for key, guarded in {**given, "workspace": scratch, "out": out}.items():
            damage = guarded.damage(payload_too=key not in ("out", "workspace"))
            assert damage is None, f"{hint}: {key}: {damage}"
        results.append(out.read()[1].copy())
        error = compare(results[-1], expected, limit, hint)
    if used is not None:
        used.append(int(np.flatnonzero(scratch.read()[1] != 0xFF)[-1]) + 1)
    assert results[0].tobytes() == results[1].tobytes(), f"{hint}: other bits in the second run"
    return error


def computed(queue: cl.CommandQueue, problem: ConvProblem, plan: Any, operands: Mapping[str, Any]) -> np.ndarray:
    """What a plan makes of operands (``initial`` is what the output holds before); output and workspace begin as NaN,
    and what it packs into as whatever lies there."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    out = np.full(problem.out_shape, np.nan, numpy_dtype(problem.dtype))
    arrays = {**operands, problem.written: operands["initial"] if problem.accumulate else out}
    names = [*"xwy", *problem.epilogue_operands]
    buffers = {name: cl.Buffer(queue.context, flags, hostbuf=arrays[name]) for name in names}
    written = buffers[problem.written]
    scratch = cl.Buffer(queue.context, flags, hostbuf=np.full(plan.workspace_size + 1, 0xFF, np.uint8))
    if getattr(plan, "packed_size", 0):
        packed = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, plan.packed_size)
        plan.pack(queue, buffers["w"], packed)
        buffers["w"] = packed
    plan.enqueue(queue, *(buffers.pop(name) for name in "xwy"), scratch, **buffers).wait()
    cl.enqueue_copy(queue, out, written)
    return out


def _region(guarded: Guarded) -> cl.Buffer:
    """The payload of a guarded array as a buffer of its own."""
    return guarded.buffer.get_sub_region(guarded.start, max(1, guarded.nbytes))


def table_cases(every: int, accepts: Callable[[ConvProblem], bool] = lambda problem: True) -> list:
    """Every accepted line of the small tables, in every direction and layout; one in ``every`` without ``--full``."""
    lines = [entry for table in ("near_miss", "basic") for entry in shape_tables.load(table) if entry.problem.mb]
    lines = [entry for entry in lines if accepts(entry.problem)]
    return [
        pytest.param(entry.problem.replace(direction=direction, layout=layout),
                     id=f"{direction}-{layout}-{entry.name}", marks=[pytest.mark.full] if number % every else [])
        for number, (entry, direction, layout) in enumerate(itertools.product(lines, DIRECTIONS, LAYOUTS))
    ]  # fmt: skip


def check_on_device(queue: cl.CommandQueue, solver: Solver, texts: Iterable[str], *checks: Mapping[str, Any]) -> None:
    """The first two configurations of each problem that the solver takes there, by each of ``checks`` (``check_plan``'s
    options); skips, with the solver's words, where it takes none."""
    info, problems = runtime.device_info(queue.device), [ConvProblem.parse(text) for text in texts]
    taken = [problem for problem in problems if not solver.rejects(problem, info)]
    for problem in taken:
        for config in itertools.islice(solver.configs(problem, info), 2):
            plan = solver.plan(queue.context, problem, config)
            for options in checks:
                check_plan(queue, problem, plan, f"{problem} {config}", **options)
    if not taken:
        pytest.skip(f"{solver.name}: {solver.rejects(problems[0], info)}")


EXTREMES = ((1e30, None), (1e-30, None), (3e38, None), (1.0, np.inf), (1.0, -np.inf), (1.0, np.nan))
"""What an input is multiplied by, and one element of it."""


def check_extremes(queue: cl.CommandQueue, problem: ConvProblem, plan: Any, tolerance: float) -> None:
    """Large and tiny magnitudes survive; infinities and NaN reach exactly the outputs that read them, as no number."""
    random = np.random.default_rng(0)
    w = random.standard_normal(problem.w_shape).astype(np.float32)
    for factor, special in EXTREMES:
        x = random.uniform(-1, 1, problem.x_shape).astype(np.float32) * np.float32(factor)
        small = np.float32(1e-8) if factor > 1e38 else np.float32(1)
        if special is not None:
            x[0, 3, 0, 0] = special
        y = computed(queue, problem, plan, {"x": x, "w": w * small})
        with np.errstate(all="ignore"):
            expected = reference.compute(problem, x=x, w=w * small)
        assert (np.isfinite(y) == np.isfinite(expected)).all()
        assert special is None or not np.isfinite(y).all()
        kept = np.isfinite(expected)
        error = np.linalg.norm(y[kept].astype(float) - expected[kept]) / np.linalg.norm(expected[kept])
        assert error < tolerance, (factor, special, error)


def check_not_finite(queue: cl.CommandQueue, problem: ConvProblem, solver: Solver, value: float, *at: tuple) -> None:
    """An infinity or NaN at each of these places (image, channel and pixel) reaches its readers alone."""
    operands, _ = make_operands(problem, "real")
    config = next(iter(solver.configs(problem, runtime.device_info(queue.device))))
    plan = solver.plan(queue.context, problem, config)
    for place in at:
        x = operands.x.copy()
        (x if problem.layout == "nchw" else np.moveaxis(x, -1, 1))[place] = value
        with np.errstate(all="ignore"):
            expected = reference.compute(problem, x=x, w=operands.w)
        got = computed(queue, problem, plan, {"x": x, "w": operands.w})
        np.testing.assert_array_equal(np.isfinite(got.astype(np.float32)), np.isfinite(expected))
