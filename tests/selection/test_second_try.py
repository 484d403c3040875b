"""A plan that fails as it runs: another has its turn where that cannot spoil the result; a full device is no fault."""

from __future__ import annotations

import textwrap
import warnings

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

import convdispatch as cd
from convdispatch import MemoryLimit, PlanFailed, constant, conv, policy
from convdispatch.api import ConvDispatchWarning
from convdispatch.device import runtime
from convdispatch.device.memory import allocator
from convdispatch.device.places import queue as queue_place
from convdispatch.measurement import reference
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader

PLUGIN = """
import pyopencl as cl
from convdispatch.api import EPILOGUE, KernelPlan, Launch, OPERANDS, Solver, StepPlan, build, hookimpl

ADD = "kernel void add(global float *y) { y[get_global_id(0)] += 1.0f; }"

def fail(queue, operands, wait_for=None):
    raise RuntimeError("engine on fire")

class Test(Solver):
    fuses = EPILOGUE
    def rejects(self, problem, device):
        return None if problem.direction == "fwd" else "forward only"

class Half(Test):
    '''Adds to the output, then fails.'''
    name = "test.half"
    def plan(self, context, problem, config):
        size = problem.mb * problem.oc * problem.oh * problem.ow
        add = Launch(build(context, ADD), "add", (size,), None, "y", names=OPERANDS)
        return StepPlan(0, [add, fail])

class Early(Test):
    '''Fails before its first launch.'''
    name = "test.early"
    def plan(self, context, problem, config):
        return StepPlan(0, [fail])

class Foreign(Test):
    '''Enqueues by means of its own, then fails.'''
    name = "test.foreign"
    def plan(self, context, problem, config):
        program = build(context, ADD)
        class Plan:
            workspace_size = 0
            def enqueue(self, queue, x, w, y, workspace, wait_for=None, **extras):
                cl.Kernel(program, "add")(queue, (problem.mb * problem.oc * problem.oh * problem.ow,), None, y)
                raise RuntimeError("engine on fire")
        return Plan()

@hookimpl
def convdispatch_solvers():
    return [Half(), Early(), Foreign()]
"""
X = np.arange(2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6) % 7 - 3
W = np.arange(8 * 4 * 3 * 3, dtype=np.float32).reshape(8, 4, 3, 3) % 5 - 2
PROBLEM = cd.ConvProblem(mb=2, ic=4, ih=6, iw=6, oc=8, kh=3, kw=3)
EXPECTED = reference.compute(PROBLEM, x=X, w=W)
FULL = "clEnqueueNDRangeKernel failed: MEM_OBJECT_ALLOCATION_FAILURE"
TOO_MANY_REGISTERS = "clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES"


@pytest.fixture
def broken(tmp_path, monkeypatch, read_anew):
    """``broken(name)`` makes a solver of the plugin above everyone's first choice, im2col the second."""
    folder = tmp_path / "plugins" / "test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(textwrap.dedent(PLUGIN))
    registry = tmp_path / "registry.yaml"
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(folder.parent))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(registry))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,test")

    def prefer(name):
        registry.write_text(f"version: 1\nrules:\n  - prefer: [{name}, im2col]\n")
        read_anew()

    return prefer


@pytest.fixture(params=["in-order", "out-of-order"])
def worker(request, device):
    chaotic = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    if request.param == "out-of-order" and not device.queue_on_host_properties & chaotic:
        pytest.skip("the device has no out-of-order queues")
    return cl.CommandQueue(runtime.context(device), properties=chaotic if request.param == "out-of-order" else 0)


def arrays(queue, *more):
    found = [cl.array.to_device(queue, values) for values in (X, W, *more)]
    queue.finish()
    return found


@pytest.mark.parametrize("name", ["test.half", "test.foreign"])
def test_no_second_try_over_a_half_added_output(worker, broken, name):
    broken(name)
    x, w, out = arrays(worker, np.ones(PROBLEM.y_shape, np.float32))
    with pytest.warns(ConvDispatchWarning, match="set aside"), pytest.raises(PlanFailed, match=f"{name} failed"):
        conv(x, w, out=out, accumulate=True)
    worker.finish()
    out.fill(np.float32(3))
    worker.finish()
    got = conv(x, w, out=out, accumulate=True)  # the solver is set aside: the next call is right
    np.testing.assert_array_equal(got.get(), EXPECTED + 3)


@pytest.mark.parametrize("name", ["test.half", "test.foreign"])
def test_no_second_try_over_a_half_added_residual(worker, broken, name):
    """A fused residual in the result's place is read by whoever comes second."""
    broken(name)
    x, w, out = arrays(worker, np.ones(PROBLEM.y_shape, np.float32))
    with pytest.warns(ConvDispatchWarning), pytest.raises(PlanFailed, match=f"{name} failed"):
        conv(x, w, residual=out, out=out)


def test_a_plan_that_fails_before_its_first_launch_has_a_second_try(worker, broken):
    broken("test.early")
    x, w, out = arrays(worker, np.full(PROBLEM.y_shape, 3, np.float32))
    with pytest.warns(ConvDispatchWarning, match="test.early is set aside"):
        got = conv(x, w, out=out, accumulate=True)
    np.testing.assert_array_equal(got.get(), EXPECTED + 3)


@pytest.mark.parametrize("name", ["test.half", "test.early", "test.foreign"])
def test_what_the_result_does_not_read_has_a_second_try(worker, broken, name):
    """Also on an out-of-order queue, where the failed plan's commands may still run."""
    broken(name)
    x, w, out = arrays(worker, np.full(PROBLEM.y_shape, 3, np.float32))
    with pytest.warns(ConvDispatchWarning, match=f"{name} is set aside"):
        got = conv(x, w, out=out)
    np.testing.assert_array_equal(got.get(), EXPECTED)


@pytest.mark.parametrize("name", ["test.half", "test.early", "test.foreign"])
def test_numpy_arrays(worker, broken, name):
    broken(name)
    with pytest.warns(ConvDispatchWarning, match=f"{name} is set aside"):
        np.testing.assert_array_equal(conv(X, W, queue=worker), EXPECTED)
    broken(name)
    out = np.full(PROBLEM.y_shape, 3, np.float32)
    if name == "test.early":
        with pytest.warns(ConvDispatchWarning, match="set aside"):
            conv(X, W, out=out, accumulate=True, queue=worker)
        np.testing.assert_array_equal(out, EXPECTED + 3)
    else:
        with pytest.warns(ConvDispatchWarning, match="set aside"), pytest.raises(PlanFailed):
            conv(X, W, out=out, accumulate=True, queue=worker)


# --- a full device ----------------------------------------------------------------------------------------------------


def raising(times: int, text: str, call, calls=None):
    """``call``, but the first ``times`` calls raise; and a list as long as how often it was called. Functions that are
    given one list are counted together."""
    calls = [] if calls is None else calls

    def wrapped(*arguments, **named):
        calls.append(1)
        if len(calls) <= times:
            raise cl.MemoryError(text)
        return call(*arguments, **named)

    return wrapped, calls


@pytest.fixture
def plan(device, monkeypatch):
    """The plan that the tests below break, im2col's; and how often waiting memory was given back."""
    dispatch.forget()
    given_back = []
    release = allocator.release_memory
    monkeypatch.setattr(allocator, "release_memory", lambda where=None: (given_back.append(where), release(where)))
    with policy(solver="im2col"), warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody is set aside

        def made(problem):
            prepared = dispatch.prepare(problem, runtime.context(device))
            prepared.executable(runtime.queue(device))  # recorded before its enqueue is broken
            return prepared.plan

        yield made, given_back
    dispatch.forget()


def break_plan(monkeypatch, plan, where: str, times: int):
    """Make the first ``times`` tries of a plan's packing, or of its launches and its enqueue, meet a full device.
    Returns a list as long as how many tries there were: the first is the recorded launches', the next the plan's."""
    call, calls = raising(times, FULL, getattr(plan, where))
    monkeypatch.setattr(plan, where, call)
    if where == "enqueue":
        launch, _ = raising(times, FULL, queue_place._enqueue, calls)
        monkeypatch.setattr(queue_place, "_enqueue", launch)
    return calls


@pytest.mark.parametrize("where", ["enqueue", "pack"])
def test_a_full_device_gets_back_what_waits_and_one_more_try(device, queue, plan, monkeypatch, where):
    made, given_back = plan
    problem = PROBLEM.replace(constant_weights=where == "pack")
    broken = made(problem)
    calls = break_plan(monkeypatch, broken, where, 1)
    x, w = arrays(queue)
    np.testing.assert_array_equal(conv(x, constant(w) if where == "pack" else w).get(), EXPECTED)
    assert len(calls) == 2
    assert given_back == [device]


@pytest.mark.parametrize("where", ["enqueue", "pack"])
def test_a_device_that_stays_full_says_memory_limit(queue, plan, monkeypatch, where):
    made, _ = plan
    problem = PROBLEM.replace(constant_weights=where == "pack")
    broken = made(problem)
    calls = break_plan(monkeypatch, broken, where, 99)
    x, w = arrays(queue)
    given = constant(w) if where == "pack" else w
    with pytest.raises(MemoryLimit, match="no memory left"):
        conv(x, given)
    assert len(calls) == 2
    monkeypatch.undo()
    assert dispatch.prepare(problem, queue.context).plan is broken, "the solver was not set aside"
    np.testing.assert_array_equal(conv(x, given).get(), EXPECTED)


@pytest.mark.parametrize("times", [1, 99])
def test_a_full_device_while_a_plan_is_made(device, queue, plan, monkeypatch, times):
    solver = loader.plugins().solvers["im2col"]
    call, _ = raising(times, "clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE", solver.plan)
    monkeypatch.setattr(solver, "plan", call, raising=False)
    x, w = arrays(queue)
    if times > 1:
        with pytest.warns(ConvDispatchWarning, match="im2col is set aside"), pytest.raises(MemoryLimit):
            conv(x, w)
        monkeypatch.undo()
    np.testing.assert_array_equal(conv(x, w).get(), EXPECTED)


@pytest.mark.parametrize("times", [1, 99])
def test_a_full_device_while_the_result_is_made(queue, plan, times):
    """Of the caller's allocator, as of every other."""
    x, w = arrays(queue)
    x.allocator, calls = raising(times, FULL, lambda size: cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size))
    if times > 1:
        with pytest.raises(MemoryLimit):
            conv(x, w)
    else:
        np.testing.assert_array_equal(conv(x, w).get(), EXPECTED)
    assert len(calls) == 2


def test_too_many_registers_are_the_solvers_own_fault(queue, monkeypatch):
    """OpenCL's name for it is that of missing memory, and pyopencl's class too."""
    dispatch.forget()
    with policy(solver="im2col*"):
        first = dispatch.prepare(PROBLEM, queue.context)
        call, _ = raising(99, TOO_MANY_REGISTERS, first.plan.enqueue)
        monkeypatch.setattr(first.plan, "enqueue", call)
        x, w = arrays(queue)
        with pytest.warns(ConvDispatchWarning, match="im2col is set aside"), pytest.raises(cd.NoSolver):
            conv(x, w)
    dispatch.forget()


def test_no_second_try_over_a_half_added_output_on_a_full_device(queue, monkeypatch):
    """The same plan's second try would add twice."""
    dispatch.forget()
    problem = PROBLEM.replace(accumulate=True)
    with policy(solver="im2col"):
        broken = dispatch.prepare(problem, queue.context).plan
        enqueue = broken.enqueue

        def add_and_fail(*arguments, **named):
            enqueue(*arguments, **named)
            raise cl.MemoryError(FULL)

        monkeypatch.setattr(broken, "enqueue", add_and_fail)
        x, w, out = arrays(queue, np.ones(PROBLEM.y_shape, np.float32))
        with pytest.raises(MemoryLimit):
            conv(x, w, out=out, accumulate=True)
    dispatch.forget()
