"""NumPy's own memory under kernels: any alignment, results from a pool, nothing written outside, nothing that grows."""

from __future__ import annotations

import gc
import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checking import call, make_operands
from host_programs import solvers

import convdispatch as cd
from convdispatch import ConvProblem, MemoryLimit
from convdispatch.api.policy import Policy
from convdispatch.api.problem import DIRECTIONS
from convdispatch.calls import host_call
from convdispatch.device import runtime
from convdispatch.device.commands import host_memory
from convdispatch.device.memory.host_pool import IDLE_TURNS, KEEP, KEEP_IDLE, HostPool
from convdispatch.selection import dispatch

GUARD = 4096
SHAPES = (
    "mb2ic5ih9iw8oc7kh3kw3ph1pw1",
    "mb1ic16ih8iw8oc32",
    "g16mb1ic16ih9iw9oc16kh3kw3ph1pw1",
    "mb1ic4ih17iw16oc8kh7kw7ph3pw3",
)


@pytest.fixture(autouse=True)
def svm(device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the device has no fine-grained system SVM: buffers over the host's memory stay")


class Guarded:
    """An array at ``offset`` bytes into a page, between guard zones."""

    def __init__(self, array, offset):
        self.size = array.nbytes
        self.whole = np.frombuffer(mmap.mmap(-1, array.nbytes + 3 * GUARD), np.uint8)
        self.whole[:] = 0xA5
        self.start = GUARD + offset
        self.array = self.whole[self.start : self.start + self.size].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def untouched(self):
        before, after = self.whole[: self.start], self.whole[self.start + self.size :]
        return (before == 0xA5).all() and (after == 0xA5).all()


@pytest.mark.parametrize("offset", [4, 16, 64])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_solver_stays_within_arrays_at_any_alignment(device, shape, direction, offset):
    problem = ConvProblem.parse(shape).replace(direction=direction)
    operands, expected = make_operands(problem, "real")
    held = {name: Guarded(array, offset) for name, array in operands.present().items()}
    ran = 0
    for name in solvers(problem, device):
        out = Guarded(np.full(problem.out_shape, np.nan, np.float32), offset)
        with cd.policy(solver=name, fallback=False):
            call(problem, {each: guarded.array for each, guarded in held.items()}, out=out.array)
        scale = np.linalg.norm(expected)
        assert np.linalg.norm(out.array - expected) <= 1e-4 * scale, name
        assert out.untouched(), f"{name} wrote outside its result"
        assert all(guarded.untouched() for guarded in held.values()), f"{name} wrote outside an operand"
        ran += 1
    assert ran >= 2


def test_a_result_has_memory_of_the_pool_and_gives_it_back(device):
    pool = host_memory.pool_of(device)
    x, w = np.ones((1, 16, 64, 64), np.float32), np.ones((16, 16, 1, 1), np.float32)
    cd.conv(x, w)
    gc.collect()
    active = pool.active_blocks
    y = cd.conv(x, w)
    assert pool.active_blocks == active + 1
    assert y.ctypes.data % mmap.PAGESIZE == 0
    place = y.ctypes.data
    part = y[0, 3, 5:]
    del y
    assert pool.active_blocks == active + 1  # a view keeps it
    del part
    assert pool.active_blocks == active
    assert cd.conv(x, w).ctypes.data == place


def test_an_operand_of_a_call_is_never_its_results_memory(device):
    x = np.ones((1, 16, 64, 64), np.float32)
    w = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    y = x
    for _ in range(5):
        y = cd.conv(y, 2 * w)
    assert (y == 32).all()


@pytest.mark.usefixtures("clean_memory")
def test_the_pool_counts_in_statistics_and_limits(device):
    x, w = np.ones((1, 16, 64, 64), np.float32), np.ones((16, 16, 1, 1), np.float32)
    before = runtime.memory_statistics(device)
    y = cd.conv(x, w)
    after = runtime.memory_statistics(device)
    assert after.active_bytes >= before.active_bytes + y.nbytes
    runtime.set_memory_limit(device, after.held_bytes + 1)
    try:
        with pytest.raises(MemoryLimit, match="set_memory_limit"):
            cd.conv(np.ones((1, 16, 128, 128), np.float32), w)
    finally:
        runtime.set_memory_limit(device, None)
    del y
    runtime.release_memory(device)
    assert runtime.memory_statistics(device).held_bytes <= before.held_bytes


def test_what_lies_unused_goes_back_beyond_a_bound():
    pool = HostPool()
    leases = [pool.allocate(KEEP // 4) for _ in range(8)]
    assert pool.managed_bytes == pool.active_bytes >= 2 * KEEP
    del leases
    assert pool.active_bytes == 0
    assert 0 < pool.free_bytes <= KEEP
    assert pool.held_blocks == len(pool._free) == sum(map(len, pool._by_size.values()))
    pool.free_held()
    assert pool.managed_bytes == 0


def test_what_lies_unused_for_long_goes_back():
    """As results of sizes that do not return; those of a net's layers stay, whatever they take together."""
    pool = HostPool()
    leases = [pool.allocate(KEEP_IDLE // 8 * number) for number in range(1, 9)]
    del leases
    assert pool.free_bytes > 2 * KEEP_IDLE
    for _ in range(IDLE_TURNS // 2):
        pool.allocate(4096)
    assert pool.free_bytes > 2 * KEEP_IDLE
    for _ in range(IDLE_TURNS):
        pool.allocate(4096)
    assert pool.free_bytes <= KEEP_IDLE
    assert pool.has(4096)
    assert pool.held_blocks == sum(map(len, pool._by_size.values()))


@pytest.mark.parametrize("size", [1, 4096, 4097, 65537, (1 << 20) + 1, 25_690_112])
def test_a_block_wastes_an_eighth_at_most(size):
    pool = HostPool()
    lease = pool.allocate(size)
    assert len(memoryview(lease)) == size
    assert size <= pool.active_bytes <= max(size * 9 / 8, size + mmap.PAGESIZE)


def test_frozen_takes_no_new_block_of_the_pool(device):
    runtime.release_memory(device)
    x, w = np.ones((1, 16, 64, 64), np.float32), np.ones((16, 16, 1, 1), np.float32)
    out = cd.conv(x, w)
    del out
    runtime.release_memory(device)
    held = host_memory.pool_of(device).managed_bytes
    with cd.frozen():
        y = cd.conv(x, w)
    assert (y == 16).all()
    assert host_memory.pool_of(device).managed_bytes == held


def test_memory_stays_flat_over_many_calls(device):
    x, w = np.ones((1, 16, 64, 64), np.float32), np.ones((16, 16, 3, 3), np.float32)
    out = np.empty((1, 16, 62, 62), np.float32)

    def held(calls):
        for _ in range(calls):
            cd.conv(x, w)
            cd.conv(x, w, out=out)
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    held(50)
    first = held(50)
    assert held(500) <= first + (1 << 20)


def test_constant_weights_and_the_epilogue_on_the_hosts_memory(device):
    problem = ConvProblem.parse("mb2ic16ih9oc32kh3ph1").replace(bias=True, residual=True, activation="relu")
    operands, expected = make_operands(problem)
    given = operands.present()
    w = cd.constant(given["w"])
    for name in solvers(problem.replace(constant_weights=True), device):
        with cd.policy(solver=name, fallback=False):
            y = cd.conv(given["x"], w, given["bias"], padding=1, residual=given["residual"], activation="relu")
        assert np.allclose(y, expected, atol=0.02), name


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_shorter_than_waking_a_thread_is_computed_by_the_caller(device, direction, monkeypatch):
    if runtime.serial_queue(device) is None:
        pytest.skip("the device has no queue that the waiting thread serves")
    taken = []
    monkeypatch.setattr(runtime, "serial_queue", lambda _, serial=runtime.serial_queue: taken.append(1) or serial(_))
    tiny = ConvProblem.parse("mb1ic72ih1iw1oc24kh1kw1").replace(direction=direction)
    large = ConvProblem.parse("mb1ic64ih28iw28oc64kh1kw1").replace(direction=direction)
    for problem, alone in ((tiny, True), (large, False)):
        operands, expected = make_operands(problem)
        for arrays in (
            operands.present(),
            {n: cd.constant(a) if n == "w" else a for n, a in operands.present().items()},
        ):
            taken.clear()
            dispatch.forget()  # a kept call knows its thread's queue
            for _ in range(2):  # the second call finds the first one's plan
                np.testing.assert_array_equal(call(problem, arrays), expected)
            assert bool(taken) == alone
        taken.clear()
        np.testing.assert_array_equal(call(problem, operands.present(), queue=runtime.queue(device)), expected)
        assert not taken  # a queue that the caller names is the one that runs


def test_threads_compute_their_own_short_calls_at_the_same_time(device):
    problem = ConvProblem.parse("mb1ic72ih1iw1oc24kh1kw1")
    operands, expected = make_operands(problem)
    w = cd.constant(operands.present()["w"])  # packed by whoever comes first

    def work():
        return [call(problem, {**operands.present(), "w": w}) for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        for results in [each.result(60) for each in [pool.submit(work) for _ in range(4)]]:
            assert all(np.array_equal(each, expected) for each in results)


@pytest.mark.parametrize("cores", [2, 16, 64])
def test_one_thread_is_enough_whatever_their_number(device, monkeypatch, cores):
    """A launch takes as long on many cores, which is more operations of their peak."""
    info = replace(runtime.device_info(device), compute_units=cores)
    if info.type != "cpu":
        pytest.skip("the device is no CPU")
    tiny = dispatch.prepare(ConvProblem.parse("mb1ic72ih1iw1oc24kh1kw1"), runtime.context(device), Policy())
    large = dispatch.prepare(ConvProblem.parse("mb4ic64ih28iw28oc64kh3kw3"), runtime.context(device), Policy())
    monkeypatch.setattr(host_call.runtime, "device_info", lambda _: info)
    assert host_call.prefers_one_thread(tiny)
    assert not host_call.prefers_one_thread(large)
