"""Pools: statistics, limit, release, queues that are gone, parts."""

from __future__ import annotations

import gc

import numpy as np
import pyopencl as cl
import pytest

import convdispatch
from convdispatch.api.errors import Frozen, MemoryLimit
from convdispatch.device import runtime
from convdispatch.device.memory import allocator, shared_pool

pytestmark = pytest.mark.usefixtures("clean_memory")

MB = 1 << 20


def test_statistics_follow_what_is_held(queue, device):
    before = runtime.memory_statistics(device)
    block = runtime.allocate(queue, 3 * MB)
    held = runtime.memory_statistics(device)
    assert held.held_bytes - before.held_bytes >= 3 * MB
    assert held.active_bytes - before.active_bytes >= 3 * MB
    assert held.active_blocks == before.active_blocks + 1
    del block
    free = runtime.memory_statistics(device)
    assert free.held_bytes == held.held_bytes
    assert free.active_bytes == before.active_bytes
    assert free.held_blocks == before.held_blocks + 1
    runtime.release_memory(device)
    assert runtime.memory_statistics(device).held_bytes <= before.held_bytes


def test_a_limit_gives_free_blocks_back_first_and_then_refuses(queue, device):
    base = runtime.memory_statistics(device).held_bytes
    kept = runtime.allocate(queue, 4 * MB)
    waiting = runtime.allocate(queue, 16 * MB)
    del waiting
    runtime.set_memory_limit(device, base + 16 * MB)
    other = runtime.allocate(queue, 6 * MB)  # only fits when the 16 MB that wait are given back
    assert runtime.memory_statistics(device).held_bytes <= base + 16 * MB
    with pytest.raises(MemoryLimit, match="the limit is"):
        runtime.allocate(queue, 32 * MB)
    assert runtime.memory_statistics(device).limit == base + 16 * MB
    runtime.set_memory_limit(device, None)
    assert runtime.allocate(queue, 32 * MB).size >= 32 * MB
    del kept, other


def test_the_limit_reaches_the_caller_of_conv(device):
    x, w = np.ones((1, 32, 160, 160), np.float32), np.ones((32, 32, 3, 3), np.float32)
    runtime.release_memory(device)
    runtime.set_memory_limit(device, 1)
    with convdispatch.policy(solver="im2col*"), pytest.raises(MemoryLimit):
        convdispatch.conv(x, w, queue=runtime.queue(device))


def test_frozen_takes_only_what_waits(queue):
    block = runtime.allocate(queue, MB)
    place = block.int_ptr
    del block
    with convdispatch.frozen():
        assert runtime.allocate(queue, MB).int_ptr == place
        with pytest.raises(Frozen):
            runtime.allocate(queue, 64 * MB)


def gone(queue, size=4 * MB):
    """A queue of the same context whose memory was used, and that nobody holds; its address."""
    brief = cl.CommandQueue(queue.context)
    cl.enqueue_fill_buffer(brief, runtime.allocate(brief, size), np.uint8(1), 0, size)
    brief.flush()
    return brief.int_ptr


def known():
    return {queue.int_ptr for queue in allocator._pools}


def test_queues_that_are_gone_leave_no_pool(queue, device):
    """A server that makes a queue a request keeps the memory of one or two, not of all."""
    runtime.allocate(queue, MB)
    pool = allocator._pools[queue]
    if type(pool) is shared_pool.SharedPool:
        pytest.skip("memory that is CUDA's too stays")
    before, held = len(allocator._pools), runtime.memory_statistics(device).held_bytes
    later = cl.CommandQueue(queue.context)  # made first: a queue made later may lie where one that is gone lay
    places = {gone(queue) for _ in range(20)}
    assert len(allocator._pools) <= before + 1
    assert runtime.memory_statistics(device).held_bytes <= held + 5 * MB
    assert allocator._pools[queue] is pool
    runtime.allocate(later, 1)
    assert not places & known()
    assert allocator._caller_queues.keys() == allocator._pools.keys()


def test_memory_in_use_keeps_the_pool_of_a_queue_that_is_gone(queue):
    brief, later, last = (cl.CommandQueue(queue.context) for _ in range(3))
    block, place = runtime.allocate(brief, 4 * MB), brief.int_ptr
    if type(allocator._pools[brief]) is shared_pool.SharedPool:
        pytest.skip("memory that is CUDA's too stays")
    del brief
    runtime.allocate(later, 1)
    assert place in known()
    del block
    runtime.allocate(last, 1)
    assert place not in known()


def test_a_queue_that_was_a_context_manager_is_forgotten_without_a_word(queue, recwarn):
    later = cl.CommandQueue(queue.context)
    with cl.CommandQueue(queue.context) as brief:
        runtime.allocate(brief, MB)
        place = brief.int_ptr
    del brief
    before = len(recwarn)
    runtime.memory_statistics(queue.device)
    runtime.allocate(later, 1)
    assert len(recwarn) == before
    assert place not in known() or type(allocator._make_pool(queue)) is shared_pool.SharedPool


def test_parts_of_pooled_memory_hold_the_block(queue, device):
    align = runtime.device_info(device).buffer_alignment
    block = runtime.allocate(queue, 4 * MB)
    cl.enqueue_copy(queue, block, np.arange(MB, dtype=np.int32))
    part = runtime.sub_region(block, align, 4 * align)
    inner = runtime.sub_region(part, align, 2 * align)  # a part of a part
    del block, part
    gc.collect()
    again = runtime.allocate(queue, 4 * MB)
    cl.enqueue_fill_buffer(queue, again, np.int32(-1), 0, 4 * MB)
    got = np.empty(2 * align // 4, np.int32)
    cl.enqueue_copy(queue, got, inner)
    assert np.array_equal(got, np.arange(2 * align // 4, 4 * align // 4))


def test_fresh_memory_has_its_content(queue):
    content = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    got = np.empty_like(content)
    cl.enqueue_copy(queue, got, runtime.fresh(queue, content.nbytes, content))
    assert np.array_equal(got, content)
    assert runtime.fresh(queue, 0).size >= 1
