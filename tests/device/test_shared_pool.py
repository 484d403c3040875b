"""Pools of memory shared with CUDA, here with a CUDA that is none."""

from __future__ import annotations

import itertools

import numpy as np
import pyopencl as cl
import pytest
from fake_cuda import FakeCuda
from threads import together

import convdispatch
from convdispatch.api.errors import Frozen, MemoryLimit
from convdispatch.device import runtime
from convdispatch.device.cuda_driver import CudaError, no_wait
from convdispatch.device.memory import allocator
from convdispatch.device.memory import shared_pool as sharedpool

pytestmark = pytest.mark.usefixtures("clean_memory")

MB = 1 << 20


class FakeShared:
    """Stands for CUDA's view: an address that nothing is at."""

    places = 1 << 40

    def __init__(self, size):
        self.size, self.address = size, FakeShared.places
        FakeShared.places += size + (1 << 30)
        self.released = False

    def release(self):
        self.released = True


@pytest.fixture
def shared_pool(device, monkeypatch):
    """``make(queue)``: a pool of shared memory on a context of its own, whose imports are plain buffers."""
    made = []

    def import_plain(arena, size):
        shared = FakeShared(size)
        buffer = cl.Buffer(arena._context, cl.mem_flags.READ_WRITE, size)
        sharedpool._addresses[buffer.int_ptr] = shared.address
        made.append(shared)
        return shared, buffer

    monkeypatch.setattr(sharedpool.Arena, "_import", import_plain)
    monkeypatch.setattr(sharedpool, "_addresses", {})  # real arenas live as long as the process; these do not
    context = cl.Context([device])
    arena = sharedpool.Arena(context, FakeCuda())

    monkeypatch.setattr(allocator, "_arenas", {context: arena})
    monkeypatch.setattr(allocator, "_pools", {})
    monkeypatch.setattr(allocator, "_queueless_pools", {})  # other tests' pools that are no queue's may be in use yet
    monkeypatch.setattr(allocator, "_caller_queues", {})

    def make(out_of_order=False):
        flags = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE if out_of_order else 0
        queue = cl.CommandQueue(context, properties=flags)
        return queue, allocator._make_pool(queue)

    make.imports = made
    return make


def test_shared_blocks_are_aligned_apart_and_used_again(shared_pool):
    queue, pool = shared_pool()
    sizes = [1, 500, 512, 513, 5000, 70_000, MB, MB + 1, 5 * MB, 33 * MB + 7]
    blocks = [runtime.allocate(queue, size) for size in sizes]
    spans = sorted((sharedpool.cuda_address(block), block.size) for block in blocks)
    assert all(address % 512 == 0 for address, _ in spans)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(spans))
    for block, size in zip(blocks, sizes, strict=True):
        assert size <= block.size <= max(512, 2 * size, size * 9 / 8 + 2 * MB)
        cl.enqueue_fill_buffer(queue, block, np.uint8(7), 0, size)
    places = {size: sharedpool.cuda_address(block) for size, block in zip(sizes, blocks, strict=True)}
    imports = len(shared_pool.imports)
    del blocks, block
    assert pool.active_bytes == 0
    assert {size: sharedpool.cuda_address(runtime.allocate(queue, size)) for size in (5 * MB,)} == {
        5 * MB: places[5 * MB]
    }
    assert len(shared_pool.imports) == imports


def test_shared_parts_know_their_address(shared_pool):
    queue, _ = shared_pool()
    for size in (100_000, 4 * MB):
        block = runtime.allocate(queue, size)
        part = runtime.sub_region(block, 4096, 1024)
        assert sharedpool.cuda_address(part) == sharedpool.cuda_address(block) + 4096
        found, offset = sharedpool.shared_block(sharedpool.cuda_address(block) + 4100)
        assert (found.int_ptr, offset) == (block.int_ptr, 4100)
    assert sharedpool.shared_block(12345) is None
    assert sharedpool.cuda_address(cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)) is None


def test_shared_memory_is_given_back(shared_pool):
    queue, pool = shared_pool()
    block = runtime.allocate(queue, 8 * MB)
    own = runtime.fresh(queue, 100)
    assert own.get_info(cl.mem_info.ASSOCIATED_MEMOBJECT) is None  # never a part: others cut it into parts
    del own
    assert sum(shared.released for shared in shared_pool.imports) == 1
    pool.free_held()
    assert sum(shared.released for shared in shared_pool.imports) == 1  # the block is in use
    del block
    pool.free_held()
    assert sum(shared.released for shared in shared_pool.imports) == 2
    assert pool.managed_bytes == 0


def test_out_of_order_blocks_wait_for_the_commands_of_their_time(shared_pool, device):
    queue, _ = shared_pool(out_of_order=True)
    gate = cl.UserEvent(queue.context)
    block = runtime.allocate(queue, 4 * MB)
    first = sharedpool.cuda_address(block)
    cl.enqueue_fill_buffer(queue, block, np.uint8(1), 0, MB, wait_for=[gate])
    del block
    assert sharedpool.cuda_address(runtime.allocate(queue, 4 * MB)) != first  # still to be written
    gate.set_status(cl.command_execution_status.COMPLETE)
    queue.finish()
    places = {sharedpool.cuda_address(block) for block in [runtime.allocate(queue, 4 * MB) for _ in range(2)]}
    assert first in places


def test_shared_memory_of_a_queue_that_is_gone_stays(shared_pool):
    """CUDA's side of it may be in use elsewhere, which OpenCL does not see."""
    queue, pool = shared_pool()
    runtime.allocate(queue, 6 * MB)
    queue.finish()
    del queue
    other, _ = shared_pool()
    assert pool in allocator._pools.values()
    assert runtime.memory_statistics(other.device).held_bytes == 6 * MB
    runtime.release_memory(other.device)
    assert runtime.memory_statistics(other.device).held_bytes == 0


@pytest.fixture
def full(shared_pool, monkeypatch):
    """(queue, pool, live): two queues keep 4 and 6 MB for later, on a device that is full while anything is held."""
    queue, pool = shared_pool()
    other, _ = shared_pool()
    runtime.allocate(queue, 4 * MB)
    runtime.allocate(other, 6 * MB)

    def live():
        return sum(shared.size for shared in shared_pool.imports if not shared.released)

    fine = sharedpool.Arena._import

    def refuse(arena, size):
        if live():
            raise CudaError("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)")
        return fine(arena, size)

    monkeypatch.setattr(sharedpool.Arena, "_import", refuse)
    assert live() == 10 * MB
    yield queue, pool, live
    del other


def test_where_the_device_is_full_what_waits_goes_back(full):
    queue, pool, live = full
    block = runtime.allocate(queue, 8 * MB)
    assert live() == 8 * MB
    with pytest.raises(MemoryLimit, match="OUT_OF_MEMORY"):
        runtime.allocate(queue, 10 * MB)
    with pytest.raises(MemoryLimit, match="OUT_OF_MEMORY"):
        runtime.fresh(queue, 10 * MB)
    assert (pool.active_blocks, pool.active_bytes, pool.managed_bytes) == (1, 8 * MB, 8 * MB)
    del block


def test_where_the_device_is_full_frozen_keeps_what_waits(full):
    queue, _, live = full
    with convdispatch.frozen(), pytest.raises(CudaError):
        runtime.allocate(queue, 8 * MB)
    assert live() == 10 * MB


def test_where_a_thread_must_not_wait_nothing_is_given_back(full, device):
    queue, _, live = full
    with no_wait, pytest.raises(CudaError):
        runtime.allocate(queue, 8 * MB)
    runtime.set_memory_limit(device, 5 * MB)
    with no_wait, pytest.raises(CudaError):
        runtime.allocate(queue, 8 * MB)
    assert live() == 10 * MB


def test_a_limit_where_a_call_may_have_been_put_off(shared_pool, device):
    """Other pools give back what waits; an out-of-order queue with a bridge in use is not waited for."""
    queue, _ = shared_pool(out_of_order=True)
    other, _ = shared_pool()
    runtime.allocate(queue, 4 * MB)
    runtime.allocate(other, 4 * MB)
    gate = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue, wait_for=[gate])
    runtime.set_memory_limit(device, 11 * MB)
    with no_wait:
        runtime.allocate(queue, 6 * MB)  # in place of the other queue's
        assert sum(shared.size for shared in shared_pool.imports if not shared.released) == 10 * MB
        with pytest.raises(MemoryLimit):
            runtime.allocate(queue, 8 * MB)
        with convdispatch.frozen(), pytest.raises(Frozen):
            runtime.allocate(queue, 2 * MB)
    gate.set_status(cl.command_execution_status.COMPLETE)
    runtime.allocate(queue, 8 * MB)


def test_a_queue_that_keeps_nothing_is_not_waited_for(shared_pool):
    queue, pool = shared_pool()
    gate = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue, wait_for=[gate])
    queue.flush()
    pool.free_held()
    gate.set_status(cl.command_execution_status.COMPLETE)


def test_allocations_that_cuda_does_not_let_go_of_are_tried_again(shared_pool, monkeypatch):
    queue, pool = shared_pool()
    runtime.allocate(queue, 4 * MB)

    def refuse(self, name, *arguments):
        raise CudaError("cuCtxSynchronize failed: unknown error")

    with monkeypatch.context() as patch:
        patch.setattr(FakeCuda, "__call__", refuse)
        with pytest.raises(CudaError, match="unknown error"):
            pool.free_held()
    assert not any(shared.released for shared in shared_pool.imports)
    pool.free_held()
    assert all(shared.released for shared in shared_pool.imports)


def test_shared_pool_from_threads(shared_pool):
    queue, pool = shared_pool()

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(200):
            held = [runtime.allocate(queue, int(size)) for size in random.integers(1, 3 * MB, 3)]
            places = sorted((sharedpool.cuda_address(block), block.size) for block in held)
            assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(places)), places

    together(work, 4)
    assert (pool.active_bytes, pool.active_blocks) == (0, 0)


def test_blocks_too_large_to_import_are_opencls_alone(shared_pool, monkeypatch):
    queue, pool = shared_pool()
    monkeypatch.setattr(sharedpool, "safe", lambda device, size: size < 8 * MB)
    small, large = runtime.allocate(queue, 6 * MB), runtime.allocate(queue, 9 * MB)
    assert sharedpool.cuda_address(small) is not None
    assert sharedpool.cuda_address(large) is None
    assert sharedpool.cuda_address(runtime.sub_region(large, 4096, 1024)) is None
    assert sharedpool.cuda_address(runtime.fresh(queue, 8 * MB)) is None
    cl.enqueue_fill_buffer(queue, large, np.uint8(7), 0, 9 * MB)
    place, held = large.int_ptr, pool.managed_bytes
    del large
    large = runtime.allocate(queue, 9 * MB)
    assert (large.int_ptr, pool.managed_bytes) == (place, held)
    del large, small
    pool.free_held()
    assert pool.managed_bytes == 0
    assert [shared.released for shared in shared_pool.imports] == [True]
