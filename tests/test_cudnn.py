"""cuDNN as a plugin: right in every direction on shared and on foreign memory, in order with OpenCL's kernels."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import platform
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from checking import check, make_operands

import convdispatch
from convdispatch import bridge, cuda, doctor, memory, reference, runtime, sharedpool
from convdispatch.api import ConvDispatchError, ConvProblem, DeviceInfo
from convdispatch.loader import plugins
from convdispatch.tensor import Tensor

NAMES = ("cudnn.convolution", "cudnn.deterministic")
SHAPES = [
    "mb2ic16ih9oc32kh3ph1",
    "mb1ic3ih13oc20kh5sh2ph2",
    "g4mb2ic16ih8oc12kh3ph1dh2",
    "mb3ic32ih7oc48kh1",
    "mb3ic32ih8oc48kh1sh2",
    "mb2ic16iw31oc24kw5pw2",
    "mb1ic5id5ih6iw7oc16kd3kh3kw3pd1ph1pw1",
]


@pytest.fixture
def cudnn(device):
    """The device, where cuDNN can use it."""
    solver = plugins().solvers[NAMES[0]]
    reason = solver.rejects(ConvProblem.parse(SHAPES[0]), runtime.device_info(device))
    if reason:
        pytest.skip(f"cudnn: {reason}")
    return device


NVIDIA = DeviceInfo(name="Some GPU", vendor="nvidia", type="gpu", arch="sm_90")


def test_refuses_in_words():
    for name in NAMES:
        solver, problem = plugins().solvers[name], ConvProblem.parse(SHAPES[0])
        info = DeviceInfo(name="a", vendor="intel", type="cpu", arch="simd512")
        assert solver.rejects(problem, info) == "nvidia only, got intel"
        one_sided = problem.replace(ph_r=0)
        assert solver.rejects(one_sided, NVIDIA) == "equal padding on both sides only, got 1 and 0 along h"
        assert solver.rejects(problem.replace(mb=0), NVIDIA) == "mb of 1 or more only, got 0"


def test_says_what_is_missing_and_costs_nothing(monkeypatch):
    unavailable = sys.modules["convdispatch_cudnn"].unavailable
    reason = unavailable()
    if reason is None:
        pytest.skip("CUDA and cuDNN are here")
    assert "CUDA" in reason or "cudnn" in reason
    assert reason in plugins().solvers[NAMES[0]].rejects(ConvProblem.parse(SHAPES[0]), NVIDIA)
    entry = next(each for each in doctor.examine(probe=False).plugins if each["name"] == "cudnn")
    assert entry["status"] == "loaded"
    assert entry["reason"] == reason


class FakeMemory:
    """Memory at an address; when it goes, the next one may have the address, as in a pool."""

    taken: ClassVar[set[int]] = set()

    def __init__(self, seen: bool = True) -> None:
        self.address = next(place for place in itertools.count(1) if place not in FakeMemory.taken) if seen else None
        FakeMemory.taken.add(self.address)

    def __del__(self) -> None:
        FakeMemory.taken.discard(self.address)


class FakeBridge:
    """Notes what a plan asks of it."""

    def __init__(self) -> None:
        self.notes: list[tuple] = []
        self.cuda = types.SimpleNamespace(enter=lambda: None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def allocate(self, size):
        return FakeMemory()

    def copy(self, target, source, size, wait_for):
        self.notes.append(("copy", target.address, source.address, size, tuple(wait_for)))
        return f"copied {len(self.notes)}"

    def enter(self, wait_for=None):
        self.notes.append(("enter", tuple(wait_for or ())))

    def leave(self):
        self.notes.append(("leave",))
        return "done"


@pytest.mark.parametrize("foreign", ["", "x", "xw", "xwy", "s", "xwys"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
def test_stand_ins(foreign, direction, monkeypatch):
    """What CUDA does not see has a stand-in of its own, copied before or after; the rest is used where it is."""
    plan_module = importlib.import_module("convdispatch_cudnn.plan")
    across, executed = FakeBridge(), []
    monkeypatch.setattr(plan_module, "bridge_of", lambda queue: across)
    monkeypatch.setattr(plan_module, "running", lambda device, across: contextlib.nullcontext())
    monkeypatch.setattr(plan_module, "cuda_address", lambda memory: memory.address)
    written = {"fwd": "y", "bwd_data": "x", "bwd_weights": "w"}[direction]
    plan = plan_module.CudnnPlan.__new__(plan_module.CudnnPlan)
    plan.workspace_size, plan._written, plan._sizes = 64, written, {"x": 100, "w": 200, "y": 300}
    plan._plan = types.SimpleNamespace(handle=None)
    plan._library = lambda *arguments: across.notes.append(("execute",))
    monkeypatch.setattr(plan, "_pack", lambda places: executed.append(places) or plan._plan, raising=False)
    given = {name: FakeMemory(name not in foreign) for name in "xwys"}
    queue = types.SimpleNamespace(device=None)
    event = plan.enqueue(queue, given["x"], given["w"], given["y"], given["s"], ["before"])
    (places,) = executed
    assert len(set(places)) == 4
    for name, place in zip("xwys", places, strict=True):
        assert (place == given[name].address) == (name not in foreign)
    copies = [note for note in across.notes if note[0] == "copy"]
    read = [name for name in foreign if name not in (written, "s")]
    assert [note[3] for note in copies if note[2] is None] == [plan._sizes[name] for name in read]
    back = written in foreign
    assert [note[3] for note in copies if note[1] is None] == ([plan._sizes[written]] if back else [])
    kinds = [note[0] for note in across.notes]
    assert kinds == ["copy"] * len(read) + ["enter", "execute", "leave"] + ["copy"] * back
    assert event == (f"copied {len(across.notes)}" if back else "done")


def test_math_chooses_engines():
    graph = importlib.import_module("convdispatch_cudnn.graph")
    problem = ConvProblem.parse(SHAPES[0])

    def allowed(math, notes=(), engine=1, direction="fwd", dtype="float32"):
        candidate = types.SimpleNamespace(notes=frozenset(notes), engine=engine)
        return graph._allowed(problem.replace(math=math, direction=direction, dtype=dtype), candidate)

    assert [allowed(math, [graph.TENSOR_CORE]) for math in ("float32", "ieee", "tf32", "fast")] == [0, 0, 1, 1]
    assert [allowed(math, [graph.DOWN_CONVERT]) for math in ("float32", "ieee", "tf32", "fast")] == [0, 0, 0, 1]
    assert [allowed(math, [graph.WINOGRAD]) for math in ("float32", "ieee", "tf32", "fast")] == [1, 0, 1, 1]
    assert allowed("float32", [graph.TENSOR_CORE], dtype="float16")
    assert not allowed("ieee", engine=17, direction="bwd_weights")
    assert allowed("ieee", engine=17)


class FakeCuda:
    """Stands for a CUDA device: what streams are made, what is called; its streams' work is done when ``done`` says."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing, self.calls = failing, []
        self.made, self.done = itertools.count(1), True

    def __call__(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise cuda.CudaError(name)
        if name == "cuMemAllocAsync":
            arguments[0]._obj.value = 1 << 30
        if name == "cuLaunchHostFunc":
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(arguments[1])(ctypes.addressof(arguments[2]))

    def make(self, name, flags):
        stream = ctypes.c_void_p(next(self.made))
        self.calls.append((name, stream))
        return stream

    def idle(self, stream):
        return self.done

    def names(self):
        return [call[0] for call in self.calls]


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("workspace", [0, 300])
def test_kernels_are_loaded_by_a_run(short, workspace, monkeypatch):
    loading = importlib.import_module("convdispatch_cudnn.loading")
    device, packs = FakeCuda(), []
    monkeypatch.setattr(loading, "library", lambda: device)
    monkeypatch.setattr(loading, "variant_pack", lambda places: packs.append(places) or types.SimpleNamespace(handle=1))
    device.failing = ("cuMemAllocAsync",) if short else ()
    plan = types.SimpleNamespace(handle=2)
    assert loading.load(device, "handle", "stream", plan, (1000, 256, 1, workspace)) == (not short)
    if short:
        assert not packs
        return
    (places,) = packs
    assert all(place and place % 256 == 0 for place in places[:3])
    assert bool(places[3]) == bool(workspace)
    assert len(set(places)) == 4
    allocated = next(call[2] for call in device.calls if call[0] == "cuMemAllocAsync")
    assert allocated == 1024 + 256 + 256 + (512 if workspace else 0)
    assert device.names() == ["cuMemAllocAsync", "cudnnBackendExecute", "cuMemFreeAsync", "cuStreamSynchronize"]


def test_an_engine_that_cannot_run_makes_no_plan(monkeypatch):
    loading = importlib.import_module("convdispatch_cudnn.loading")
    device = FakeCuda(failing=("cudnnBackendExecute",))
    monkeypatch.setattr(loading, "library", lambda: device)
    monkeypatch.setattr(loading, "variant_pack", lambda places: types.SimpleNamespace(handle=1))
    with pytest.raises(ConvDispatchError, match="cudnnBackendExecute"):
        loading.load(device, "handle", "stream", types.SimpleNamespace(handle=2), (1, 1, 1, 1))
    assert device.names()[-2:] == ["cuMemFreeAsync", "cuStreamSynchronize"]


def test_a_plan_loads_its_kernels_and_a_choice_does_not(monkeypatch):
    plan_module, solver_module = (importlib.import_module(f"convdispatch_cudnn.{name}") for name in ("plan", "solver"))
    problem, loaded = ConvProblem.parse("mb2ic16ih9oc32kh3ph1"), []
    context = types.SimpleNamespace(devices=["device"])
    for module in (plan_module, solver_module):
        monkeypatch.setattr(module, "execution_plan", lambda problem, handle, config: ("plan", 64))
    monkeypatch.setattr(plan_module, "library", lambda: None)
    monkeypatch.setattr(plan_module, "cuda_of", lambda device: types.SimpleNamespace(enter=lambda: None))
    monkeypatch.setattr(plan_module, "_handles", {("device", "make"): "maker", ("device", "run"): "runner"})
    monkeypatch.setattr(plan_module, "_loading", {"device": "stream"})
    monkeypatch.setattr(plan_module, "load", lambda *arguments: loaded.append(arguments[1:]))
    prepared = []
    monkeypatch.setattr(plan_module.Bridge, "prepare", staticmethod(lambda *arguments: prepared.append(arguments)))
    candidate = types.SimpleNamespace(config={"engine": 1, "knobs": []}, notes=frozenset())
    monkeypatch.setattr(solver_module, "candidates", lambda problem, handle: [candidate])
    assert solver_module._working(problem, None, False) == [candidate.config]
    assert not loaded
    plan_module.CudnnPlan(context, problem, candidate.config)
    assert loaded == [("maker", "stream", "plan", [4 * 2 * 16 * 81, 4 * 32 * 16 * 9, 4 * 2 * 32 * 81, 64])]
    assert prepared == [(context, "device")]


def test_a_plan_in_the_making_holds_up_no_enqueue(monkeypatch):
    plan_module = importlib.import_module("convdispatch_cudnn.plan")
    monkeypatch.setattr(plan_module, "cuda_of", lambda device: types.SimpleNamespace(enter=lambda: None))
    monkeypatch.setattr(plan_module, "library", lambda: lambda *arguments: None)
    monkeypatch.setattr(plan_module, "_handles", {("device", "make"): "maker", ("device", "run"): "runner"})
    across, ran = types.SimpleNamespace(cuda=types.SimpleNamespace(enter=lambda: None), stream=1), []

    def enqueue():
        with plan_module.running("device", across) as handle:
            ran.append(handle)

    with plan_module.making("device"):
        thread = threading.Thread(target=enqueue)
        thread.start()
        thread.join(5)
        assert ran == ["runner"]


@pytest.fixture
def bridges(device, monkeypatch):
    """``make(out_of_order)``: (queue, its bridge) of an OpenCL device that passes for CUDA's; ``make.cuda`` is fake."""
    import pyopencl as cl

    if platform.machine() not in cuda._TRAMPOLINES or sys.platform != "linux":
        pytest.skip("linux on a machine that CUDA's calls are written for only")
    context, fake, base = cl.Context([device]), FakeCuda(), 1 << 40

    def standing(context, device, size):
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(size, "u1"))
        make.slabs.append(buffer)
        return buffer

    monkeypatch.setattr(bridge, "cuda_of", lambda device: fake)
    monkeypatch.setattr(bridge, "shared_with_cuda", lambda context, device: True)
    monkeypatch.setattr(bridge, "standing", standing)
    monkeypatch.setattr(bridge, "cuda_address", lambda memory: base + (make.slabs.index(memory) << 30))
    monkeypatch.setattr(bridge, "_bridges", {})
    monkeypatch.setattr(bridge, "_lanes", {})

    def make(out_of_order=False):
        flags = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE if out_of_order else 0
        queue = cl.CommandQueue(context, properties=flags)
        return queue, bridge.bridge_of(queue)

    make.cuda, make.context, make.slabs = fake, context, []
    return make


def test_making_a_bridge_waits_for_nothing(bridges, device):
    bridge.Bridge.prepare(bridges.context, device)
    assert bridges.cuda.names()[-2:] == ["cuStreamSynchronize", "cuStreamDestroy_v2"]
    bridges.cuda.calls.clear()
    made = [bridges() for _ in range(12)]
    assert all(bridge.bridge_of(queue) is across for queue, across in made)
    assert set(bridges.cuda.names()) == {"cuStreamCreate", "cuEventCreate"}
    places = sorted(across._lane.address for _, across in made)
    assert all(second - first >= 4 for first, second in itertools.pairwise(places))
    bridge.Bridge.prepare(bridges.context, device)
    assert len(bridges.slabs) == 1  # there are flags enough


def test_unprepared_bridges_and_more_than_a_slab(bridges, monkeypatch, device):
    monkeypatch.setattr(bridge, "_FLAGS", 4)
    places = {bridges()[1]._lane.address for _ in range(6)}
    assert len(places) == 6
    assert len(bridges.slabs) == 2


def test_streams_go_from_bridge_to_bridge_when_their_work_is_done(bridges):
    bridges.cuda.done = False
    queue, across = bridges()
    with across:
        across.enter()
        across.leave()
    queue.finish()
    first, address = across.stream.value, across._lane.address
    bridge._bridges.clear()
    del across
    _, other = bridges()
    assert other.stream.value != first  # the work may still be running
    bridges.cuda.done = True
    again, across = bridges()
    assert (across.stream.value, across._lane.address) == (first, address)
    with across:
        across.enter()
        across.leave()
    again.finish()
    assert across._lane.count == 2  # a flag only rises


def test_bridges_are_bounded(bridges, monkeypatch):
    monkeypatch.setattr(bridge, "_MOST", 4)
    queues = [bridges()[0] for _ in range(10)]
    assert len(bridge._bridges) == 4
    assert next(bridges.cuda.made) <= 3 * 5 + 2  # two streams and an event each
    assert bridge.bridge_of(queues[0]) is bridge.bridge_of(queues[0])
    bridges.cuda.done = False
    more = [bridges() for _ in range(6)]
    assert all(bridge.bridge_of(queue) is across for queue, across in more)


@pytest.mark.parametrize("out_of_order", [False, True])
def test_flags_rise_in_order(out_of_order, bridges):
    """On an out-of-order queue a later number must not be written first: it lets the earlier work begin."""
    import pyopencl as cl

    queue, across = bridges(out_of_order)
    gates = [cl.UserEvent(bridges.context) for _ in range(2)]
    got = np.zeros(1, np.uint32)

    def flag():
        aside = cl.CommandQueue(bridges.context)
        cl.enqueue_copy(aside, got, bridges.slabs[0], src_offset=across._lane.offset)
        return int(got[0])

    with across:
        for gate in gates:
            across.enter([gate])
        finished = across.leave()
    gates[1].set_status(cl.command_execution_status.COMPLETE)
    assert flag() == 0
    gates[0].set_status(cl.command_execution_status.COMPLETE)
    queue.finish()
    finished.wait()
    assert flag() == 2
    waits = [call[3] for call in bridges.cuda.calls if call[0] == "cuStreamWaitValue32_v2"]
    assert waits == [1, 2]


def test_memory_let_go_of_inside_an_enqueue_is_given_back_later(queue, monkeypatch):
    device, released = FakeCuda(), []
    monkeypatch.setattr(sharedpool, "_addresses", {1: 100, 2: 200})
    pool = sharedpool.SharedPool(queue, sharedpool.Arena(None, device))

    def block(number):
        each = types.SimpleNamespace(int_ptr=number, release=lambda: released.append(number))
        return sharedpool._Block(each, each, 0, 4 << 20, types.SimpleNamespace(release=lambda: None))

    with cuda.prompt:
        pool.give_up(block(1))
    assert not released
    assert not device.calls
    pool.give_up(block(2))
    assert released == [1, 2]
    assert device.names() == ["cuCtxSynchronize"]


@pytest.mark.parametrize(("dtype", "data"), [("float32", "real"), ("float16", "integer"), ("bfloat16", "real")])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("text", SHAPES)
def test_shape_on_foreign_memory(text, direction, layout, dtype, data, cudnn, full):
    """Guard zones lie round plain OpenCL buffers, which CUDA does not see: copies stand in."""
    problem = ConvProblem.parse(text).replace(direction=direction, layout=layout, dtype=dtype)
    if dtype == "bfloat16" and not full and layout == "nchw":
        pytest.skip("--full only")
    solver = plugins().solvers[NAMES[0]]
    if solver.rejects(problem, runtime.device_info(cudnn)):
        pytest.skip("no engine")
    check(problem, cudnn, solver=NAMES[0], data=data)


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize("math", ["float32", "ieee", "tf32", "fast"])
def test_every_configuration_on_shared_memory(math, direction, cudnn):
    from convdispatch import dispatch

    problem = ConvProblem.parse("mb4ic32ih14oc48kh3ph1").replace(direction=direction, math=math)
    queue, info = runtime.queue(cudnn), runtime.device_info(cudnn)
    operands, expected = make_operands(problem, "real")
    given = {name: Tensor.from_numpy(array, queue) for name, array in operands.present().items()}
    out = given[problem.written] = Tensor.empty(problem.out_shape, np.float32, queue)
    solver = plugins().solvers[NAMES[0]]
    limit = {"float32": 1e-5, "ieee": 2e-6}.get(math, 2e-3)
    ran = 0
    for config in itertools.islice(solver.configs(problem, info), 10):
        try:
            plan = dispatch.make(solver, config, problem, queue.context).plan
        except Exception:  # an engine that the heuristics name may not serve the problem after all
            continue
        for _ in range(2):
            out.write(np.full(problem.out_shape, np.nan, np.float32))
            scratch = runtime.workspace(queue, plan.workspace_size)
            plan.enqueue(queue, *(given[name].base_data for name in "xwy"), scratch)
            error = reference.relative_error(out.numpy(), expected)
            assert error <= limit, f"{config}: {error}"
        ran += 1
    assert ran


def test_in_order_with_kernels(cudnn):
    """A kernel writes x before, and reads y after, with nobody waiting in between."""
    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    operands, expected = make_operands(problem)
    queue = runtime.queue(cudnn)
    import pyopencl as cl

    source = "kernel void scale(global float *a, float by) { a[get_global_id(0)] *= by; }"
    scale = cl.Program(queue.context, source).build().scale
    scale.set_scalar_arg_dtypes([None, np.float32])
    w = Tensor.from_numpy(operands.w, queue)
    with convdispatch.policy(solver=NAMES[0]):
        for number in range(1, 21):
            x = Tensor.from_numpy(operands.x, queue)
            scale(queue, (x.size,), None, x.base_data, number)
            y = convdispatch.conv(x, w, padding=1)
            assert memory.cuda_address(y.base_data) is not None
            scale(queue, (y.size,), None, y.base_data, 2)
            error = np.abs(y.numpy() - 2 * number * expected).max() / np.abs(2 * number * expected).max()
            assert error < 1e-5


def test_order_by_events_alone(cudnn):
    import pyopencl as cl

    out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(runtime.context(cudnn), properties=out_of_order)
    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    operands, _ = make_operands(problem)
    x, w = Tensor.from_numpy(operands.x, queue), Tensor.from_numpy(operands.w, queue)
    from convdispatch import dispatch
    from convdispatch.api.policy import Policy

    plan = dispatch.prepare(problem, queue.context, Policy(solver=NAMES[0])).plan
    y, z = Tensor.empty(problem.out_shape, np.float32, queue), Tensor.empty(problem.out_shape, np.float32, queue)
    queue.finish()
    scratch = runtime.workspace(queue, plan.workspace_size)
    first = plan.enqueue(queue, x.base_data, w.base_data, y.base_data, scratch)
    second = plan.enqueue(queue, y.base_data, w.base_data, z.base_data, scratch, [first])
    second.wait()
    with convdispatch.policy(solver="im2col"):
        once = convdispatch.conv(operands.x, w=operands.w, padding=1)
        expected = convdispatch.conv(once, operands.w, padding=1)
    assert np.abs(z.numpy() - expected).max() < 1e-4 * np.abs(expected).max()


def test_two_threads(cudnn):
    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    failures = []

    def work(seed: int) -> None:
        operands, expected = make_operands(problem, seed=seed)
        queue = runtime.queue(cudnn)
        with convdispatch.policy(solver=NAMES[0]):
            for _ in range(10):
                got = convdispatch.conv(operands.x, operands.w, padding=1, queue=queue)
                if np.abs(got - expected).max() > 1e-4 * np.abs(expected).max():
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_deterministic_is(cudnn):
    problem = ConvProblem.parse("mb8ic32ih28oc32kh3ph1").replace(direction="bwd_weights")
    operands, _ = make_operands(problem, "real")
    with convdispatch.policy(solver=NAMES[1]):
        runs = [
            convdispatch.conv_backward_weights(
                operands.x, operands.y, problem.w_shape, padding=1, queue=runtime.queue(cudnn)
            )
            for _ in range(5)
        ]
    assert all(np.array_equal(runs[0], run) for run in runs)


def test_one_table_with_the_portable_solvers(cudnn):
    text = str(convdispatch.explain(ConvProblem.parse("mb1ic16ih20oc32kh3ph1"), cudnn))
    assert "cudnn.convolution" in text
    assert "im2col" in text


def test_found_by_a_search(cudnn):
    results = convdispatch.find(ConvProblem.parse("mb8ic32ih28oc32kh3ph1"), cudnn, budget_ms=4000)
    assert any(result.solver.startswith("cudnn.") for result in results)


def _prepare(problem, config, queue):
    """(plan, its arguments on a queue, the output, what it should hold)."""
    operands, expected = make_operands(problem, "real")
    given = {name: Tensor.from_numpy(array, queue) for name, array in operands.present().items()}
    out = given[problem.written] = Tensor.empty(problem.out_shape, np.float32, queue)
    plan = plugins().solvers[NAMES[0]].plan(queue.context, problem, config)
    out.write(np.full(problem.out_shape, np.nan, np.float32))
    arguments = [*(given[name].base_data for name in "xwy"), runtime.workspace(queue, plan.workspace_size)]
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
    code = f"import test_cudnn; test_cudnn.first_enqueues({problem!r}, {cudnn.name!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
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
