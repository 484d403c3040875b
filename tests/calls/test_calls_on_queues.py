"""Calls made again on arrays of OpenCL's queues: the plan's launches are given on whatever memory each call brings, and
all that is not as it was sends a call the usual way."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest
from on_queues import bring, given, turns, values, warm  # noqa: F401 (fixtures among them)

import convdispatch as cd
from convdispatch import ConvProblem, Tensor
from convdispatch.calls.arrays.operands import contiguous_strides
from convdispatch.calls.call_cache import LAST
from convdispatch.calls.queue_call import QueueCall


def _other(array, **changes):
    """An array over the same memory, other in some respect."""
    now = {name: getattr(array, name) for name in ("shape", "dtype", "strides", "offset", "queue")} | changes
    if isinstance(array, Tensor):
        return Tensor(
            array.base_data, now["shape"], np.dtype(now["dtype"]), now["queue"], now["strides"], now["offset"]
        )
    rest = {"strides": now["strides"], "offset": now["offset"], "data": array.base_data}
    return cla.Array(now["queue"], now["shape"], now["dtype"], **rest)


def _elsewhere(array):
    return _other(array, queue=cl.CommandQueue(array.queue.context))


def _other_kind(array):
    if isinstance(array, Tensor):
        return cla.to_device(array.queue, array.numpy())
    return Tensor.from_numpy(array.get(), array.queue)


def test_memory_that_another_array_had_is_seen_as_what_it_is_now(bring, given):
    """The same buffers as another dtype, another shape, other strides, from another byte on."""
    x, w, _, _ = warm(bring, True)
    host = values(x)

    def seen(shape, dtype, strides=None, offset=0):
        strides = strides or contiguous_strides(shape, np.dtype(dtype).itemsize)
        return _other(x, shape=shape, dtype=dtype, strides=strides, offset=offset)

    warmed = given[-1]
    given.clear()
    half = seen((1, 4, 8, 8), np.float16)
    with pytest.raises(cd.InvalidArgument, match="w must be float16"):
        cd.conv(half, w, padding=1)
    flat = cd.conv(seen((1, 4, 4, 16), np.float32), w, padding=1)
    np.testing.assert_array_equal(values(flat), cd.conv(host.reshape(1, 4, 4, 16), values(w), padding=1))
    with pytest.raises(cd.InvalidArgument, match="contiguous"):
        cd.conv(seen((1, 4, 8, 8), np.float32, (1024, 256, 4, 32)), w, padding=1)
    less = cd.conv(seen((1, 2, 8, 8), np.float32, None, 512), seen((3, 2, 3, 3), np.float32), padding=1)
    weights = host.ravel()[:54].reshape(3, 2, 3, 3)
    np.testing.assert_array_equal(values(less), cd.conv(host[:, 2:].copy(), weights, padding=1))
    assert warmed not in given
    with pytest.raises(cd.InvalidArgument, match="must have shape"):
        cd.conv(x, w, padding=1, out=seen((1, 8, 4, 8), np.float32))
    if isinstance(x, cla.Array):
        y = cd.conv(x.with_queue(cl.CommandQueue(x.context)), w, padding=1)
        np.testing.assert_array_equal(y.get(), values(cd.conv(x, w, padding=1)))


CHANGES = {
    "x of another dtype": (0, lambda x: _other(x, dtype=np.int32)),
    "x of more images": (0, lambda x: _other(x, shape=(2, 4, 8, 8))),
    "x with gaps": (0, lambda x: _other(x, strides=(1024, 256, 4, 32))),
    "x from another byte on": (0, lambda x: _other(x, offset=512)),
    "x of another queue": (0, _elsewhere),
    "x of another kind": (0, _other_kind),
    "x of NumPy": (0, lambda x: np.ones((1, 4, 8, 8), np.float32)),
    "w of another dtype": (1, lambda w: _other(w, dtype=np.int32)),
    "w of fewer channels": (1, lambda w: _other(w, shape=(7, 4, 3, 3))),
    "w with gaps": (1, lambda w: _other(w, strides=(144, 36, 4, 12))),
    "w from another byte on": (1, lambda w: _other(w, offset=512)),
    "w of another queue": (1, _elsewhere),
    "w of another kind": (1, _other_kind),
    "constant w": (1, cd.constant),
    "out of another dtype": (2, lambda out: _other(out, dtype=np.int32)),
    "out of more images": (2, lambda out: _other(out, shape=(2, 8, 8, 8))),
    "out with gaps": (2, lambda out: _other(out, strides=(2048, 256, 4, 32))),
    "out from another byte on": (2, lambda out: _other(out, offset=512)),
    "out of another queue": (2, _elsewhere),
    "out of another kind": (2, _other_kind),
    "no out": (2, lambda out: None),
}
OPTIONS = (1, 1, 1, 1, None, "nchw", "float32", False)


@pytest.mark.parametrize("change", CHANGES)
def test_other_arrays_go_the_usual_way(bring, change, given):
    x, w, out, expected = warm(bring, False)
    again, operands = LAST["fwd"][id(w)][1].repeat, [x, w, out]
    given.clear()
    place, other = CHANGES[change]
    operands[place] = other(operands[place])
    assert again(operands, OPTIONS, None) is None
    assert not given
    assert again([x, w, out], OPTIONS, None) is out
    assert given
    np.testing.assert_array_equal(values(out), expected)


@pytest.mark.parametrize("change", ["x of another queue", "w of another queue", "out of another queue"])
def test_a_named_queue_waits_for_those_of_arrays(bring, change, given):
    """Calls with ``queue=`` take the short way without being remembered by their weights."""
    x, w, out, expected = warm(bring, False)
    for _ in range(4):
        cd.conv(x, w, padding=1, out=out, queue=bring.queue)
    given.clear()
    place, other = CHANGES[change]
    operands = [x, w, out]
    operands[place] = other(operands[place])
    x, w, out = operands
    y = cd.conv(x, w, padding=1, out=out, queue=bring.queue)
    bring.queue.finish()
    np.testing.assert_array_equal(values(y), expected)
    assert not given


def test_gradients_that_differ_in_direction_or_size_alone_are_told_apart(bring):
    random = np.random.default_rng(4)
    lead, other = (random.integers(-4, 5, (4, 4, n, n)).astype(np.float32) for n in (6, 3))
    data = cd.conv_backward_data(lead, other, (4, 4, 6, 6), padding=1)
    weights = cd.conv_backward_weights(lead, other, (4, 4, 6, 6), padding=1)
    a, b = bring(lead), bring(other)
    for _ in range(2):
        for _ in range(4):
            np.testing.assert_array_equal(values(cd.conv_backward_data(a, b, (4, 4, 6, 6), padding=1)), data)
        for _ in range(4):
            np.testing.assert_array_equal(values(cd.conv_backward_weights(a, b, (4, 4, 6, 6), padding=1)), weights)
    for size in (11, 12) * 2:
        expected = cd.conv_backward_data(lead, other, (4, 4, size, size), padding=1, stride=2)
        for _ in range(4):
            made = cd.conv_backward_data(a, b, (4, 4, size, size), padding=1, stride=2)
            np.testing.assert_array_equal(values(made), expected)


@pytest.mark.parametrize("new", [False, True], ids=["out given", "new"])
def test_other_arguments_go_the_usual_way(bring, new, given):
    x, w, out, expected = warm(bring, new)
    warmed = given[-1]
    given.clear()
    np.testing.assert_array_equal(values(cd.conv(x, w, padding=1, out=out)), expected)
    assert given == [warmed]
    assert cd.conv(x, w, padding=0).shape == (1, 8, 6, 6)
    np.testing.assert_array_equal(values(cd.conv(x, w, padding=1, activation="relu", out=out)), np.maximum(expected, 0))
    bias = bring(np.ones(8, np.float32))
    np.testing.assert_array_equal(values(cd.conv(x, w, bias, padding=1, out=out)), expected + 1)
    assert given.count(warmed) == 1
    with cd.policy(solver="im2col"):
        np.testing.assert_array_equal(values(cd.conv(x, w, padding=1, out=out)), expected)
    assert given.count(warmed) == 1
    with pytest.raises(cd.InvalidArgument, match="padding"):
        cd.conv(x, w, padding=np.ones(3), out=out)
    with pytest.raises(cd.InvalidArgument, match="x must be"):
        cd.conv(values(x).tolist(), w, padding=1)
    with pytest.raises(cd.InvalidArgument, match="where x is"):
        cd.conv(x, values(w), padding=1)


def test_out_over_an_operand_is_an_error(bring):
    problem = ConvProblem.parse("mb1ic8ih4oc8kh1")
    ((arrays, expected),) = turns(problem, bring, 1)
    x, w, out = arrays["x"], arrays["w"], bring(np.zeros(problem.out_shape, np.float32))
    for _ in range(4):
        np.testing.assert_array_equal(values(cd.conv(x, w, out=out)), expected)
    with pytest.raises(cd.InvalidArgument, match="out shares memory with x"):
        cd.conv(x, w, out=x)
    twin = cl.Buffer.from_int_ptr(x.base_data.int_ptr, retain=True)  # another object for the same buffer
    over = _other(x)
    over.base_data = twin
    with pytest.raises(cd.InvalidArgument, match="out shares memory with x"):
        cd.conv(x, w, out=over)


def test_arrays_come_and_go(bring, given):
    """Ids and buffers of arrays that have gone belong to others, of whatever shape."""
    random = np.random.default_rng(1)
    for turn in range(60):
        size, channels = int(random.integers(3, 6)), int(random.integers(1, 3))
        host = random.integers(-4, 5, (1, channels, size, size)).astype(np.float32)
        weights = random.integers(-4, 5, (2, channels, 3, 3)).astype(np.float32)
        expected = cd.conv(host, weights)
        x, w = bring(host), bring(weights)
        for _ in range(4):
            np.testing.assert_array_equal(values(cd.conv(x, w)), expected, err_msg=f"turn {turn}")
        del x, w
    assert len(given) > 100


def test_calls_are_made_again_only_where_the_call_before_was_the_same(bring, monkeypatch):
    """Two calls that take turns on the same weights find their way by the usual key."""
    x, w, _, expected = warm(bring, True)
    wide = bring(np.repeat(values(x), 2, axis=-1))
    turns, real = [], QueueCall.__call__
    monkeypatch.setattr(QueueCall, "__call__", lambda self, *rest: turns.append(1) or real(self, *rest))
    for _ in range(3):
        np.testing.assert_array_equal(values(cd.conv(x, w, padding=1)), expected)
    assert not turns
    for _ in range(2):
        assert cd.conv(wide, w, padding=1).shape == (1, 8, 8, 16)
        np.testing.assert_array_equal(values(cd.conv(x, w, padding=1)), expected)
    assert turns
