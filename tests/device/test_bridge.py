"""Bridges between an OpenCL queue and CUDA's streams, over a CUDA device that is none."""

from __future__ import annotations

import itertools
import platform
import sys
import types

import numpy as np
import pytest
from fake_cuda import FakeCuda

from convdispatch.device import cuda_driver
from convdispatch.device.cuda import bridge
from convdispatch.device.memory import shared_pool


@pytest.fixture
def bridges(device, monkeypatch):
    """``make(out_of_order)``: (queue, its bridge) of an OpenCL device that passes for CUDA's; ``make.cuda`` is fake."""
    import pyopencl as cl

    if platform.machine() not in cuda_driver._TRAMPOLINES or sys.platform != "linux":
        pytest.skip("linux on a machine that CUDA's calls are written for only")
    context, fake, base = cl.Context([device]), FakeCuda(), 1 << 40

    def persistent(context, device, size):
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(size, "u1"))
        make.slabs.append(buffer)
        return buffer

    monkeypatch.setattr(bridge, "cuda_of", lambda device: fake)
    monkeypatch.setattr(bridge, "shared_with_cuda", lambda context, device: True)
    monkeypatch.setattr(bridge, "persistent", persistent)
    monkeypatch.setattr(bridge, "cuda_address", lambda memory: base + (make.slabs.index(memory) << 30))
    monkeypatch.setattr(bridge, "_bridges", {})
    monkeypatch.setattr(bridge, "_pools", {})

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
    places = sorted(across._streams.address for _, across in made)
    assert all(second - first >= 4 for first, second in itertools.pairwise(places))
    bridge.Bridge.prepare(bridges.context, device)
    assert len(bridges.slabs) == 1  # there are flags enough


def test_unprepared_bridges_and_more_than_a_slab(bridges, monkeypatch, device):
    monkeypatch.setattr(bridge, "_FLAGS", 4)
    places = {bridges()[1]._streams.address for _ in range(6)}
    assert len(places) == 6
    assert len(bridges.slabs) == 2


def test_streams_go_from_bridge_to_bridge_when_their_work_is_done(bridges):
    bridges.cuda.done = False
    queue, across = bridges()
    with across:
        across.enter()
        across.leave()
    queue.finish()
    first, address = across.stream.value, across._streams.address
    bridge._bridges.clear()
    del across
    _, other = bridges()
    assert other.stream.value != first  # the work may still be running
    bridges.cuda.done = True
    again, across = bridges()
    assert (across.stream.value, across._streams.address) == (first, address)
    with across:
        across.enter()
        across.leave()
    again.finish()
    assert across._streams.count == 2  # a flag only rises


def test_bridges_are_bounded(bridges, monkeypatch):
    monkeypatch.setattr(bridge, "_MAX_BRIDGES", 4)
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
        cl.enqueue_copy(aside, got, bridges.slabs[0], src_offset=across._streams.offset)
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
    monkeypatch.setattr(shared_pool, "_addresses", {1: 100, 2: 200})
    pool = shared_pool.SharedPool(queue, shared_pool.Arena(None, device))

    def block(number):
        each = types.SimpleNamespace(int_ptr=number, release=lambda: released.append(number))
        return shared_pool._Block(each, each, 0, 4 << 20, types.SimpleNamespace(release=lambda: None))

    with cuda_driver.no_wait:
        pool.give_up(block(1))
    assert not released
    assert not device.calls
    pool.give_up(block(2))
    assert released == [1, 2]
    assert device.names() == ["cuCtxSynchronize"]
