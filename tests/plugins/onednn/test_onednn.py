"""oneDNN as a plugin: every direction, layout and epilogue against the reference, on two queues, from two threads."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import shape_tables
from checking import check, make_operands
from plans import check_config
from threads import together

import convdispatch
from convdispatch.api import ConvProblem
from convdispatch.api.activations import ACTIVATIONS, apply_activation
from convdispatch.device import runtime
from convdispatch.selection import dispatch
from convdispatch.selection.plugins.loader import plugins
from convdispatch.selection.visible_problem import visible_problem

FORWARD, GRADIENT = "onednn.forward", "onednn.gradient"


def solver_of(problem: ConvProblem) -> str:
    return FORWARD if problem.direction == "fwd" else GRADIENT


@pytest.fixture(autouse=True)
def available(device):
    """Skips where the library is not installed, or the device is not one whose memory it can reach."""
    reason = (
        plugins()
        .solvers[FORWARD]
        .rejects(ConvProblem(mb=1, ic=16, ih=8, iw=8, oc=16, kh=3, kw=3), runtime.device_info(device))
    )
    if reason:
        pytest.skip(f"onednn: {reason}")


@pytest.fixture
def other_queue(device):
    import pyopencl as cl

    return cl.CommandQueue(runtime.context(device))


SHAPES = [
    "mb2ic16ih9oc32kh3ph1",
    "mb1ic3ih13oc20kh5sh2ph2",
    "g4mb2ic16ih8oc12kh3ph1dh2",
    "g17mb2ic17ih8oc17kh3ph1sh2",
    "mb2ic7ih6iw9oc5kh2kw3",
    "mb3ic32ih7oc48kh1",
    "mb2ic20ih7oc16kh1sh2",
    "mb1ic5id5ih6iw7oc16kd3kh3kw3pd1ph1pw1",
    "mb2ic16iw31oc24kw5pw2",
    "mb1ic16ih8iw8oc16kh3kw3ph1pw0ph_r0pw_r2",
]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("g144mb8ic144ih56oc144kh3ph1", {"blocked", "blocked8"}),  # plain takes three to ten times as long
        ("bwd_data_g144mb8ic144ih56oc144kh3ph1", {"any"}),
        ("bwd_weights_g144mb8ic144ih56oc144kh3ph1", {"any"}),
        ("mb8ic256ih56oc64kh1", {"plain"}),
        ("bwd_weights_mb8ic512ih14oc512kh3ph1", {"plain"}),
        ("mb8ic512ih14oc512kh3ph1", {"any"}),
    ],
)
def test_the_best_guess_comes_first(device, text, first):
    """Unmeasured, a pinned oneDNN runs its first configuration."""
    problem = ConvProblem.parse(text)
    configs = list(plugins().solvers[solver_of(problem)].configs(problem, runtime.device_info(device)))
    assert configs[0]["data"] in first
    assert len({config["data"] for config in configs}) == len(configs) > 1


@pytest.mark.parametrize("data", ["integer", "real"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", SHAPES)
def test_shape(text, direction, layout, data, device):
    problem = ConvProblem.parse(text).replace(direction=direction, layout=layout)
    check(problem, device, solver=solver_of(problem), data=data)


@pytest.mark.parametrize("table", ["basic", "near_miss"])
def test_tables(table, device, full):
    entries = shape_tables.load(table)
    for entry, direction, layout in itertools.islice(
        itertools.product(entries, ("fwd", "bwd_data", "bwd_weights"), ("nchw", "nhwc")), 0, None, 1 if full else 7
    ):
        problem = entry.problem.replace(direction=direction, layout=layout)
        solver = plugins().solvers[solver_of(problem)]
        if solver.rejects(visible_problem(solver, problem), runtime.device_info(device)) is None:
            check(problem, device, solver=solver.name, data="integer")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "flags",
    [
        {"bias": True},
        {"bias": True, "activation": "relu"},
        {"residual": True},
        {"bias": True, "residual": True, "activation": "relu6"},
        {"activation": "clip(-1,2)"},
        {"activation": "leaky_relu(0.2)"},
        {"activation": "silu", "bias": True},
        {"activation": "elu(0.5)"},
        {"activation": "sigmoid"},
        {"activation": "tanh"},
        {"activation": "hardsigmoid(0.3,0.4)"},
        {"activation": "hardswish", "bias": True},
        {"activation": "gelu"},
        {"activation": "mish"},
        {"accumulate": True},
        {"accumulate": True, "bias": True},
    ],
    ids=lambda flags: "+".join(str(value) if name == "activation" else name for name, value in flags.items()),
)
def test_epilogue(flags, layout, device):
    problem = ConvProblem.parse("mb2ic16ih9oc20kh3ph1").replace(layout=layout, **flags)
    check(problem, device, solver=FORWARD, data="real")


def test_every_configuration(device):
    """Computes, in the workspace that is stated without a plan; constant weights are packed before."""
    info = runtime.device_info(device)
    texts = ("mb2ic20ih9oc32kh3ph1", "mb2ic3ih9oc16kh3sh2", "nhwc_mb2ic20ih9oc32kh3ph1", "nhwc_mb2ic3ih9oc16kh3sh2")
    forms = ("fwd", False), ("fwd", True), ("bwd_data", False), ("bwd_data", True), ("bwd_weights", False)
    for text, (direction, constant) in itertools.product((*texts, *SHAPES[:4]), forms):
        problem = ConvProblem.parse(text).replace(direction=direction, constant_weights=constant)
        solver = plugins().solvers[solver_of(problem)]
        configs = list(solver.configs(problem, info))
        assert configs
        assert len({str(config) for config in configs}) == len(configs)
        for config in configs:
            check_config(runtime.queue(device), problem, solver, config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_dtypes_are_refused_in_words_or_right(dtype, device):
    for direction in ("fwd", "bwd_data", "bwd_weights"):
        problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1").replace(dtype=dtype, direction=direction)
        solver = plugins().solvers[solver_of(problem)]
        reason = solver.rejects(problem, runtime.device_info(device))
        if reason is None:
            check(problem, device, solver=solver.name, data="real")
        else:
            assert "only, got" in reason


def test_constant_weights_are_packed_once(device):
    queue = runtime.queue(device)
    problem = ConvProblem.parse("mb1ic32ih10oc32kh3ph1")
    operands, expected = make_operands(problem)
    weights = convdispatch.constant(operands.w)
    with convdispatch.policy(solver=FORWARD):
        for _ in range(3):
            assert np.array_equal(convdispatch.conv(operands.x, weights, padding=1, queue=queue), expected)
    assert len(weights._packed) == 1


def test_in_place_residual(queue):
    import pyopencl.array as cl_array

    problem = ConvProblem.parse("mb2ic32ih9oc32kh3ph1").replace(residual=True)
    operands, expected = make_operands(problem)
    x, w, out = (cl_array.to_device(queue, array) for array in (operands.x, operands.w, operands.residual))
    with convdispatch.policy(solver=FORWARD):
        convdispatch.conv(x, w, padding=1, residual=out, out=out)
    assert np.array_equal(out.get(), expected)


def test_one_plan_on_two_queues_and_out_of_order(queue, other_queue, device):
    import pyopencl as cl
    import pyopencl.array as cl_array

    disorderly = cl.CommandQueue(
        runtime.context(device), properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    )
    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    cases = [make_operands(problem, seed=seed) for seed in range(6)]
    results = []
    with convdispatch.policy(solver=FORWARD):
        for number, (operands, _) in enumerate(cases):
            where = (queue, other_queue, disorderly)[number % 3]
            x, w = cl_array.to_device(where, operands.x), cl_array.to_device(where, operands.w)
            results.append(convdispatch.conv(x, w, padding=1, queue=where))
    for result, (_, expected) in zip(results, cases, strict=True):
        for event in result.events:
            event.wait()
        assert np.array_equal(result.get(), expected)


def test_two_threads(device):
    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")

    def work(seed: int) -> None:
        operands, expected = make_operands(problem, seed=seed)
        with convdispatch.policy(solver=FORWARD):  # a policy belongs to the thread that set it
            for _ in range(20):
                got = convdispatch.conv(operands.x, operands.w, padding=1, queue=runtime.queue(device))
                assert np.array_equal(got, expected)

    together(work, 2)


def test_enqueue_does_not_wait(queue):
    """Behind a gate that only this thread opens: a call that waited would find it opened by the timer."""
    import pyopencl as cl
    import pyopencl.array as cl_array

    random = np.random.default_rng(0)
    x = cl_array.to_device(queue, random.standard_normal((2, 32, 16, 16), dtype=np.float32))
    w = cl_array.to_device(queue, random.standard_normal((32, 32, 3, 3), dtype=np.float32))
    with convdispatch.policy(solver=FORWARD):
        convdispatch.conv(x, w, padding=1)
        queue.finish()
        gate = cl.UserEvent(queue.context)
        cl.enqueue_barrier(queue, wait_for=[gate])
        timer = threading.Timer(60, gate.set_status, [cl.command_execution_status.COMPLETE])
        timer.start()
        results = [convdispatch.conv(x, w, padding=1) for _ in range(4)]
        assert timer.is_alive(), "a call waited for work before it"
        timer.cancel()
        gate.set_status(cl.command_execution_status.COMPLETE)
        first, *others = [result.get() for result in results]
    assert np.isfinite(first).all()
    assert all(np.array_equal(first, other) for other in others)


def test_in_order_with_kernels(queue):
    """A kernel writes x before, and reads y after, with nobody waiting in between."""
    import pyopencl.array as cl_array

    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    operands, expected = make_operands(problem)
    x, w = cl_array.to_device(queue, operands.x), cl_array.to_device(queue, operands.w)
    with convdispatch.policy(solver=FORWARD):
        for _ in range(20):
            doubled = x * 2
            result = convdispatch.conv(doubled, w, padding=1) + 1
            assert np.array_equal(result.get(), 2 * expected + 1)


def test_refuses_in_words(device):
    info = runtime.device_info(device)
    solver = plugins().solvers[FORWARD]
    problem = ConvProblem.parse("mb1ic4ih8oc4kh3")
    assert solver.rejects(problem.replace(direction="bwd_data"), info) == "fwd only, got bwd_data"
    both = problem.replace(residual=True, accumulate=True)
    assert solver.rejects(both, info) == "residual or accumulate only, got both"


def test_one_table_with_the_portable_solvers(device):
    text = str(convdispatch.explain(ConvProblem.parse("mb1ic16ih20oc32kh3ph1"), device))
    assert "onednn.forward" in text
    assert "im2col" in text


def test_a_recording_runs_it_again(queue):
    from convdispatch.api.policy import Policy
    from convdispatch.device.commands.recording import Recording
    from convdispatch.device.replay.program import Program

    problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1").replace(bias=True, residual=True, activation="relu")
    operands, expected = make_operands(problem)
    prepared = dispatch.prepare(problem, queue.context, Policy(solver=FORWARD))
    recording = Recording(queue)
    slots = {name: recording.allocate(array.nbytes, persistent=True) for name, array in operands.present().items()}
    out = recording.allocate(expected.size * 4, persistent=True)
    prepared.enqueue(recording, slots["x"], slots["w"], out, slots["bias"], slots["residual"])
    program = Program(recording)
    import pyopencl as cl

    for sign in (1, -1):
        for name, array in operands.present().items():
            given = np.ascontiguousarray(array * sign if name == "x" else array)
            cl.enqueue_copy(queue, program.memory(slots[name]), given)
        program.run()
        got = np.empty(problem.out_shape, np.float32)
        cl.enqueue_copy(queue, got, program.memory(out))
        if sign == 1:
            assert np.array_equal(got, expected)
        else:
            assert not np.array_equal(got, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_the_one_that_it_is_called(activation):
    """By each one's number in the library: over negative values, zero and large ones."""
    x = np.linspace(-30, 30, 121, dtype=np.float32).reshape(1, 1, 1, -1)
    with convdispatch.policy(solver=FORWARD):
        got = convdispatch.conv(x, np.ones((1, 1, 1, 1), np.float32), activation=activation)
    want = apply_activation(activation, x.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
