"""Kernels on a CPU in PyTorch's threads: bits as in OpenCL's own, whatever a kernel asks of its launch."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from checking import make_operands
from host_programs import TEXTS, solvers

import convdispatch.torch as ct
from convdispatch import ConvProblem, policy
from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.device import runtime
from convdispatch.device.commands.recording import Recording
from convdispatch.device.executable import Executable
from convdispatch.device.native import loading
from convdispatch.device.places.host import HostPlace
from convdispatch.device.places.intraop import IntraOpLaunches
from convdispatch.device.programs.kernels import Launch, build
from convdispatch.device.programs.work_groups import Divisible, dividing_axes
from convdispatch.selection import dispatch
from convdispatch.selection.choice import set_aside
from convdispatch.torch.dispatch import native
from convdispatch.torch.eager import planning

F = torch.nn.functional
GUARD, KEPT = 64, 7.0


def written(launches, queue, operands, places, size):
    """What launches write to the last of ``places``, between guard zones, over NaN."""
    room = np.full(size + 2 * GUARD, KEPT, operands[0].dtype)
    room[GUARD:-GUARD] = np.nan
    addresses = [0] * 5
    for place, operand in zip((*places[:2], 3), operands, strict=False):
        addresses[place] = operand.ctypes.data
    addresses[places[2]] = room[GUARD:].ctypes.data
    assert launches.run(queue, addresses)
    assert (np.r_[room[:GUARD], room[-GUARD:]] == KEPT).all(), "it wrote beyond its result"
    return room[GUARD:-GUARD]


@pytest.mark.parametrize("text", TEXTS)
def test_every_solvers_launches_give_the_same_bits(here, threads, text):
    problem, queue = ConvProblem.parse(text).replace(activation=None), runtime.queue(here)
    places = {"fwd": (0, 1, 2), "bwd_data": (2, 1, 0), "bwd_weights": (0, 2, 1)}[problem.direction]
    cases = [make_operands(problem, seed=seed) for seed in (0, 1)]
    size, ran = cases[0][1].size, 0
    names = ["xwy"[place] for place in places[:2]] + ["bias"] * problem.bias
    given = [[np.ascontiguousarray(arrays.present()[name]) for name in names] for arrays, _ in cases]
    for name in solvers(problem, here):
        with policy(solver=name, fallback=False):
            prepared = dispatch.prepare(problem, runtime.context(here))
        if not prepared.recordable:
            continue
        executable = prepared.executable(queue)
        apart, inside = (executable.bind(HostPlace(here, in_pytorch)) for in_pytorch in (False, True))
        if not inside.intraop:
            continue
        for turn in (0, 1, 1, 0):
            expected, got = (written(launches, queue, given[turn], places, size) for launches in (apart, inside))
            assert not np.isnan(expected.astype(np.float64)).any()
            np.testing.assert_array_equal(got, expected, err_msg=f"{name}, operands {turn}")
        ran += 1
    assert ran, "no solver's launches run in PyTorch's threads"


ROWS = """kernel __attribute__((reqd_work_group_size(1, 1, 1))) void rows(global float *y, int n) {
    const int column = get_global_id(1), parts = get_global_size(0), part = get_global_id(0);
    for (int row = part * n / parts; row < (part + 1) * n / parts; ++row) y[column * n + row] = column * n + row + 1;
}"""


@pytest.mark.parametrize(
    ("asks", "whole", "ungrouped"),
    [
        ("get_global_id(0) + get_global_id(1)", (), True),
        ("get_global_size(0)", (0,), True),
        ("get_group_id (2) * get_num_groups( 1 )", (1,), False),
        ("CALL(get_group_id, 0)", (0, 1, 2), False),
        ("get_global_size(axis)", (0, 1, 2), True),
        ("get_global_linear_id()", (0, 1, 2), True),
        ("get_global_offset(0)", (0,), True),
        ("get_##what(0)", (0, 1, 2), False),
        ("get_local_id(0)", (), False),
        ("barrier(CLK_LOCAL_MEM_FENCE)", (), False),
        ("__attribute__((reqd_work_group_size(1, 1, 1)))", (), True),
        ("__attribute__((reqd_work_group_size(8, 1, 1)))", (), False),
        ("sub_group_reduce_add(v)", (), False),
        ("my_sub_group, a_barrier, barriers, xget_local_id(0), get_global_sizes(0)", (), True),
        ("get_global_size(0) + my_get_global_size(1)", (0,), True),
        ("a##_group_id", (0, 1, 2), False),
        ("my_get_##what(0)", (), True),
    ],
)
def test_what_a_text_asks_decides_along_which_axes_it_is_launched_in_parts(asks, whole, ungrouped):
    assert Divisible.of(asks) == Divisible(frozenset(whole), ungrouped)


def test_what_a_text_asks_is_looked_at_when_somebody_wants_to_know(here, monkeypatch):
    looked, of = [], Divisible.of
    monkeypatch.setattr(Divisible, "of", lambda text: looked.append(text) or of(text))
    program = build(runtime.context(here), f"// {time.monotonic_ns()}\n{ROWS}")
    launch = Launch(program, "rows", (3, 5, 1), (1, 1, 1), ["y", np.int32(4)], names=["y"])
    assert not looked
    assert dividing_axes(launch.kernel) == dividing_axes(launch.kernel) == (1, 2)
    assert len(looked) == 1


@pytest.mark.parametrize("sizes", [(3, 5, 1), (3, 1, 1), (1, 1, 1), (64, 2, 1)])
def test_a_kernel_that_asks_for_its_size_is_divided_along_another_axis(here, threads, sizes):
    queue, n = runtime.queue(here), 11
    launch = Launch(build(runtime.context(here), ROWS), "rows", sizes, (1, 1, 1), ["y", np.int32(n)], names=["y"])
    recording = Recording(queue)
    out = np.zeros((sizes[1], n), np.float32)
    x, w, y = (recording.allocate(size) for size in (4, 4, out.nbytes))
    launch(recording, (y,))
    launches = Executable.of(recording, [x, w, y], [2]).bind(HostPlace(here, True))
    assert launches.intraop
    for _ in range(2):
        out[:] = np.nan
        assert launches.run(queue, [8, 8, out.ctypes.data])
        np.testing.assert_array_equal(out.ravel(), np.arange(out.size) + 1)


def test_a_net_leaves_pytorchs_threads_as_they_are(here, monkeypatch):
    asked = []
    monkeypatch.setattr(planning, "share_cores", lambda: asked.append(1))
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 20, 3, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(20, 9, 1)).eval()
    x = torch.randn(2, 3, 19, 23)
    expected = net.double()(x.double())
    net.float()
    dispatch.forget()
    with ct.enable(solver="im2col*"):
        for _ in range(3):
            got = net(x.clone().requires_grad_())
            got.sum().backward()
    assert (got - expected).norm() < 1e-5 * expected.norm()
    assert not asked, "a launch runs in OpenCL's own threads"
    monkeypatch.setattr(loading, "module", lambda: None)
    dispatch.forget()
    with ct.enable(solver="im2col*"), torch.no_grad():
        net(x)
    assert asked, "PyTorch's threads spin where OpenCL's own want their cores"
    dispatch.forget()


def test_packed_weights_take_turns(here):
    layers = [torch.nn.Conv2d(24, 40, 3, padding=1).requires_grad_(False) for _ in range(3)]
    x = torch.randn(1, 24, 10, 12)
    with ct.enable(solver="im2col"):
        for turn in (0, 1, 2, 1, 1, 0, 2):
            got, layer = layers[turn](x), layers[turn]
            expected = F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)
            assert (got - expected).norm() < 1e-5 * expected.norm(), turn


def test_several_threads_at_once(here):
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        x, w = (torch.randint(-4, 5, size, generator=generator).float() for size in ((2, 8, 17, 9), (24, 8, 3, 3)))
        expected = F.conv2d(x.double(), w.double(), padding=1)
        return all(torch.equal(F.conv2d(x, w, padding=1).double(), expected) for _ in range(20))

    with ct.enable(solver="im2col"), torch.no_grad(), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_what_fails_in_pytorchs_threads_is_set_aside_and_computed(here, monkeypatch):
    x, w = torch.randn(1, 12, 9, 9), torch.randn(20, 12, 1, 1)
    expected = F.conv2d(x.double(), w.double())

    def fails(self, addresses, but=-1):
        raise RuntimeError("clEnqueueNDRangeKernel answers -5")

    with ct.enable(solver="im2col"), torch.no_grad():
        for _ in range(2):
            F.conv2d(x, w)
        native.pause(True)
        monkeypatch.setattr(IntraOpLaunches, "run", fails)
        try:
            with pytest.warns(ConvDispatchWarning, match="is set aside .* answers -5"):
                got = F.conv2d(x, w)
        finally:
            native.pause(False)
            set_aside.forgive()
            dispatch.forget()
    assert (got - expected).norm() < 1e-5 * expected.norm()
