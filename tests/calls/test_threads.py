"""Many threads, queues and devices at once: each gets its own right answer, and plans are made once."""

from __future__ import annotations

import numpy as np
import pytest
from checking import call, compare, limit_of, make_operands
from threads import together

import convdispatch
from convdispatch import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection import dispatch

cl = pytest.importorskip("pyopencl")
import pyopencl.array as cl_array  # noqa: E402

TEXTS = ["mb2ic6ih9oc8kh3ph1+bias", "mb1ic16ih7oc16kh1", "g4mb2ic4ih8oc8kh3ph1sh2", "bwd_data_mb2ic4ih7oc6kh3ph1",
         "bwd_weights_mb2ic4ih7oc6kh3ph1", "nhwc_mb2ic5ih6oc7kh3+residual+relu"]  # fmt: skip
THREADS, TURNS = 8, 25


def cases():
    problems = [ConvProblem.parse(text) for text in TEXTS]
    return [(problem, *make_operands(problem, seed=seed)) for seed, problem in enumerate(problems)]


def test_numpy_from_many_threads():
    """Cold: the same plans are asked for by all threads at once."""
    prepared = cases()
    dispatch.forget()

    def work(number):
        for turn in range(TURNS):
            problem, operands, expected = prepared[(number + turn) % len(prepared)]
            np.testing.assert_array_equal(call(problem, operands.present()), expected)

    together(work, THREADS)


def test_a_queue_a_thread(device):
    prepared = cases()
    context = runtime.context(device)

    def work(number):
        queue = cl.CommandQueue(context)
        loaded = [
            (problem, {name: cl_array.to_device(queue, array) for name, array in operands.present().items()}, expected)
            for problem, operands, expected in prepared
        ]
        results = []
        for turn in range(TURNS):
            problem, arrays, expected = loaded[(number + turn) % len(loaded)]
            results.append((call(problem, arrays), expected))  # all in flight
        for result, expected in results:
            np.testing.assert_array_equal(result.get(), expected)

    together(work, THREADS)


EXACT = ("im2col", "implicitgemm.*")


@pytest.mark.parametrize("solver", [*EXACT, "winograd.*", "*"])
def test_one_plan_on_several_queues_at_once(queue, solver):
    """One thread, four queues, the same problem: kernels and workspaces must not be shared between queues."""
    problem = ConvProblem.parse("mb2ic16ih14oc16kh3ph1")
    queues = [queue, *(cl.CommandQueue(queue.context) for _ in range(3))]
    prepared = [make_operands(problem, seed=seed) for seed in range(4)]
    loaded = [
        {name: cl_array.to_device(own, array) for name, array in operands.present().items()}
        for own, (operands, _) in zip(queues, prepared)
    ]
    with convdispatch.policy(solver=solver):
        limit = limit_of(problem, convdispatch.explain(problem, queue.device).chosen)
        results = [(call(problem, loaded[turn % 4]), prepared[turn % 4][1]) for turn in range(40)]
    assert (limit == 0) == (solver in EXACT) or solver == "*"
    for result, expected in results:
        compare(result.get(), expected, limit)


@pytest.mark.parametrize("solver", [*EXACT, "*"])
def test_a_shared_constant_is_packed_once_for_all(device, solver):
    problem = ConvProblem.parse("mb2ic16ih9oc24kh3ph1")
    operands, expected = make_operands(problem)
    kept = convdispatch.constant(operands.w)

    with convdispatch.policy(solver=solver):
        constant = problem.replace(constant_weights=True)
        limit = limit_of(constant, convdispatch.explain(constant, device).chosen)

    def work(number):
        with convdispatch.policy(solver=solver):  # a thread's own
            for _ in range(10):
                compare(call(problem, {"x": operands.x, "w": kept}), expected, limit)

    together(work, THREADS)


def test_policies_are_a_thread_s_own():
    """One thread pins a solver that does not exist; the others go on."""
    problem, operands, expected = cases()[0]

    def work(number):
        for _ in range(10):
            if number == 0:
                with convdispatch.policy(solver="nobody"), pytest.raises(convdispatch.NoSolver):
                    call(problem, operands.present())
            else:
                np.testing.assert_array_equal(call(problem, operands.present()), expected)

    together(work, 4)


def working_devices():
    usable = [d for d in runtime.devices() if runtime.device_info(d).vendor != "oclgrind"]
    return [device for device in usable if runtime.probe(device) is None]


def test_several_devices_at_once():
    """Threads on every device that works, through one process-wide dispatch."""
    found = working_devices()
    if len(found) < 2:
        pytest.skip(f"needs two OpenCL devices that work, found {len(found)}")
    problem = ConvProblem.parse("mb2ic6ih9oc8kh3ph1+bias+relu")
    prepared = [make_operands(problem, seed=seed) for seed in range(4)]

    def work(number):
        queue = cl.CommandQueue(runtime.context(found[number % len(found)]))
        for turn in range(10):
            operands, expected = prepared[(number + turn) % 4]
            arrays = {name: cl_array.to_device(queue, array) for name, array in operands.present().items()}
            got = call(problem, arrays)
            assert got.context == queue.context
            np.testing.assert_array_equal(got.get(), expected)
            np.testing.assert_array_equal(call(problem, operands.present(), queue=queue), expected)

    together(work, 2 * len(found))
