"""Recorded programs as CUDA graphs, with the host in the place of a GPU: nets that are run, captured steps, numbers."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import small_net
from host_cuda import CudaArray, install

from convdispatch import InvalidArgument, Tensor, inference
from convdispatch.api import ConvProblem
from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.commands.recording import Recording
from convdispatch.device.cuda.stream import CudaStream
from convdispatch.device.places.stream import Unlaunchable
from convdispatch.device.programs.kernels import Launch, build
from convdispatch.device.replay.program import Program
from convdispatch.selection import dispatch
from convdispatch.selection.plugins.loader import plugins


@pytest.fixture
def fake(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    return install(monkeypatch, device)


def test_a_net_is_one_graph_on_the_arrays_stream(fake, queue):
    driver, _ = fake
    net = inference.build(small_net.net(queue), (2, 3, 16, 16), queue=queue)
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
    expected = net(x)
    for scale in (1, 2):
        driver.log.clear()
        got = net(CudaArray(x * scale, 0, 55))
        assert type(got) is CudaArray
        assert np.allclose(got.values, net(x * scale), rtol=1e-6, atol=1e-6)
        assert driver.names().count("cuGraphLaunch") == 1
        assert [entry[2].value for entry in driver.log if entry[0] == "cuGraphLaunch"] == [55]
        assert "cuStreamSynchronize" not in driver.names()
    assert np.array_equal(net(CudaArray(x)).values, expected)
    with pytest.raises(InvalidArgument, match="the net was built for"):
        net(CudaArray(x[:1]))
    assert len(driver.graphs) == 1


def test_late_numbers_stand_between_graphs(fake, queue):
    driver, library = fake
    program = build(
        queue.context, "kernel void put(global int *p, int at, int v) { p[at] = v + (at ? p[at - 1] : 0); }"
    )

    def launch(at, value):
        dtypes = [None, np.int32, np.int32]
        Launch(program, "put", (1,), (1,), "p at v", names=("p", "at", "v"), dtypes=dtypes)(
            recording, (out, np.int32(at), value)
        )

    recording, drawn = Recording(queue), iter(range(10, 100))
    out = recording.allocate(16, persistent=True)
    launch(0, 1)
    launch(1, recording.late(lambda: next(drawn)))
    launch(2, 1)
    launch(3, 1)
    made, stream = Program(recording), CudaStream(library.devices[0], 5)
    assert made.replay is not None
    for number in (10, 11):
        driver.log.clear()
        made.run_on(stream)
        values = np.empty(4, np.int32)
        stream.read(made.memory(out), values)
        assert values.tolist() == [1, 1 + number, 2 + number, 3 + number]
        names = [name for name in driver.names() if name in ("cuGraphLaunch", "cuLaunchKernel")]
        assert names == ["cuGraphLaunch", "cuLaunchKernel", "cuGraphLaunch"]


def test_a_plan_of_its_own_means_makes_no_graph_and_says_why(fake, queue):
    problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1")
    reason = plugins().solvers["onednn.forward"].rejects(problem, runtime.device_info(queue.device))
    if reason:
        pytest.skip(f"onednn: {reason}")
    prepared = dispatch.prepare(problem, queue.context, Policy(solver="onednn.forward"))
    recording = Recording(queue)
    x, w, y = (recording.allocate(4 * n, persistent=True) for n in (2 * 16 * 81, 32 * 16 * 9, 2 * 32 * 81))
    prepared.enqueue(recording, x, w, y)
    program = Program(recording)
    assert not program.use_graph()
    assert "onednn.forward enqueues by its own means" in program.no_graph
    with pytest.raises(InvalidArgument, match="own means"):
        program.run_on(CudaStream(fake[1].devices[0], 5))
    program.run().wait()


def test_what_does_not_load_leaves_the_queue(monkeypatch, device, queue):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    install(monkeypatch, device, unlaunchable={"put"})
    recording = Recording(queue)
    out = recording.allocate(4, persistent=True)
    program = build(queue.context, "kernel void put(global int *p) { p[0] = 7; }")
    Launch(program, "put", (1,), (1,), "p", names=("p",))(recording, (out,))
    made = Program(recording)
    assert made.replay is None
    assert "%envreg9" in made.no_graph
    made.run().wait()
    assert Unlaunchable.__doc__


def test_a_captured_function_runs_beside_its_queue(fake, queue, monkeypatch):
    """The bridge orders a graph with the queue; here it is the queue itself."""
    from convdispatch.device.replay import program

    capture = importlib.import_module("convdispatch.nn.capturing")
    _, library = fake
    order = []

    class Across:
        cuda, stream = library.devices[0].cuda, type("Stream", (), {"value": 9})

        def __enter__(self):
            queue.finish()

        def __exit__(self, *_):
            pass

        def enter(self):
            order.append("enter")

        def leave(self):
            order.append("leave")

    monkeypatch.setattr(program, "bridge_of", lambda queue: Across())
    monkeypatch.setattr(capture, "GRAPH_FROM", 1)

    @capture.capture
    def step(x):
        return x * x + x

    x = Tensor.from_numpy(np.arange(6, dtype=np.float32), queue)
    for _ in range(4):
        assert step(x).numpy().tolist() == [0, 2, 6, 12, 20, 30]
    assert order == ["enter", "leave"] * 3
