"""A net on several devices of one process: batches to whichever is free, results in order, weights brought along."""

from __future__ import annotations

import threading

import numpy as np
import pyopencl as cl
import pytest
from small_net import net, normal

from convdispatch import inference
from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.inference.multi_device import InferenceNets, chosen_devices

FORM = {"layout": "nchw", "queues": 1}


def test_batches_go_to_all_devices_and_come_back_in_order(device):
    model = net(runtime.queue(device)).eval()
    one = inference.build(model, (2, 3, 14, 14), queue=runtime.queue(device), **FORM)
    both = inference.build(model, (2, 3, 14, 14), devices=[device, device], **FORM)
    assert both.devices == [device, device]
    x = normal(14, 3, 14, 14)
    expected = np.concatenate([one(x[at : at + 2]) for at in range(0, 14, 2)])
    np.testing.assert_array_equal(both(x), expected)
    parts = list(both.map(x[at : at + 2] for at in range(0, 14, 2)))
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    with pytest.raises(InvalidArgument, match="built for batches of 2, got 3 along the first axis"):
        both(x[:3])
    with pytest.raises(InvalidArgument, match="one device, or devices, not both"):
        inference.build(model, (2, 3, 14, 14), devices="all", queue=runtime.queue(device))


def test_the_weights_may_lie_elsewhere(device):
    """Another context stands for another device."""
    model = net(runtime.queue(device)).eval()
    here = inference.build(model, (2, 3, 14, 14), queue=runtime.queue(device), **FORM)
    context = cl.Context([device])
    other = cl.CommandQueue(context)
    there = inference.build(model, (2, 3, 14, 14), queue=other, **FORM)
    assert there.queue.context == context
    x = normal(2, 3, 14, 14)
    np.testing.assert_array_equal(there(x), here(x))


class Fake:
    """A device's form that waits for another to be at work, so that one thread for both would never end."""

    def __init__(self, barrier, fails=False):
        self.barrier, self.fails, self.batches = barrier, fails, 0

    def __call__(self, x):
        if self.fails:
            raise ValueError("this device is lost")
        if self.batches == 0:
            self.barrier.wait(20)
        self.batches += 1
        return {"sum": x + 1, "both": (x, -x)}


def test_all_devices_work_at_once_and_results_keep_their_form():
    barrier = threading.Barrier(3)
    fakes = [Fake(barrier) for _ in range(3)]
    found = InferenceNets(fakes, 1)(np.arange(9.0))
    np.testing.assert_array_equal(found["sum"], np.arange(9.0) + 1)
    np.testing.assert_array_equal(found["both"][1], -np.arange(9.0))
    assert isinstance(found["both"], tuple)
    assert all(fake.batches for fake in fakes)
    with pytest.raises(ValueError, match="this device is lost"):
        InferenceNets([Fake(None, fails=True)], 1)(np.arange(3.0))
    assert not [thread for thread in threading.enumerate() if "_serve" in str(getattr(thread, "_target", ""))]


def test_all_are_the_devices_like_the_default_one():
    kinds = {runtime.device_info(found).type for found in chosen_devices("all")}
    assert kinds == {runtime.device_info(runtime.default_device()).type}
    assert "oclgrind" not in {runtime.device_info(found).vendor for found in chosen_devices("all")}
    with pytest.raises(InvalidArgument, match='devices is "all" or a list'):
        chosen_devices("gpu")
