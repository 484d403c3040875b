"""A process that meets ever new sizes: programs, kernels, plans and calls go with the values that caches let go of."""

from __future__ import annotations

import collections
import gc

import numpy as np
import pytest

import convdispatch as cd
from convdispatch import ConvProblem, policy, runtime
from convdispatch.api.policy import current_policy
from convdispatch.calls import call_cache
from convdispatch.calls.conv import conv
from convdispatch.device.programs import kernels
from convdispatch.selection import async_compile, dispatch
from convdispatch.selection.choice.ranking import contestants, refusal

ROUND = 2
"""New sizes: whatever grows by as many objects from one round to the next is kept for good."""
HOLDS = {"Prepared", "Launch", "Kernel", "Call"}


@pytest.fixture
def small(monkeypatch):
    """No room for what is new beside the value that was made last, and all sizes are new."""
    dispatch.forget()
    kernels.forget()
    assert {call_cache.CALLS, dispatch._plans, async_compile._plans} <= set(kernels._holders)
    monkeypatch.setattr(kernels, "NEW_SHARE", 1)
    monkeypatch.setattr(dispatch, "_families", dispatch.Families(0))
    yield
    dispatch.forget()


def alive(queue) -> collections.Counter:
    """By kind how many objects there are of pyopencl's, of those that hold programs, and of those that are enqueued."""
    queue.finish()
    gc.collect()
    kinds = collections.Counter(map(type, gc.get_objects()))
    return collections.Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if str(kind.__module__).startswith("pyopencl")
            or (
                str(kind.__module__).startswith("convdispatch") and (kind.__name__ in HOLDS or hasattr(kind, "enqueue"))
            )
        }
    )


def computed(queue, sizes, solver, weights):
    """By NumPy's arrays and the device's, for images as wide as ``sizes`` say; the weights outlive their calls."""
    import pyopencl.array as cla

    for width in sizes:
        x, w = np.ones((1, 4, 9, width), np.float32), np.ones((4, 4, 3, 3), np.float32)
        weights.append(w)
        with policy(solver=solver, fallback=False):
            assert conv(x, w)[0, 0, 0, 0] == pytest.approx(36)
            conv(cla.to_device(queue, x), cla.to_device(queue, w))
    return alive(queue)


def test_what_new_sizes_make_goes_with_them(small, device):
    queue = runtime.queue(device)
    info, problem = runtime.device_info(queue.device), ConvProblem(mb=1, ic=4, ih=9, iw=20, oc=4, kh=3, kw=3)
    width, grown, asked = 20, {}, 0
    for name, solver in contestants(problem, info).items():
        if name == "general" or refusal(solver, problem, info, current_policy()):
            continue
        weights, last, more = [], None, {}
        for turn in range(5):  # the first fills the caches; what leaks grows in every turn
            now = computed(queue, range(width, width + ROUND), name, weights)
            more = {} if last is None else {kind: count for kind, count in (now - last).items() if count >= ROUND}
            width, last = width + ROUND, now
            if turn > 1 and not more:
                break
        if more:
            grown[name] = more
        asked += 1
    assert asked
    assert not grown


def test_a_call_is_let_go_of_by_whoever_holds_it_beside_the_cache(small, device):
    weights = [np.ones((2, 2, 3, 3), np.float32) for _ in range(5)]
    for width, w in enumerate(weights, 5):
        for _ in range(3):
            cd.conv(np.ones((1, 2, 5, width), np.float32), w)
    kept = {id(entry.value) for entry in call_cache.CALLS._all.values()}
    assert {id(call) for known in call_cache.LAST.values() for _, call in known.values()} <= kept
