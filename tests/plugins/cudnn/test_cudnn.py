"""cuDNN as a plugin: right in every direction on shared and on foreign memory, in order with OpenCL's kernels."""

from __future__ import annotations

import contextlib
import itertools
import types
from typing import ClassVar

import numpy as np
import pytest
from checking import check, make_operands
from convdispatch_cudnn import graph
from convdispatch_cudnn import solver as module
from fake_cuda import FakeCuda
from host_cuda import HostDriver
from threads import together

import convdispatch
from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.device import runtime
from convdispatch.device.cuda import bridge
from convdispatch.device.cuda_driver import Cuda
from convdispatch.device.memory import shared_pool
from convdispatch.measurement import reference
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tensor import Tensor
from convdispatch.tools import doctor

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


NVIDIA = DeviceInfo(name="Some GPU", vendor="nvidia", type="gpu", arch="sm_90")


def test_refuses_in_words():
    for name in NAMES:
        solver, problem = plugins().solvers[name], ConvProblem.parse(SHAPES[0])
        info = DeviceInfo(name="a", vendor="intel", type="cpu", arch="simd512")
        assert solver.rejects(problem, info) == "nvidia only, got intel"
        one_sided = problem.replace(ph_r=0)
        assert solver.rejects(one_sided, NVIDIA) == "equal padding on both sides only, got 1 and 0 along h"
        assert solver.rejects(problem.replace(mb=0), NVIDIA) == "mb of 1 or more only, got 0"


def test_the_threads_context_stays_its_own(monkeypatch):
    """A thread that works on one GPU may have another's plans made."""
    driver = HostDriver()
    driver.current = 0xAB
    other, inside = Cuda(driver, 1), []

    class Library:
        def create(self):
            inside.append(driver.current)
            return 7

        def __call__(self, *arguments):
            inside.append(driver.current)

    monkeypatch.setattr(module, "cuda_of", lambda device: other)
    monkeypatch.setattr(module, "library", Library)
    for name in ("_handles", "_loading_streams"):
        monkeypatch.setattr(module, name, {})
    with module.planning_handle("a device"):
        inside.append(driver.current)
    with module.running("a device", other, 5):
        inside.append(driver.current)
    assert set(inside) == {other.context.value}
    assert driver.current == 0xAB


def test_refuses_tensors_that_cuda_cannot_see(monkeypatch):
    """Where OpenCL shares no more than so much."""
    monkeypatch.setattr(module, "unavailable", lambda: None)
    monkeypatch.setattr(module, "cuda_devices", lambda info, size=1: ["a device"] if size <= 384 << 20 else [])
    monkeypatch.setattr(module, "_choices", lambda problem, device, deterministic: ({"engine": 1},))
    solver, problem = plugins().solvers["cudnn.convolution"], ConvProblem.parse("mb64ic64ih112oc64kh3ph1")
    assert solver.rejects(problem, NVIDIA) is None
    assert "384 MiB at most only, as OpenCL here shares none larger with CUDA, got 784 MiB" in solver.rejects(
        problem.replace(ih=224, iw=224), NVIDIA
    )


def test_says_what_is_missing_and_costs_nothing(monkeypatch):
    reason = module.unavailable()
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
        self.cuda, self.stream = types.SimpleNamespace(enter=lambda: None), "stream"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def allocate(self, size):
        return FakeMemory()

    def shares(self, size):
        return True

    def copy(self, target, source, size, wait_for):
        self.notes.append(("copy", target.address, source.address, size, tuple(wait_for)))
        return f"copied {len(self.notes)}"

    def enter(self, wait_for=None):
        self.notes.append(("enter", tuple(wait_for or ())))

    def leave(self):
        self.notes.append(("leave",))
        return "done"


@pytest.fixture
def bridged(monkeypatch):
    """A plan with a workspace, the bridge that notes what it asks of it, and the addresses of its runs."""
    across, executed = FakeBridge(), []
    monkeypatch.setattr(module, "bridge_of", lambda queue: across)
    monkeypatch.setattr(module, "running", lambda device, cuda, stream: contextlib.nullcontext())
    monkeypatch.setattr(bridge, "cuda_address", lambda memory: memory.address)
    plan = module.CudnnPlan.__new__(module.CudnnPlan)
    plan.workspace_size, plan._written, plan._sizes = 64, "y", {"x": 100, "w": 200, "y": 300}
    plan._plan = types.SimpleNamespace(handle=None)
    plan._library = lambda *arguments: across.notes.append(("execute",))
    monkeypatch.setattr(plan, "_pack", lambda places: executed.append(places) or plan._plan, raising=False)
    return plan, across, executed


@pytest.mark.parametrize("foreign", ["", "x", "xw", "xwy", "s", "xwys"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
def test_stand_ins(foreign, direction, bridged):
    """What CUDA does not see has a stand-in of its own, copied before or after; the rest is used where it is."""
    plan, across, executed = bridged
    plan._written = written = {"fwd": "y", "bwd_data": "x", "bwd_weights": "w"}[direction]
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


def test_a_workspace_that_cuda_cannot_see(bridged):
    """Where OpenCL cannot share so much, the workspace is CUDA's alone, taken and given back in the stream's order; and
    a tensor of that size is an error, in words."""
    plan, across, executed = bridged
    across.cuda, across.stream = FakeCuda(), "stream"
    across.allocate = lambda size: FakeMemory(seen=False)
    across.shares = lambda size: False
    plan._library = lambda *arguments: across.cuda.calls.append(("execute",))
    given, queue = [FakeMemory() for _ in "xwy"], types.SimpleNamespace(device=None)
    plan.enqueue(queue, *given, FakeMemory(seen=False))
    assert executed == [(*(memory.address for memory in given), 1 << 30)]
    assert across.cuda.names() == ["cuMemAllocAsync", "execute", "cuMemFreeAsync"]
    given[1] = FakeMemory(seen=False)
    with pytest.raises(convdispatch.api.ConvDispatchError, match="cannot share 200 bytes of w with CUDA"):
        plan.enqueue(queue, *given, FakeMemory())


def test_math_chooses_engines():
    problem = ConvProblem.parse(SHAPES[0])

    def allowed(math, notes=(), engine=1, direction="fwd", dtype="float32", **changes):
        candidate = types.SimpleNamespace(notes=frozenset(notes), engine=engine)
        return graph._allowed(problem.replace(math=math, direction=direction, dtype=dtype, **changes), candidate)

    assert [allowed(math, [graph.TENSOR_CORE]) for math in ("float32", "ieee", "tf32", "fast")] == [0, 0, 1, 1]
    assert [allowed(math, [graph.DOWN_CONVERT]) for math in ("float32", "ieee", "tf32", "fast")] == [0, 0, 0, 1]
    assert [allowed(math, [graph.WINOGRAD]) for math in ("float32", "ieee", "tf32", "fast")] == [1, 0, 1, 1]
    wide = {"kh": 5, "kw": 5, "ph": 2, "pw": 2, "ph_r": 2, "pw_r": 2}  # tiles that err by more than TF32 does
    assert [allowed(math, [graph.WINOGRAD], **wide) for math in ("float32", "ieee", "tf32", "fast")] == [0, 0, 0, 1]
    assert allowed("float32", [graph.TENSOR_CORE], dtype="float16")
    assert not allowed("ieee", engine=17, direction="bwd_weights")
    assert allowed("ieee", engine=17)


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
    from convdispatch.selection import dispatch

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
            scratch = runtime.allocate(queue, plan.workspace_size)
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
            assert shared_pool.cuda_address(y.base_data) is not None
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
    from convdispatch.api.policy import Policy
    from convdispatch.selection import dispatch

    plan = dispatch.prepare(problem, queue.context, Policy(solver=NAMES[0])).plan
    y, z = Tensor.empty(problem.out_shape, np.float32, queue), Tensor.empty(problem.out_shape, np.float32, queue)
    queue.finish()
    scratch = runtime.allocate(queue, plan.workspace_size)
    first = plan.enqueue(queue, x.base_data, w.base_data, y.base_data, scratch)
    second = plan.enqueue(queue, y.base_data, w.base_data, z.base_data, scratch, [first])
    second.wait()
    with convdispatch.policy(solver="im2col"):
        once = convdispatch.conv(operands.x, w=operands.w, padding=1)
        expected = convdispatch.conv(once, operands.w, padding=1)
    assert np.abs(z.numpy() - expected).max() < 1e-4 * np.abs(expected).max()


def test_two_threads(cudnn):
    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")

    def work(seed: int) -> None:
        operands, expected = make_operands(problem, seed=seed)
        queue = runtime.queue(cudnn)
        with convdispatch.policy(solver=NAMES[0]):
            for _ in range(10):
                got = convdispatch.conv(operands.x, operands.w, padding=1, queue=queue)
                assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()

    together(work, 2)


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
