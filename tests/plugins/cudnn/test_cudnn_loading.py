"""cuDNN's plans load their kernels when they are made, so that no enqueue waits for the device."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
from checking import make_operands
from convdispatch_cudnn import solver as loading
from fake_cuda import FakeCuda
from paths import SUPPORT
from test_cudnn import NAMES

from convdispatch.api import ConvDispatchError, ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement import reference
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tensor import Tensor


@pytest.fixture
def fake(monkeypatch):
    """CUDA that notes its calls; ``packs`` are the addresses of variant packs."""
    fake = FakeCuda()
    fake.packs = []
    monkeypatch.setattr(loading, "library", lambda: fake)
    monkeypatch.setattr(
        loading, "variant_pack", lambda places: fake.packs.append(places) or types.SimpleNamespace(handle=1)
    )
    return fake


@pytest.fixture
def handles(monkeypatch):
    """A device with both of its handles, and no library."""
    monkeypatch.setattr(loading, "cuda_of", lambda device: types.SimpleNamespace(current=contextlib.nullcontext))
    monkeypatch.setattr(loading, "_handles", {("device", "make"): "maker", ("device", "run"): "runner"})
    monkeypatch.setattr(loading, "library", lambda: lambda *arguments: None)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("workspace", [0, 300])
def test_kernels_are_loaded_by_a_run(short, workspace, fake):
    fake.failing = ("cuMemAllocAsync",) if short else ()
    plan = types.SimpleNamespace(handle=2)
    assert loading.load(fake, "handle", "stream", plan, (1000, 256, 1, workspace)) == (not short)
    if short:
        assert not fake.packs
        return
    (places,) = fake.packs
    assert all(place and place % 256 == 0 for place in places[:3])
    assert bool(places[3]) == bool(workspace)
    assert len(set(places)) == 4
    allocated = next(call[2] for call in fake.calls if call[0] == "cuMemAllocAsync")
    assert allocated == 1024 + 256 + 256 + (512 if workspace else 0)
    assert fake.names() == ["cuMemAllocAsync", "cudnnBackendExecute", "cuMemFreeAsync", "cuStreamSynchronize"]


def test_an_engine_that_cannot_run_makes_no_plan(fake):
    fake.failing = ("cudnnBackendExecute",)
    with pytest.raises(ConvDispatchError, match="cudnnBackendExecute"):
        loading.load(fake, "handle", "stream", types.SimpleNamespace(handle=2), (1, 1, 1, 1))
    assert fake.names()[-2:] == ["cuMemFreeAsync", "cuStreamSynchronize"]


def test_a_plan_loads_its_kernels_and_a_choice_does_not(handles, monkeypatch):
    problem, loaded = ConvProblem.parse("mb2ic16ih9oc32kh3ph1"), []
    context = types.SimpleNamespace(devices=["device"])
    monkeypatch.setattr(loading, "execution_plan", lambda problem, handle, config: ("plan", 64))
    monkeypatch.setattr(loading, "_loading_streams", {"device": "stream"})
    monkeypatch.setattr(loading, "load", lambda *arguments: loaded.append(arguments[1:]))
    prepared = []
    monkeypatch.setattr(loading.Bridge, "prepare", staticmethod(lambda *arguments: prepared.append(arguments)))
    candidate = types.SimpleNamespace(config={"engine": 1, "knobs": []}, notes=frozenset())
    monkeypatch.setattr(loading, "candidates", lambda problem, handle: [candidate])
    assert loading._working(problem, None, False) == [candidate.config]
    assert not loaded
    loading.CudnnPlan(context, problem, candidate.config)
    assert loaded == [("maker", "stream", "plan", [4 * 2 * 16 * 81, 4 * 32 * 16 * 9, 4 * 2 * 32 * 81, 64])]
    assert prepared == [(context, "device")]


def test_a_plan_in_the_making_holds_up_no_enqueue(handles):
    across, ran = types.SimpleNamespace(cuda=types.SimpleNamespace(current=contextlib.nullcontext), stream=1), []

    def enqueue():
        with loading.running("device", across.cuda, across.stream) as handle:
            ran.append(handle)

    with loading.planning_handle("device"):
        thread = threading.Thread(target=enqueue)
        thread.start()
        thread.join(120)
        assert ran == ["runner"]


def _prepare(problem, config, queue):
    """(plan, its arguments on a queue, the output, what it should hold)."""
    operands, expected = make_operands(problem, "real")
    given = {name: Tensor.from_numpy(array, queue) for name, array in operands.present().items()}
    out = given[problem.written] = Tensor.empty(problem.out_shape, np.float32, queue)
    plan = plugins().solvers[NAMES[0]].plan(queue.context, problem, config)
    out.write(np.full(problem.out_shape, np.nan, np.float32))
    arguments = [*(given[name].base_data for name in "xwy"), runtime.allocate(queue, plan.workspace_size)]
    queue.finish()
    return plan, arguments, out, expected


def _behind_a_gate(gate, *enqueues):
    """The events of enqueues, each in a thread, before the gate opens; None for one that did not return in time."""
    import pyopencl as cl

    events, failures = [None] * len(enqueues), []

    def work(number, enqueue):
        try:
            events[number] = enqueue()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(enqueues)]
    try:
        for thread in threads:
            thread.start()
            thread.join(5)
        seen = list(events)
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    return seen


def first_enqueues(text, name):
    """Enqueue up to six plans, each for the first time in this process, behind an event that is still open."""
    import pyopencl as cl

    device = next(device for device in runtime.devices() if device.name == name)
    queue, problem = runtime.queue(device), ConvProblem.parse(text)
    ran, waited = 0, []
    for config in plugins().solvers[NAMES[0]].configs(problem, runtime.device_info(device)):
        try:
            plan, arguments, out, expected = _prepare(problem, config, queue)
        except ConvDispatchError:  # an engine that the heuristics name may not serve the problem after all
            continue
        gate = cl.UserEvent(queue.context)
        (event,) = _behind_a_gate(gate, lambda p=plan, a=arguments, g=gate: p.enqueue(queue, *a, [g]))
        if event is None:
            waited.append(config)
        error = reference.relative_error(out.numpy(), expected)
        assert error <= 1e-5, f"{config}: {error}"
        ran += 1
        if ran == 6:
            break
    assert ran
    assert not waited, f"{len(waited)} of {ran} waited: {waited}"


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", ["mb4ic32ih14oc48kh3ph1", "g2mb3ic16ih13oc24kh5sh2ph2"])
def test_first_enqueues_wait_for_nothing(direction, text, cudnn):
    """In a process of its own: kernels that another test has loaded prove nothing."""
    problem = str(ConvProblem.parse(text).replace(direction=direction))
    code = f"import test_cudnn_loading; test_cudnn_loading.first_enqueues({problem!r}, {cudnn.name!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=SUPPORT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("out_of_order", [False, True])
def test_twelve_queues_behind_one_gate(out_of_order, cudnn):
    """More streams than CUDA has channels, and every bridge made while the others' work stands still."""
    import pyopencl as cl

    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    config = next(iter(plugins().solvers[NAMES[0]].configs(problem, runtime.device_info(cudnn))))
    context = runtime.context(cudnn)
    flags = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE if out_of_order else 0
    queues = [cl.CommandQueue(context, properties=flags) for _ in range(12)]
    works = [_prepare(problem, config, queue) for queue in queues]
    gate = cl.UserEvent(context)
    plan = works[0][0]
    events = _behind_a_gate(
        gate,
        *(lambda q=queue, a=arguments: plan.enqueue(q, *a, [gate]) for queue, (_, arguments, *_) in zip(queues, works)),
    )
    assert all(event is not None for event in events)
    for event, (_, _, out, expected) in zip(events, works):
        event.wait()
        assert reference.relative_error(out.numpy(), expected) <= 1e-5
