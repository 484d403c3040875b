"""Recorded programs as CUDA graphs, with the host in the place of a GPU: nets that are run, captured steps, numbers."""

from __future__ import annotations

import numpy as np
import pytest
import small_net
from host_cuda import CudaArray, installed

from convdispatch import InvalidArgument, inference
from convdispatch.api import ConvProblem
from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.device.commands.recording import Recording
from convdispatch.device.cuda.stream import CudaStream
from convdispatch.device.places.stream import Unlaunchable
from convdispatch.device.programs.kernels import Launch, build
from convdispatch.device.replay.program import Program
from convdispatch.selection import dispatch
from convdispatch.selection.plugins.loader import plugins


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
    assert program.replay is None
    assert "onednn.forward enqueues by its own means" in program.no_graph
    with pytest.raises(InvalidArgument, match="own means"):
        program.run_on(CudaStream(fake[1].devices[0], 5))
    program.run().wait()


def test_what_does_not_load_leaves_the_queue(monkeypatch, device, queue):
    recording = Recording(queue)
    out = recording.allocate(4, persistent=True)
    program = build(queue.context, "kernel void put(global int *p) { p[0] = 7; }")
    Launch(program, "put", (1,), (1,), "p", names=("p",))(recording, (out,))
    with installed(monkeypatch, device, unlaunchable={"put"}):
        made = Program(recording)
    assert made.replay is None
    assert "%envreg9" in made.no_graph
    made.run().wait()
    assert Unlaunchable.__doc__
