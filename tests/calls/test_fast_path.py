"""The short way of warm calls: which arrays take it, what turns others away, and what becomes of a plan that fails."""

from __future__ import annotations

import numpy as np
import pyopencl.array as cla
import pytest

import convdispatch as cd
from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.calls import conv as conv_module
from convdispatch.calls.host_call import HostCall
from convdispatch.calls.queue_call import QueueCall
from convdispatch.device import runtime
from convdispatch.device.commands.host_memory import has_system_svm
from convdispatch.device.places import host
from convdispatch.device.places import queue as queue_place
from convdispatch.device.programs.kernels import Launch
from convdispatch.selection import dispatch
from convdispatch.selection.choice.set_aside import forgive

X, W = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 2, 2), np.float32)
Y = np.full((1, 3, 4, 4), 8, np.float32)


def made(kind, queue):
    """(from NumPy to the kind, back, whether the calls take a queue)."""
    if kind == "array":
        return lambda a: cla.to_device(queue, a), lambda a: a.get(), QueueCall.generally
    if kind == "tensor":
        return lambda a: cd.Tensor.from_numpy(a, queue), lambda a: a.numpy(), QueueCall.generally
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
        return lambda a: torch.from_numpy(a.copy()), lambda a: a.numpy(), HostCall.generally
    return np.copy, np.asarray, HostCall.generally


@pytest.mark.parametrize("kind", ["array", "tensor", "numpy", "torch"])
def test_warm_calls_take_the_short_way_unless_something_is_in_it(kind, queue, monkeypatch):
    bring, back, general = made(kind, queue)
    options = {"queue": queue} if general is HostCall.generally else {}
    x, w = bring(X), bring(W)
    out = cd.conv(x, w, **options)
    for given in (None, out):  # another kind of call each
        cd.conv(x, w, out=given, **options)
    turns = []
    for kind_of_call in (HostCall, QueueCall):
        real = kind_of_call.generally
        monkeypatch.setattr(kind_of_call, "generally", lambda *a, real=real: turns.append(1) or real(*a))
    again = cd.conv(x, w, **options)
    assert cd.conv(x, w, out=out, **options) is out
    assert not turns
    for found in (again, out):
        np.testing.assert_array_equal(back(found), Y)
    with cd.frozen():
        cd.conv(x, w, out=out, **options)  # plans are kept under another policy: found anew
        turns.clear()
        cd.conv(x, w, out=out, **options)
        assert not turns
    # What begins later in its memory, or has gaps, goes the general way.
    rows = bring(np.concatenate([X, X]))[1:] if kind != "torch" else bring(np.repeat(X, 2, -1))[..., ::2]
    np.testing.assert_array_equal(back(cd.conv(rows, w, **options)), Y)
    turns.clear()
    np.testing.assert_array_equal(back(cd.conv(rows, w, **options)), Y)
    assert bool(turns) == (kind != "numpy"), "a NumPy array's later rows are an array like others"


@pytest.mark.parametrize("kind", ["array", "tensor", "numpy", "torch"])
def test_a_plan_that_fails_on_the_short_way_is_set_aside(kind, queue, monkeypatch):
    bring, back, _ = made(kind, queue)
    x, w = bring(X), bring(W)
    options = {"queue": queue} if kind in ("numpy", "torch") else {}
    for _ in range(3):
        cd.conv(x, w, **options)
    # By the launches that the plan gave, but for the host's arrays where the device does not take its pointers.
    where, name = (host if options else queue_place), "_enqueue"
    if options and not has_system_svm(queue.device):
        where, name = Launch, "__call__"
    failures, real = [1], getattr(where, name)

    def fails_once(*arguments):
        if failures:
            failures.pop()
            raise RuntimeError("the driver has no more words")
        return real(*arguments)

    monkeypatch.setattr(where, name, fails_once)
    try:
        with pytest.warns(ConvDispatchWarning, match="is set aside .* it failed as it ran: .*no more words"):
            y = cd.conv(x, w, **options)
        np.testing.assert_array_equal(back(y), Y)
        np.testing.assert_array_equal(back(cd.conv(x, w, **options)), Y)
    finally:
        forgive()
        dispatch.forget()


@pytest.fixture
def looked_up(monkeypatch):
    """How often a call was looked up by all that decides it."""
    found, own = [], conv_module._looked_up
    monkeypatch.setattr(conv_module, "_looked_up", lambda *a, **k: found.append(1) or own(*a, **k))
    return found


KINDS = {
    "plain": {},
    "bias": {"bias": np.arange(3, dtype=np.float32)},
    "residual": {"bias": np.arange(3, dtype=np.float32), "residual": np.ones((1, 3, 4, 4), np.float32)},
    "out": {"out": np.zeros((1, 3, 4, 4), np.float32)},
    "sum": {"out": np.zeros((1, 3, 4, 4), np.float32), "accumulate": True},
}


@pytest.mark.parametrize("constant", [False, True], ids=["weights", "constant"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_call_on_the_host_is_made_again_without_another_look_up(device, kind, library, constant, looked_up):
    if not has_system_svm(device):
        pytest.skip("this device takes no pointers of the host's")
    if library == "torch" and constant:
        pytest.skip("a promise is seen as NumPy's there")
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)") if library == "torch" else None
    bring = np.copy if torch is None else lambda array: torch.from_numpy(array.copy())
    given = {name: bring(value) if isinstance(value, np.ndarray) else value for name, value in KINDS[kind].items()}
    queue, w = runtime.queue(device), cd.constant(bring(W)) if constant else bring(W)
    for turn in range(6):
        x = bring(X * (turn + 1))
        if kind == "sum":
            given["out"][...] = 5
        looked_up.clear()
        found = np.asarray(cd.conv(x, w, queue=queue, **given))
        expected = Y * (turn + 1) + 5 * (kind == "sum") + (kind == "residual")
        if "bias" in given:
            expected = expected + np.arange(3, dtype=np.float32)[:, None, None]
        np.testing.assert_array_equal(found, expected)
        assert turn < 3 or not looked_up, turn
    changed = {
        "another dtype": lambda: cd.conv(bring(X.astype(np.float64)), bring(W.astype(np.float64)), queue=queue),
        "another shape": lambda: cd.conv(bring(X[..., 1:].copy()), w, queue=queue),
        "another policy": lambda: under(cd.policy(deterministic=True), lambda: cd.conv(x, w, queue=queue, **given)),
        "no queue": lambda: cd.conv(x, w, **given),
        "another option": lambda: cd.conv(x, w, queue=queue, padding=1),
        "one operand less or more": lambda: cd.conv(
            x, w, None if "bias" in given else bring(np.ones(3, np.float32)), queue=queue
        ),
    }
    for name, call in changed.items():
        looked_up.clear()
        call()
        assert looked_up, name


def under(policy, call):
    with policy:
        return call()
