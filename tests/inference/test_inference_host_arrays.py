"""Nets on NumPy's arrays where they lie: the bits that copies give, whatever the arrays, nothing else touched."""

import weakref

import numpy as np
import pytest
import small_net
from threads import together

from convdispatch import elementwise, inference, nn
from convdispatch.api import InvalidArgument, conv
from convdispatch.device.commands import host_memory
from convdispatch.device.commands.recording import Slot
from convdispatch.device.executable import Executable
from convdispatch.device.tracing import operation
from convdispatch.inference.host_arrays import HostNet
from convdispatch.nn import functional
from convdispatch.selection import dispatch
from convdispatch.selection.prepared import Prepared

SHAPE = (2, 3, 13, 13)


@pytest.fixture(autouse=True)
def _pointers(device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the device has no fine-grained system SVM: inputs and results are copied")


@pytest.fixture
def calls(monkeypatch):
    """How many calls went without a copy."""
    found, own = [], HostNet._run
    monkeypatch.setattr(HostNet, "_run", lambda self, *given: found.append(1) or own(self, *given))
    return found


class Two(nn.Module):
    """Two inputs, three results, one of which a later layer reads."""

    def __init__(self, queue):
        self.one, self.other = (nn.Conv2d(3, 8, 3, padding=1, queue=queue) for _ in range(2))

    def forward(self, a, b):
        y = functional.relu(self.one(a))
        return y, [self.other(b) + y, functional.softmax(nn.Flatten()(y))]


def by_copies(built, *arrays):
    return built._call(arrays, lambda inner: built._real(inner).numpy())


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_bits_that_copies_give(queue, calls, layout):
    built = inference.build(small_net.net(queue).eval(), SHAPE, queue=queue, layout=layout)
    results = []
    for seed in (1, 2, 1):
        x = small_net.normal(*SHAPE, seed=seed)
        given = x.copy()
        results.append(built(x))
        np.testing.assert_array_equal(x, given)
        np.testing.assert_array_equal(results[-1], by_copies(built, x))
    np.testing.assert_array_equal(results[0], results[2])  # the second call wrote elsewhere
    assert len(calls) == 3


def test_several_inputs_and_results(queue, calls):
    built = inference.build(Two(queue), SHAPE, SHAPE, queue=queue)
    a, b = (small_net.normal(*SHAPE, seed=seed) for seed in (3, 4))
    for given in ((a, b), (b, a), (a, a)):
        got, expected = built(*given), by_copies(built, *given)
        assert type(got) is type(expected)
        for one, other in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(calls) == 3


def test_another_librarys_arrays(queue, calls):
    """Results are of that library, in the net's structure; NumPy's arrays before and after give NumPy's."""
    torch = pytest.importorskip("torch", reason="pip install torch")
    built = inference.build(Two(queue), SHAPE, SHAPE, queue=queue)
    a, b = (small_net.normal(*SHAPE, seed=seed) for seed in (3, 4))
    expected = by_copies(built, a, b)
    for kind in (torch.Tensor, np.ndarray, torch.Tensor):
        got = built(a, b) if kind is np.ndarray else built(torch.from_numpy(a), torch.from_numpy(b))
        for one, other in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
            assert type(one) is kind
            np.testing.assert_array_equal(np.asarray(one), other)
    assert len(calls) == 3


def test_arrays_that_lie_otherwise(queue, calls):
    built = inference.build(small_net.net(queue).eval(), SHAPE, queue=queue)
    calls.clear()  # of timing, where there are several forms
    x = small_net.normal(*SHAPE)
    expected = by_copies(built, x)
    flat = np.empty(x.nbytes + 64, np.uint8)
    frozen = x.copy()
    frozen.flags.writeable = False
    for name, given in {  # twice each: the first call goes the general way, others the quick one where they can
        "plain": x,
        "read-only": frozen,
        "gaps": np.repeat(x, 2, axis=3)[..., ::2],
        "another order": np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        "backwards": x[::-1].copy()[::-1],
        "swapped bytes": x.astype(x.dtype.newbyteorder()),
    }.items():
        for _ in range(2):
            np.testing.assert_array_equal(built(given), expected, err_msg=name)
    for start in (1, 4, 16, 20, 32, 48):  # beside vectors, and between numbers
        given = flat[start : start + x.nbytes].view(x.dtype).reshape(SHAPE)
        given[...] = x
        np.testing.assert_array_equal(built(given), expected, err_msg=f"from byte {start}")
    assert len(calls) == 18
    for wrong in (x[:1], x.astype(np.float64), x[..., :-1]):
        with pytest.raises(InvalidArgument, match="the net was built for"):
            built(wrong)
    with pytest.raises(InvalidArgument, match="takes 1 inputs, got 2"):
        built(x, x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(queue, calls, dtype):
    built = inference.build(small_net.net(queue).eval(), SHAPE, queue=queue, dtype=dtype)
    calls.clear()  # of timing, where there are several forms
    x = small_net.normal(*SHAPE).astype(built.inputs[0].dtype)
    for _ in range(2):
        np.testing.assert_array_equal(built(x).view(np.uint16), by_copies(built, x).view(np.uint16))
    assert len(calls) == 2


def test_arrays_are_let_go(queue):
    built = inference.build(small_net.net(queue).eval(), SHAPE, queue=queue)
    x = small_net.normal(*SHAPE)
    for _ in range(3):
        made = weakref.ref(built(x))
        assert made() is None
    given = weakref.ref(x)
    del x
    assert given() is None


def test_nothing_beside_the_results_is_written(queue, monkeypatch):
    built = inference.build(Two(queue), SHAPE, SHAPE, queue=queue)
    wholes, zone = [], 64

    def empty(device, shape, dtype, size):
        wholes.append(np.full(2 * zone + int(np.prod(shape)), np.nan, dtype))
        return wholes[-1][zone:-zone].reshape(shape)

    monkeypatch.setattr(host_memory, "empty", empty)
    x = small_net.normal(*SHAPE)
    got = built(x, x)
    assert len(wholes) == 3
    assert all(np.isnan(whole[:zone]).all() and np.isnan(whole[-zone:]).all() for whole in wholes)
    assert not any(np.isnan(array).any() for array in (got[0], *got[1]))


def test_a_result_that_is_an_input_is_copied(queue, calls):
    built = inference.build(lambda x: (x, functional.relu(x)), SHAPE, queue=queue)
    x = small_net.normal(*SHAPE)
    same, positive = built(x)
    np.testing.assert_array_equal(same, x)
    assert not np.shares_memory(same, x)
    np.testing.assert_array_equal(positive, np.maximum(x, 0))
    assert not calls


def test_threads_share_a_net(queue):
    built = inference.build(small_net.net(queue).eval(), SHAPE, queue=queue)
    given = [small_net.normal(*SHAPE, seed=seed) for seed in range(4)]
    expected = [built(x) for x in given]

    def work(place):
        for _ in range(50):
            assert np.array_equal(built(given[place]), expected[place])

    together(work, 4)


def test_a_failure_waits_until_no_command_uses_the_arrays(queue, monkeypatch):
    built = inference.build(small_net.net(queue).eval(), SHAPE, queue=queue)
    x = small_net.normal(*SHAPE)
    expected, finished = built(x), []
    net = built._on_host[0]

    class Queue:
        device = queue.device

        def finish(self):
            finished.append(1)

    def lost(queue, addresses):
        raise RuntimeError("lost")

    with monkeypatch.context() as changed:
        changed.setattr(net, "_queue", Queue())
        changed.setattr(net, "_launches", type("Lost", (), {"run": staticmethod(lost)}))
        with pytest.raises(RuntimeError, match="lost"):
            built(x)
    assert finished
    np.testing.assert_array_equal(built(x), expected)


def test_a_command_that_is_no_kernel_runs_on_the_queue(queue, calls):
    """Zeros are filled in by a command of the queue: the input and the result are copied then."""

    @operation
    def lengthened(x):
        return elementwise.concatenate([x, elementwise.zeros(x.shape, x.dtype, x.queue)])

    built = inference.build(lambda x: functional.relu(lengthened(x)), SHAPE, queue=queue)
    calls.clear()
    x = small_net.normal(*SHAPE)
    np.testing.assert_array_equal(built(x), np.maximum(np.concatenate([x, np.zeros_like(x)], 1), 0))
    assert "no kernel" in built.own_threads
    assert not calls


def test_layers_alike_are_recorded_once(queue, monkeypatch):
    """A net is a list of executables: the plan that three layers share enqueues once, whatever each of them reads."""
    dispatch.forget()  # Another test's layer may be the same problem, which is recorded then.
    options = {"padding": 1, "activation": "relu", "queue": queue}
    layers = [nn.Conv2d(8, 8, 3, rng=np.random.default_rng(i), **options) for i in range(3)]
    recorded, own = [], Prepared.recorded
    monkeypatch.setattr(Prepared, "recorded", lambda self, *given: recorded.append(self.problem) or own(self, *given))
    x = small_net.normal(2, 8, 9, 9)
    built = inference.build(nn.Sequential(*layers), x.shape, queue=queue, layout="nchw")
    assert len(recorded) == len(set(recorded)) == 1
    wanted = x
    for layer in layers:
        wanted = conv(wanted, layer.weight.numpy(), layer.bias.numpy(), padding=1, activation="relu")
    np.testing.assert_allclose(built(x), wanted, rtol=1e-5, atol=1e-5)


def test_an_executable_shares_scratch_memory_in_time():
    """Areas that are never in use together have the same bytes, those that are have their own."""
    kernel, x, y, a, b, c = object(), *(Slot(1 << 10) for _ in range(5))
    made = Executable([(kernel, [x, a]), (kernel, [a, b]), (kernel, [b, c]), (kernel, [c, y])], [x, y], [1])
    assert made.scratch_sizes == (1 << 10,) * 3
    assert made.scratch_size == 2 << 10
    assert made.offsets[0] == made.offsets[2] != made.offsets[1]
    assert not made.overlaps([1 << 20, 2 << 20])
    assert made.overlaps([1 << 20, (1 << 20) + 512])
    assert Executable([], [x, y, a], [1, 2]).overlaps([1 << 20, 2 << 20, (2 << 20) - 512]), "two outputs"
