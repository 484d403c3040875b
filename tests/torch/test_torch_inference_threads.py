"""Nets in PyTorch's threads: the bits that the device's own give, whoever calls, and however many threads there are."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pyopencl as cl
import pytest
import small_net
import torch

import convdispatch.torch as ct
from convdispatch import inference, nn
from convdispatch.api.errors import InvalidArgument, NoDevice
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.commands.interface import Kernel
from convdispatch.device.native import loading
from convdispatch.device.places import intraop
from convdispatch.device.places.intraop import IntraOpLaunches
from convdispatch.device.programs.kernels import build
from convdispatch.inference import choice_cache
from convdispatch.inference.graph import Background, Weights
from convdispatch.nn import functional
from convdispatch.tensor import Tensor

SHAPE = (2, 3, 13, 17)


class Joined(nn.Module):
    """Parts of 5 and 3 channels, of 221 pixels each: a copy that begins between vectors; a depthwise layer, a 1x1."""

    def __init__(self, queue):
        self.one = nn.Conv2d(3, 5, 1, queue=queue)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8, queue=queue)

    def forward(self, x):
        x = functional.concatenate([functional.relu(self.one(x)), x])
        return functional.concatenate([self.deep(x), x])


class Several(nn.Module):
    """Two inputs of different sizes; a list with a result that a later layer reads, and a softmax over rows."""

    def __init__(self, queue):
        self.one = nn.Conv2d(3, 8, 3, padding=1, queue=queue)
        self.other = nn.Conv2d(7, 8, 1, queue=queue)
        self.norm = nn.LRN(5)

    def forward(self, a, b):
        y = self.norm(functional.relu(self.one(a)))
        return y, [self.other(b) + y, functional.softmax(nn.Flatten()(y))]


def _pooled(queue):
    return small_net.net(queue)


NETS = {
    "pools": (_pooled, [(2, 3, 13, 13)]),
    "parts": (Joined, [SHAPE]),
    "one picture's parts": (Joined, [(1, 3, 13, 17)]),
    "several": (Several, [SHAPE, (2, 7, 13, 17)]),
}


def flat(results):
    return [x for each in results for x in flat(each)] if isinstance(results, list | tuple) else [results]


def same_bits(got, expected):
    for one, other in zip(flat(got), flat(expected), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.fixture
def runs(monkeypatch):
    """Calls in PyTorch's threads."""
    found, own = [], IntraOpLaunches.run
    monkeypatch.setattr(IntraOpLaunches, "run", lambda self, *given: found.append(1) or own(self, *given))
    return found


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", NETS)
def test_the_bits_of_the_devices_own_threads(here, queue, runs, name, layout, dtype):
    make, shapes = NETS[name]
    net, common = make(queue).eval(), {"queue": queue, "layout": layout, "dtype": dtype}
    own, built = (inference.build(net, *shapes, **common, threads=each) for each in ("own", "pytorch"))
    assert own.own_threads, "nobody asked for PyTorch's"
    assert built.own_threads is None
    for seed in (1, 2, 1):
        given = [small_net.normal(*shape, seed=seed).astype(dtype) for shape in shapes]
        same_bits(built(*given), own(*given))
    assert len(runs) == 3


def test_threads_come_and_go_between_calls(here, queue):
    net = Several(queue).eval()
    shapes = NETS["several"][1]
    own, built = (inference.build(net, *shapes, queue=queue, layout="nchw", threads=t) for t in ("own", "pytorch"))
    given = [small_net.normal(*shape) for shape in shapes]
    expected, before = own(*given), torch.get_num_threads()
    try:
        for count in (1, 3, 2, 7, 1, 4):
            torch.set_num_threads(count)
            same_bits(built(*given), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_of_python_call_at_once(here, queue):
    """The same net, another, and PyTorch's own operators, all at once."""
    nets = [Joined(queue).eval() for _ in range(2)]
    built = [inference.build(net, SHAPE, queue=queue, layout="nchw", threads="pytorch") for net in nets]
    given = [small_net.normal(*SHAPE, seed=seed) for seed in range(8)]
    expected = [built[seed % 2](x) for seed, x in enumerate(given)]

    def work(seed):
        for _ in range(30):
            torch.ones(1 << 16).add_(1)
            same_bits(built[seed % 2](given[seed]), expected[seed])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_nothing_beside_the_results_is_written(here, queue, monkeypatch):
    make, shapes = NETS["several"]
    built = inference.build(make(queue).eval(), *shapes, queue=queue, threads="pytorch")
    wholes, zone = [], 64

    def empty(device, shape, dtype, size):
        wholes.append(np.full(2 * zone + int(np.prod(shape)), np.nan, dtype))
        return wholes[-1][zone:-zone].reshape(shape)

    monkeypatch.setattr(host_memory, "empty", empty)
    got = built(*(small_net.normal(*shape) for shape in shapes))
    assert len(wholes) == 3
    assert all(np.isnan(whole[:zone]).all() and np.isnan(whole[-zone:]).all() for whole in wholes)
    assert not any(np.isnan(array).any() for array in flat(got))


def test_a_call_waits_for_what_was_enqueued_before(here, queue):
    """Both ways use the same memory between layers."""
    built = inference.build(Joined(queue).eval(), SHAPE, queue=queue, threads="pytorch")
    x = small_net.normal(*SHAPE)
    expected = built(x)
    for _ in range(20):
        built.run()
        same_bits(built(x), expected)


def test_weights_are_in_their_place_when_a_net_is_built(here, queue):
    """Calls in PyTorch's threads wait for no queue: weights that are copied, not packed, are there before."""
    given = Tensor.from_numpy(small_net.normal(24, 40), queue)
    queue.finish()
    held = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue, [held])
    weights = Weights(queue, Background())
    weights.take(given, SimpleNamespace(packed_size=0))
    free = threading.Timer(0.5, held.set_status, [cl.command_execution_status.COMPLETE])
    free.start()
    weights.settle()
    assert held.command_execution_status == cl.command_execution_status.COMPLETE, "the copy was not waited for"
    free.join()


AFTER = """kernel __attribute__((reqd_work_group_size(1, 1, 1))) void after(global const int *x, global int *y) {
    const int i = get_global_id(0);
    y[i] = x[(i + 7) % 24] + 1;
}"""


@pytest.mark.usefixtures("threads")
def test_a_launch_begins_when_all_parts_of_the_one_before_are_over(here):
    program, count = build(runtime.context(here), AFTER), 300
    kernels = [Kernel(program, "after", (24, 1), (1, 1), [None, None]) for _ in range(count)]
    launches = [(kernel, kernel.plain(), [(0, at % 2, 0), (1, 1 - at % 2, 0)]) for at, kernel in enumerate(kernels)]
    run = IntraOpLaunches(here, launches).run
    for _ in range(20):
        x, y = np.arange(24, dtype=np.int32), np.zeros(24, np.int32)
        run([x.ctypes.data, y.ctypes.data])
        np.testing.assert_array_equal(x, (np.arange(24) + 7 * count) % 24 + count)


ONCE = """kernel void once(global int *y, int turns) {
    const int at = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * SIZE + get_global_id(0);
    float z = at;
    for (int turn = 0; turn < turns; ++turn) z = z * z + 0.5f;
    y[at] += z == 3.0f ? 2 : 1;
}"""


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("turns", [1, 30000])
@pytest.mark.parametrize("groups", [(3, 5), (5, 4), (1, 9), (7, 1), (4, 1, 6), (17, 2), (40, 3), (2, 1, 1)])
def test_every_group_runs_once(here, groups, turns):
    """Also where rows of groups are cut, for launches of every length: those of more than 0.1 ms have more parts."""
    local = (2, *[1] * (len(groups) - 1))
    size = [count * each for count, each in zip(groups, local, strict=True)]
    text = ONCE.replace("get_global_size(1)", str(size[1])).replace("SIZE", str(size[0]))
    kernel = Kernel(build(runtime.context(here), text), "once", size, local, [None, np.int32])
    own = kernel.plain()
    own.set_arg(1, np.int32(turns))
    run = IntraOpLaunches(here, [(kernel, own, [(0, 0, 0)])]).run
    y = np.zeros(np.prod(size) + 64, np.int32)
    for call in range(1, 5):
        run([y.ctypes.data])
        assert (y[:-64] == call).all()
        assert not y[-64:].any()


GROUPS = """kernel void groups(global int *y) {
    y[get_group_id(0) * get_local_size(0) + get_local_id(0)] = 100 * get_group_id(0) + get_local_id(0);
}"""


@pytest.mark.usefixtures("threads")
def test_a_group_has_the_same_number_in_a_part(here):
    kernel = Kernel(build(runtime.context(here), GROUPS), "groups", (60,), (4,), [None])
    run = IntraOpLaunches(here, [(kernel, kernel.plain(), [(0, 0, 0)])]).run
    for _ in range(3):
        y = np.zeros(60, np.int32)
        run([y.ctypes.data])
        np.testing.assert_array_equal(y, np.arange(60) // 4 * 100 + np.arange(60) % 4)


def test_why_a_net_stays_in_the_devices_own_threads(here, queue, monkeypatch):
    make, shapes = NETS["pools"]
    net, x = make(queue).eval(), small_net.normal(*shapes[0])

    def built():
        return inference.build(net, *shapes, queue=queue, layout="nchw", threads="pytorch")

    expected = built()(x)
    with pytest.raises(InvalidArgument, match="threads must be one of own, pytorch, got 'mine'"):
        inference.build(net, *shapes, queue=queue, threads="mine")
    with monkeypatch.context() as changed:
        changed.setattr(loading, "module", lambda: None)
        left = built()
        assert "the compiled module is not there" in left.own_threads
        same_bits(left(x), expected)
    monkeypatch.setattr(intraop, "dividing_axes", lambda kernel: None)
    left = built()
    assert "cannot be launched in parts" in left.own_threads
    same_bits(left(x), expected)


@pytest.mark.usefixtures("all_forms")
def test_forms_are_timed_in_the_threads_in_which_they_run(here, queue, runs, tmp_path, monkeypatch):
    """A choice that was made there is no choice for the device's own, nor for another number of threads."""
    asked = []
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path))
    load = choice_cache.load
    monkeypatch.setattr(choice_cache, "load", lambda key: asked.append(key) or load(key))
    make, shapes = NETS["pools"]
    net = make(queue).eval()
    for each in ("own", "pytorch"):
        built = inference.build(net, *shapes, queue=queue, recall=True, threads=each)
        assert bool(runs) == (each == "pytorch")
    assert len(built.tried) == 2, "one queue each"
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    inference.build(net, *shapes, queue=queue, recall=True, threads="pytorch")
    torch.set_num_threads(before)
    assert len(set(asked)) == 3


@pytest.mark.usefixtures("without_compiler")
def test_a_fused_model_runs_in_pytorchs_threads(here, runs):
    model = small_net.torch_net(torch).eval()
    x = torch.randn(2, 3, 13, 13)
    with torch.inference_mode():
        expected, fused = model.double()(x.double()), ct.convert(model.float(), fuse=True)
        got = fused(x)
        runs.clear()
        for _ in range(3):
            assert torch.equal(fused(x), got)
    assert (got - expected).norm() < 1e-5 * expected.norm()
    assert len(runs) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_says_why_it_computes_nothing(here, queue):
    built = inference.build(Joined(queue).eval(), SHAPE, queue=queue, threads="pytorch")
    x = small_net.normal(*SHAPE)
    built(x)
    child = os.fork()
    if not child:
        try:
            built(x)
        except NoDevice as error:
            os._exit(0 if "forked" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
