"""The CPU's register-tile kernels: exact on small integers in every direction and layout, between guard zones."""

from __future__ import annotations

import itertools

import checking
import numpy as np
import pytest

import convdispatch
from convdispatch import NoSolver
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement import reference, shapes
from convdispatch.selection.loader import plugins

pytestmark = pytest.mark.usefixtures("cpu")
SOLVERS = ("direct", "depthwise", "pointwise", "weights")
LAYOUTS = ("nchw", "nhwc")
DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
_TABLE = {entry.name: entry.problem for entry in shapes.load("near_miss")}
_BASIC = {entry.name: entry.problem for entry in shapes.load("basic")}
# Compiling takes most of a test's time: each shape runs in one direction and layout, neighbours in others.
_TURNS = list(itertools.product(LAYOUTS, DIRECTIONS))


@pytest.fixture
def cpu(device):
    if runtime.device_info(device).type != "cpu":
        pytest.skip("the kernels are for CPUs")


def run(text: str | ConvProblem, device, solver: str = "*", **changes) -> None:
    """Check a problem, changed, with a solver of the plugin."""
    problem = ConvProblem.parse(text) if isinstance(text, str) else text
    checking.check(problem.replace(**changes), device, solver=f"implicitgemm.{solver}")


@pytest.mark.parametrize(("number", "name"), list(enumerate(_TABLE)), ids=list(_TABLE))
def test_tables(device, full, number, name):
    turns = _TURNS if full else [_TURNS[number * 5 % len(_TURNS)]]
    for layout, direction in turns:
        run(_TABLE[name], device, layout=layout, direction=direction)


@pytest.mark.parametrize(("number", "name"), list(enumerate(_BASIC)), ids=list(_BASIC))
def test_basic_table(device, full, number, name):
    if not full and number % 4:
        pytest.skip("thinned out; --full runs it")
    for layout, direction in _TURNS if full else [_TURNS[number // 4 % len(_TURNS)]]:
        run(_BASIC[name], device, layout=layout, direction=direction)


# Shapes on whose edges the tiles, bands, blocks and phases lie; every layout and direction.
EDGES = {
    "columns' rest, channels' rest": "mb1ic5ih9iw19oc35kh3ph1",
    "strides and dilations that share a factor": "mb1ic3ih17iw20oc6kh4kw3sh4sw3dh2dw3ph3pw2",
    "phases without a tap": "mb2ic4ih9oc5kh2sh3",
    "pads as wide as the kernel": "mb1ic3ih4iw6oc4kh3kw5ph3pw5",
    "groups of 3 to 2": "g3mb1ic9ih8oc6kh3ph1ph_r0pw_r2",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", EDGES.values(), ids=list(EDGES))
def test_edges(device, full, text, direction, layout):
    if not full and (len(text) + DIRECTIONS.index(direction) + LAYOUTS.index(layout)) % 2:
        pytest.skip("thinned out; --full runs it")
    run(text, device, "direct" if direction != "bwd_weights" else "weights", direction=direction, layout=layout)


EPILOGUES = (
    {"bias": True, "activation": "relu6"},
    {"bias": True, "residual": True, "activation": "relu"},
    {"accumulate": True},
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=["bias", "residual", "accumulate"])
@pytest.mark.parametrize(
    ("solver", "text"),
    [
        ("direct", "g2mb2ic6ih7oc38kh3ph1"),
        ("depthwise", "g19mb2ic19ih9oc19kh3sh2ph1"),
        ("pointwise", "mb2ic18ih6oc21kh1"),
    ],
    ids=["direct", "depthwise", "pointwise"],
)
def test_epilogues(device, solver, text, epilogue, layout):
    run(text, device, solver, layout=layout, **epilogue)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("solver", "text", "direction"),
    [
        ("direct", "mb1ic5ih9oc20kh3ph1", "fwd"),
        ("direct", "mb1ic5ih9oc4kh3sh2ph1", "bwd_data"),
        ("depthwise", "g18mb1ic18ih9oc18kh3ph1", "fwd"),
        ("weights", "mb2ic5ih9oc20kh3ph1", "bwd_weights"),
    ],
)
def test_dtypes(device, solver, text, direction, dtype):
    if runtime.device_info(device).supports(dtype):
        pytest.skip("the device lacks it")
    for layout in LAYOUTS:
        run(text, device, solver, direction=direction, dtype=dtype, layout=layout, bias=direction == "fwd")


@pytest.mark.parametrize(
    ("solver", "text", "direction"),
    [
        ("direct", "mb3ic20ih20oc40kh3ph1", "fwd"),
        ("direct", "mb1ic20ih12oc24kh3ph1", "bwd_data"),
        ("weights", "mb3ic20ih12oc40kh3ph1", "bwd_weights"),
        ("depthwise", "g20mb1ic20ih20oc20kh3ph1", "fwd"),
    ],
)
def test_configurations(device, full, solver, text, direction):
    """Every configuration gives the reference's very integers, and states its workspace."""
    import pyopencl as cl

    for layout in LAYOUTS if full else ("nchw",):
        problem = ConvProblem.parse(text).replace(direction=direction, layout=layout)
        chosen, info = plugins().solvers[f"implicitgemm.{solver}"], runtime.device_info(device)
        operands, expected = checking.make_operands(problem)
        queue = runtime.queue(device)
        for config in chosen.configs(problem, info):
            plan = chosen.plan(queue.context, problem, config)
            assert plan.workspace_size == chosen.workspace(problem, info, config)
            out = np.full(problem.out_shape, np.nan, np.float32)
            arrays = {name: np.ascontiguousarray(array) for name, array in operands.present().items()}
            arrays[problem.written] = out
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            memory = {name: cl.Buffer(queue.context, flags, hostbuf=array) for name, array in arrays.items()}
            scratch = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, max(1, plan.workspace_size))
            plan.enqueue(queue, memory["x"], memory["w"], memory["y"], scratch)
            cl.enqueue_copy(queue, out, memory[problem.written])
            assert np.array_equal(out, expected), config


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "text", ["mb2ic6ih9oc35kh3ph1", "g19mb2ic19ih9oc19kh3ph1", "mb2ic18ih6oc21kh1"], ids=["direct", "depthwise", "1x1"]
)
def test_constant_weights_are_packed_once(device, text, layout):
    """The packed form serves every later call, also under another batch size."""
    random = np.random.default_rng(0)
    problem = ConvProblem.parse(text).replace(layout=layout)
    w = random.integers(-4, 5, problem.w_shape).astype(np.float32)
    held = convdispatch.constant(w)
    with convdispatch.policy(solver="implicitgemm.*", fallback=False):
        for mb in (2, 2, 3):
            p = problem.replace(mb=mb)
            x = random.integers(-4, 5, p.x_shape).astype(np.float32)
            got = convdispatch.conv(x, held, **checking.options(p), queue=runtime.queue(device))
            assert np.array_equal(got, reference.compute(p, x=x, w=w))


def test_same_bits_every_time(device):
    checking.check_same_bits(ConvProblem.parse("bwd_weights_mb3ic20ih12oc40kh3ph1"), device, "implicitgemm.*")


@pytest.mark.parametrize(
    ("solver", "text", "reason"),
    [
        ("depthwise", "mb1ic4ih8oc4kh3", "one channel in and out a group only, got 4 and 4 in 1 groups"),
        ("pointwise", "mb1ic4ih8oc4kh3", "1x1 only, got 3x3"),
        ("pointwise", "mb1ic4ih8oc4kh1sh2", "stride 1 and no padding only"),
        ("weights", "mb1ic4ih8oc4kh3", "bwd_weights only, got fwd"),
    ],
)
def test_refusals_are_sentences(device, solver, text, reason):
    found = plugins().solvers[f"implicitgemm.{solver}"].rejects(ConvProblem.parse(text), runtime.device_info(device))
    assert found == reason
    operands, _ = checking.make_operands(ConvProblem.parse(text))
    with convdispatch.policy(solver=f"implicitgemm.{solver}"), pytest.raises(NoSolver, match="only"):
        checking.call(ConvProblem.parse(text), operands.present(), queue=runtime.queue(device))
