"""A training step, and a run of an inference form, leave nothing behind: measured after 10 and after 1,000.

Adam's steps, whose tape is SGD's, and the leaks that the measure must see take 300; with --full 1,000 too.
"""

import ctypes
import gc
import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_net import LABELS, net, normal

from convdispatch import inference
from convdispatch.calls import call_cache
from convdispatch.device import runtime
from convdispatch.device.programs import kernels
from convdispatch.nn import SGD, Adam, Tape, functional
from convdispatch.tensor import Tensor

STEPS, FEW_STEPS = 1000, 300
LEAST_LEAK = 1000
"""Bytes of host memory a step: the events of its tens of launches would take more."""


class Mallinfo2(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def resident() -> int:
    """Bytes that the C library's allocator has given out and not got back; where it cannot tell, those in memory.

    The process's size says less: what earlier tests gave back hides a leak, and it grows by itself.
    """
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024
    tell.restype = Mallinfo2
    found = tell()
    return found.uordblks + found.hblkhd


def census() -> Counter:
    """Living Python objects by type, those of OpenCL among them where Python's collector knows them."""
    gc.collect()
    return Counter(type(value).__name__ for value in gc.get_objects())


class Watched:
    """Launches, counted; and the events of one run, kept to see who else keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.events, self.keeps = 0, [], False
        real = kernels.Launch.__call__

        def call(launch, *args, **kwargs):
            event = real(launch, *args, **kwargs)
            self.count += 1
            if self.keeps:
                self.events.append(event)
            return event

        monkeypatch.setattr(kernels.Launch, "__call__", call)

    def held(self, work) -> int:
        """How many of a run's events somebody else refers to when it is over."""
        self.events, self.keeps = [], True
        work()
        self.keeps, free = False, sys.getrefcount([object()][0]) + 1
        return sum(sys.getrefcount(self.events[i]) > free for i in range(len(self.events)))


def grown(work, queue, device, watched, steps=STEPS) -> dict:
    """Run ``work`` 10 times, then up to ``steps`` in four parts, and compare what there is."""

    def state() -> dict:
        held = watched.held(work)
        queue.finish()
        assert all(len(known) <= call_cache.MAX_LAST_CALLS for known in call_cache.LAST.values())
        call_cache.CACHE.forget_last()  # bounded, and by ids, of which the allocator decides how many there are
        found = census()
        memory = runtime.memory_statistics(device)
        return {
            "pool": (memory.held_bytes, memory.active_bytes, memory.held_blocks, memory.active_blocks),
            "events": held,
            "programs": len(kernels._programs),
            "objects": found,
            "tensors": found["Tensor"] + found["Tape"],
            "resident": resident(),
        }

    for _ in range(10):
        work()
    first = state()
    assert first["events"] == 0, f"{first['events']} events are kept after a run"
    parts = []
    for runs in (steps // 4 - 10, steps // 4, steps // 4, steps // 4):
        for _ in range(runs):
            work()
        parts.append(state())
    last = parts[-1]
    assert watched.count > steps, "nothing was launched"
    for name in ("pool", "events", "programs", "tensors"):
        # Forms that earlier tests of this process left may go meanwhile, with their tensors: then from there on.
        fewer = name == "tensors" and last[name] < first[name]
        before = parts[-2] if fewer else first
        assert last[name] == before[name], f"{name}: {first[name]} after 10 runs, {last[name]} after {steps}"
    counts = [each["tensors"] for each in (first, *parts)]
    assert counts == sorted(counts, reverse=True), f"tensors: {counts}: no part of the runs may leave more"
    # What is kept of calls, and the host's allocator, settle during the first runs, and threads that other tests of
    # this process left may make something at any time; a leak is in every part, so the part with least objects decides.
    pairs = list(itertools.pairwise(parts))
    objects = [then["objects"].total() - before["objects"].total() for before, then in pairs]
    more = last["objects"] - parts[0]["objects"]
    assert min(objects) < steps // 40, f"{objects} more objects, of them {more.most_common(9)}"
    bytes_ = [then["resident"] - before["resident"] for before, then in pairs]
    assert sum(sorted(bytes_)[:2]) < LEAST_LEAK * steps // 2, f"{bytes_} more bytes"
    return last


@pytest.mark.parametrize("optimizer", [pytest.param(SGD, marks=pytest.mark.full), Adam])
def test_a_training_step_leaks_nothing(queue, device, monkeypatch, full, optimizer):
    watched = Watched(monkeypatch)
    module = net(queue)
    x = Tensor.from_numpy(normal(4, 3, 14, 14), queue)
    labels = Tensor.from_numpy(LABELS, queue)
    update = optimizer(module.parameters(), 1e-3)

    def step() -> None:
        with Tape() as tape:
            loss = functional.cross_entropy(module(x), labels)
        tape.backward(loss)
        update.step()

    grown(step, queue, device, watched, STEPS if full or optimizer is SGD else FEW_STEPS)


def test_running_an_inference_form_leaks_nothing(queue, device, monkeypatch):
    watched = Watched(monkeypatch)
    built = inference.build(net(queue).eval(), (1, 3, 14, 14), queue=queue)
    x = np.zeros((1, 3, 14, 14), np.float32)

    def run() -> None:
        watched.count += 1
        built(x)
        built.run()

    grown(run, queue, device, watched)


@pytest.mark.parametrize("what", ["tensor", "event", "object", "host"])
def test_a_leak_is_seen(queue, device, monkeypatch, full, what):
    """The measure itself, of what keeps one small tensor, one event, one list, or some bytes of the host a step."""
    watched, kept = Watched(monkeypatch), []
    x = Tensor.from_numpy(normal(8), queue)

    def step() -> None:
        y = functional.apply("x + 1", x=x)
        kept.append({"tensor": y, "event": watched.events[-1:], "object": [], "host": bytes(4 * LEAST_LEAK)}[what])

    said = {"tensor": "pool", "event": "events", "object": "more objects", "host": "more bytes"}
    with pytest.raises(AssertionError, match=said[what]):
        grown(step, queue, device, watched, STEPS if full else FEW_STEPS)
