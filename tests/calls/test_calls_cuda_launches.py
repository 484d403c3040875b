"""Calls made again on arrays of OpenCL's queues: the plan's launches are given on whatever memory each call brings."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from checking import call, make_operands
from host_programs import ADD, solvers
from on_queues import PROBLEM, bring, given, turns, values, warm  # noqa: F401 (fixtures among them)
from test_conv_events import gate  # noqa: F401 (a fixture)

import convdispatch as cd
from convdispatch import ConvProblem, Tensor
from convdispatch.device import runtime
from convdispatch.device.commands.recording import Recording
from convdispatch.device.executable import Executable
from convdispatch.device.places.queue import QueueEnqueue, QueuePlace
from convdispatch.device.programs.kernels import Launch, build
from convdispatch.selection import dispatch

TEXTS = (
    "mb1ic24ih1oc72kh1", "mb2ic16ih9oc24kh3ph1", "g16mb1ic16ih8oc16kh3ph1", "bwd_data_mb2ic8ih7oc12kh3ph1",
    "bwd_weights_mb3ic6ih9oc8kh3ph1", "nhwc_mb2ic8ih6oc16kh3ph1+relu", "f64_mb1ic5ih6oc7kh1", "f16_mb2ic8ih6oc16kh3ph1",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_every_solvers_launches_serve_memory_that_changes(bring, device, text, given):
    problem = ConvProblem.parse(text)
    cases, ran = turns(problem, bring, 3), 0
    for name in solvers(problem, device):
        given.clear()
        with cd.policy(solver=name, fallback=False):
            for new in (False, True):
                for turn in (0, 0, 0, 1, 2, 2, 0, 1):
                    arrays, expected = cases[turn]
                    dtype = next(iter(arrays.values())).dtype
                    out = None if new else bring(np.full(problem.out_shape, np.nan, dtype))
                    made = values(call(problem, arrays, out)).astype(np.float64)
                    limit = 1e-3 * np.abs(expected).max() * (30 if problem.dtype == "float16" else 1)
                    np.testing.assert_allclose(made, expected, rtol=0, atol=limit, err_msg=f"{name}, operands {turn}")
        ran += len(given) == 16  # all of them, the first too
    assert ran, "no solver's launches were given again"


def test_launches_on_parts_and_other_commands_are_the_plans_own(queue):
    """y = x + w, then + w again, by way of scratch memory."""
    add = Launch(build(queue.context, ADD), "add", (1,), (1,), ("a", "b", "c", np.int32(3)), names="abc")
    recording = Recording(queue)
    x, w, y = (recording.allocate(12) for _ in range(3))
    scratch = recording.allocate(12)
    add(recording, (x, w, scratch))
    add(recording, (scratch, w, y))
    launches = Executable.of(recording, (x, w, y), [2]).bind(QueuePlace(queue.context))
    random = np.random.default_rng(0)
    for _ in range(3):
        a, b = (random.standard_normal(3).astype(np.float32) for _ in range(2))
        memory = [cla.to_device(queue, array).base_data for array in (a, b, np.full(3, np.nan, np.float32))]
        launches.run(queue, memory).wait()
        found = np.empty(3, np.float32)
        cl.enqueue_copy(queue, found, memory[2])
        np.testing.assert_allclose(found, a + b + b, rtol=1e-6)
    add(recording, (scratch.get_sub_region(4, 8), w, y))
    assert type(Executable.of(recording, (x, w, y), [2]).bind(QueuePlace(queue.context))) is QueueEnqueue
    copies = Recording(queue)
    copies.copy(y, x, 12)
    assert type(Executable.of(copies, (x, w, y), [2]).bind(QueuePlace(queue.context))) is QueueEnqueue


def test_an_opaque_plan_is_told_what_to_wait_for_by_each_warm_call(queue, monkeypatch):
    """One that copies, or that another library computes: also where a call is made again on three operands."""
    seen, opaque = [], classmethod(lambda cls, recording, *rest: cls(None, *rest))
    monkeypatch.setattr(Executable, "of", opaque)
    dispatch.forget()
    try:
        prepared = dispatch.prepare(PROBLEM, queue.context)
        enqueue = prepared.plan.enqueue
        monkeypatch.setattr(
            prepared.plan, "enqueue", lambda *given, **more: seen.append(given[5:]) or enqueue(*given, **more)
        )
        ((arrays, expected),) = turns(PROBLEM, lambda array: cla.to_device(queue, array), 1)
        out = cla.zeros(queue, PROBLEM.out_shape, np.float32)
        for _ in range(6):
            before = [*arrays["x"].events, *arrays["w"].events, *out.events]
            seen.clear()
            cd.conv(arrays["x"], arrays["w"], padding=1, out=out)
            assert list(seen[-1][0] or []) == before  # the first of all is the recording's
            np.testing.assert_array_equal(out.get(), expected)
    finally:
        dispatch.forget()


@pytest.mark.parametrize("name", ["winograd.f2x3", "im2col"])
def test_an_out_of_order_queue_keeps_the_launches_order(device, name, given):
    chaotic = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    if not device.queue_on_host_properties & chaotic:
        pytest.skip("the device has no out-of-order queues")
    queue = cl.CommandQueue(runtime.context(device), properties=chaotic)
    cases = turns(ConvProblem.parse("mb2ic16ih40oc16kh3ph1"), lambda array: cla.to_device(queue, array), 2)
    with cd.policy(solver=name, fallback=False):
        for arrays, expected in [*cases] * 6:
            x, w = arrays["x"], arrays["w"]
            for _ in range(2):
                np.testing.assert_allclose(cd.conv(x, w, padding=1).get(), expected, atol=0.05)
    assert len(given) > 10


def test_nothing_is_allocated_inside_frozen(bring):
    x, w, out, expected = warm(bring, False)
    for _ in range(3):
        held = cd.conv(x, w, padding=1)
    with cd.frozen():
        for _ in range(3):
            np.testing.assert_array_equal(values(cd.conv(x, w, padding=1, out=out)), expected)
        for _ in range(3):
            with pytest.raises(cd.Frozen):
                cd.conv(x, w, padding=1)
    np.testing.assert_array_equal(values(held), expected)


@pytest.mark.usefixtures("clean_memory")
def test_a_limit_on_memory_holds_for_new_results(bring, device, naive):
    with cd.policy(solver="naive.direct"):  # which takes no scratch memory: that is short in other words
        x, w, _, expected = warm(bring, True)
        held = [cd.conv(x, w, padding=1)]
        runtime.set_memory_limit(device, runtime.memory_statistics(device).held_bytes)
        with pytest.raises(cd.MemoryLimit):
            held.extend(cd.conv(x, w, padding=1) for _ in range(100))
        runtime.set_memory_limit(device, None)
        held += [cd.conv(x, w, padding=1) for _ in range(2)]
    for each in held:
        np.testing.assert_array_equal(values(each), expected)


@pytest.mark.parametrize("kinds", ["aa", "at", "ta"], ids=["arrays", "x an array", "w an array"])
@pytest.mark.parametrize("late", ["x", "w", "out"])
def test_what_a_warm_call_reads_is_written_first(queue, gate, kinds, late):
    """Events that an array carries are waited for, by the device, whatever lies beside it."""
    problem = PROBLEM
    operands, expected = make_operands(problem, seed=3)
    made = {"a": lambda array: cla.to_device(queue, array), "t": lambda array: Tensor.from_numpy(array, queue)}
    x, w = made[kinds[0]](operands.present()["x"]), made[kinds[1]](operands.present()["w"])
    out = made[kinds[0]](np.zeros(problem.out_shape, np.float32))
    for _ in range(4):
        cd.conv(x, w, padding=1, out=out)
    queue.finish()
    array = {"x": x, "w": w, "out": out}[late]
    if not isinstance(array, cla.Array):
        pytest.skip("tensors carry no events")
    right = values(array)
    array.fill(np.float32(7))
    queue.finish()
    gate.deliver(array, right if late != "out" else np.full(problem.out_shape, 5, np.float32))
    y = cd.conv(x, w, padding=1, out=out)
    assert y is out
    gate.open()
    np.testing.assert_array_equal(values(y), expected)


def test_threads_share_what_a_call_keeps(bring, given):
    """On one queue, and on one each; weights are the same for all."""
    cases = turns(PROBLEM, bring, 6)
    weights, own = cases[0][0]["w"], [cl.CommandQueue(bring.queue.context) for _ in range(3)]
    expected = [cd.conv(values(arrays["x"]), values(weights), padding=1) for arrays, _ in cases]

    def work(number):
        x, w, queue = cases[number][0]["x"], weights, bring.queue
        if number % 2:
            queue = own[number // 2]
            x, w = bring(values(x), queue), bring(values(w), queue)
        out = bring(np.zeros(PROBLEM.out_shape, np.float32), queue)
        for turn in range(200):
            made = cd.conv(x, w, padding=1, out=None if turn % 2 else out)
            if turn % 20 < 2:
                np.testing.assert_array_equal(values(made), expected[number])
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            assert all(each.result(120) for each in [pool.submit(work, number) for number in range(6)])
    finally:
        sys.setswitchinterval(interval)
    assert len(given) > 400


def test_nothing_grows_over_10_000_calls(bring, device):
    x, w, out, _ = warm(bring, False)
    warm(bring, True)

    def run(count):
        for _ in range(count):
            cd.conv(x, w, padding=1)
            cd.conv(x, w, padding=1, out=out)
        bring.queue.finish()
        gc.collect()
        found = runtime.memory_statistics(device)
        return len(gc.get_objects()), found.active_blocks, found.active_bytes, found.held_bytes

    objects, *memory = run(200)
    more, *after = run(5000)
    assert after == memory
    assert more < objects + 100


def test_a_new_array_is_as_one_that_its_constructor_made(queue):
    """Whatever pyopencl's arrays can do, results can."""
    x, w = cla.to_device(queue, np.ones((1, 4, 8, 8), np.float32)), cla.to_device(queue, np.ones((8, 4, 1, 1), "f"))
    first, second = [cd.conv(x, w) for _ in range(4)][2:]
    whole = cla.Array(queue, (1, 8, 8, 8), np.float32)
    for made in (first, second):
        assert {name: type(value) for name, value in vars(made).items() if name not in ("base_data", "_flags")} == {
            name: type(value) for name, value in vars(whole).items() if name not in ("base_data", "_flags")
        }
        assert len(made.events) == 1
        np.testing.assert_array_equal((made + made).get(), 8)
        np.testing.assert_array_equal(made[0, 3].get(), 4)
        np.testing.assert_array_equal(made.reshape(8, 64).get(), 4)
        assert made.flags.c_contiguous
    assert first.events is not second.events
    assert first.base_data.int_ptr != second.base_data.int_ptr
    first.fill(np.float32(9))
    np.testing.assert_array_equal(second.get(), 4)
