"""Pools: statistics, limit, release, parts; and pools of memory shared with CUDA, here with a CUDA that is none."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import numpy as np
import pyopencl as cl
import pytest

import convdispatch
from convdispatch import imports, memory, runtime, sharedpool
from convdispatch.api.errors import ConvDispatchWarning, Frozen, MemoryLimit
from convdispatch.cuda import CudaError, prompt

MB = 1 << 20


@pytest.fixture(autouse=True)
def clean(device):
    """Each test begins with no free blocks, and ends without a limit."""
    gc.collect()
    runtime.release_memory(device)
    yield
    runtime.set_memory_limit(device, None)


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
    return {queue.int_ptr for queue in memory._pools}


def test_queues_that_are_gone_leave_no_pool(queue, device):
    """A server that makes a queue a request keeps the memory of one or two, not of all."""
    runtime.allocate(queue, MB)
    pool = memory._pools[queue]
    if type(pool) is sharedpool.SharedPool:
        pytest.skip("memory that is CUDA's too stays")
    before, held = len(memory._pools), runtime.memory_statistics(device).held_bytes
    places = {gone(queue) for _ in range(20)}
    assert len(memory._pools) <= before + 1
    assert runtime.memory_statistics(device).held_bytes <= held + 5 * MB
    assert memory._pools[queue] is pool
    runtime.allocate(cl.CommandQueue(queue.context), 1)
    assert not places & known()
    assert memory._callers.keys() == memory._pools.keys()


def test_memory_in_use_keeps_the_pool_of_a_queue_that_is_gone(queue):
    brief = cl.CommandQueue(queue.context)
    block, place = runtime.allocate(brief, 4 * MB), brief.int_ptr
    if type(memory._pools[brief]) is sharedpool.SharedPool:
        pytest.skip("memory that is CUDA's too stays")
    del brief
    runtime.allocate(cl.CommandQueue(queue.context), 1)
    assert place in known()
    del block
    runtime.allocate(cl.CommandQueue(queue.context), 1)
    assert place not in known()


def test_a_queue_that_was_a_context_manager_is_forgotten_without_a_word(queue, recwarn):
    with cl.CommandQueue(queue.context) as brief:
        runtime.allocate(brief, MB)
        place = brief.int_ptr
    del brief
    before = len(recwarn)
    runtime.memory_statistics(queue.device)
    runtime.allocate(cl.CommandQueue(queue.context), 1)
    assert len(recwarn) == before
    assert place not in known() or type(memory._make_pool(queue)) is sharedpool.SharedPool


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


class FakeShared:
    """Stands for CUDA's view: an address that nothing is at."""

    places = 1 << 40

    def __init__(self, size):
        self.size, self.address = size, FakeShared.places
        FakeShared.places += size + (1 << 30)
        self.released = False

    def release(self):
        self.released = True


class FakeCuda:
    def __init__(self):
        self.calls = []

    def __call__(self, name, *arguments):
        self.calls.append(name)


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

    monkeypatch.setattr(memory, "_arenas", {context: arena})
    monkeypatch.setattr(memory, "_pools", {})
    monkeypatch.setattr(memory, "_callers", {})

    def make(out_of_order=False):
        flags = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE if out_of_order else 0
        queue = cl.CommandQueue(context, properties=flags)
        return queue, memory._make_pool(queue)

    make.imports = made
    return make


def test_shared_blocks_are_aligned_apart_and_used_again(shared_pool):
    queue, pool = shared_pool()
    sizes = [1, 500, 512, 513, 5000, 70_000, MB, MB + 1, 5 * MB, 33 * MB + 7]
    blocks = [runtime.allocate(queue, size) for size in sizes]
    spans = sorted((memory.cuda_address(block), block.size) for block in blocks)
    assert all(address % 512 == 0 for address, _ in spans)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(spans))
    for block, size in zip(blocks, sizes, strict=True):
        assert size <= block.size <= max(512, 2 * size, size * 9 / 8 + 2 * MB)
        cl.enqueue_fill_buffer(queue, block, np.uint8(7), 0, size)
    places = {size: memory.cuda_address(block) for size, block in zip(sizes, blocks, strict=True)}
    imports = len(shared_pool.imports)
    del blocks, block
    assert pool.active_bytes == 0
    assert {size: memory.cuda_address(runtime.allocate(queue, size)) for size in (5 * MB,)} == {5 * MB: places[5 * MB]}
    assert len(shared_pool.imports) == imports


def test_shared_parts_know_their_address(shared_pool):
    queue, _ = shared_pool()
    for size in (100_000, 4 * MB):
        block = runtime.allocate(queue, size)
        part = runtime.sub_region(block, 4096, 1024)
        assert memory.cuda_address(part) == memory.cuda_address(block) + 4096
        found, offset = memory.shared_block(memory.cuda_address(block) + 4100)
        assert (found.int_ptr, offset) == (block.int_ptr, 4100)
    assert memory.shared_block(12345) is None
    assert memory.cuda_address(cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)) is None


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
    first = memory.cuda_address(block)
    cl.enqueue_fill_buffer(queue, block, np.uint8(1), 0, MB, wait_for=[gate])
    del block
    assert memory.cuda_address(runtime.allocate(queue, 4 * MB)) != first  # still to be written
    gate.set_status(cl.command_execution_status.COMPLETE)
    queue.finish()
    places = {memory.cuda_address(block) for block in [runtime.allocate(queue, 4 * MB) for _ in range(2)]}
    assert first in places


def test_shared_memory_of_a_queue_that_is_gone_stays(shared_pool):
    """CUDA's side of it may be in use elsewhere, which OpenCL does not see."""
    queue, pool = shared_pool()
    runtime.allocate(queue, 6 * MB)
    queue.finish()
    del queue
    other, _ = shared_pool()
    assert pool in memory._pools.values()
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
            raise CudaError("cuMemCreate failed: out of memory")
        return fine(arena, size)

    monkeypatch.setattr(sharedpool.Arena, "_import", refuse)
    assert live() == 10 * MB
    yield queue, pool, live
    del other


def test_where_the_device_is_full_what_waits_goes_back(full):
    queue, pool, live = full
    block = runtime.allocate(queue, 8 * MB)
    assert live() == 8 * MB
    with pytest.raises(CudaError, match="out of memory"):
        runtime.allocate(queue, 10 * MB)
    with pytest.raises(CudaError, match="out of memory"):
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
    with prompt, pytest.raises(CudaError):
        runtime.allocate(queue, 8 * MB)
    runtime.set_memory_limit(device, 5 * MB)
    with prompt, pytest.raises(CudaError):
        runtime.allocate(queue, 8 * MB)
    assert live() == 10 * MB


def test_a_limit_where_a_thread_must_not_wait(shared_pool, device):
    queue, _ = shared_pool()
    runtime.allocate(queue, 4 * MB)
    gate = cl.UserEvent(queue.context)
    cl.enqueue_barrier(queue, wait_for=[gate])
    runtime.set_memory_limit(device, 7 * MB)
    with prompt, pytest.raises(MemoryLimit):
        runtime.allocate(queue, 6 * MB)
    gate.set_status(cl.command_execution_status.COMPLETE)
    runtime.allocate(queue, 6 * MB)


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
    failures = []

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(200):
            held = [runtime.allocate(queue, int(size)) for size in random.integers(1, 3 * MB, 3)]
            places = sorted((memory.cuda_address(block), block.size) for block in held)
            if any(a + size > b for (a, size), (b, _) in itertools.pairwise(places)):
                failures.append(places)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (pool.active_bytes, pool.active_blocks) == (0, 0)


def test_blocks_too_large_to_import_are_opencls_alone(shared_pool, monkeypatch):
    queue, pool = shared_pool()
    monkeypatch.setattr(sharedpool, "safe", lambda device, size: size < 8 * MB)
    small, large = runtime.allocate(queue, 6 * MB), runtime.allocate(queue, 9 * MB)
    assert memory.cuda_address(small) is not None
    assert memory.cuda_address(large) is None
    assert memory.cuda_address(runtime.sub_region(large, 4096, 1024)) is None
    assert memory.cuda_address(runtime.fresh(queue, 8 * MB)) is None
    cl.enqueue_fill_buffer(queue, large, np.uint8(7), 0, 9 * MB)
    place, held = large.int_ptr, pool.managed_bytes
    del large
    large = runtime.allocate(queue, 9 * MB)
    assert (large.int_ptr, pool.managed_bytes) == (place, held)
    del large, small
    pool.free_held()
    assert pool.managed_bytes == 0
    assert [shared.released for shared in shared_pool.imports] == [True]


LARGE = imports.USUAL + 1


@pytest.fixture
def another_process(monkeypatch, tmp_path):
    """``begin()``: as in a new process. What is kept lies in a new folder."""
    monkeypatch.setattr(imports, "_folder", lambda: tmp_path / "imports")
    monkeypatch.delenv(imports.SWITCH, raising=False)

    def begin():
        monkeypatch.setattr(imports, "_known", {})

    begin()
    return begin


@pytest.fixture
def outcomes(monkeypatch, another_process):
    """What the child that tries a large import ends with, one after the other."""
    made = []
    monkeypatch.setattr(imports, "_tried", lambda device: (made.pop(0), "its last words"))
    return made


@pytest.mark.parametrize(("status", "expected"), [(0, True), (-11, False), (-6, False), (imports._REFUSED, False)])
def test_a_child_tries_large_imports_once(device, outcomes, another_process, status, expected):
    outcomes.append(status)
    assert imports.safe(device, imports.USUAL)
    assert outcomes == [status]  # nobody asked for a large one yet
    assert imports.safe(device, LARGE) is expected
    assert imports.safe(device, LARGE) is expected
    another_process()
    assert imports.safe(device, LARGE) is expected


@pytest.mark.parametrize("status", [imports._NO_MEMORY, 1, None, -9])
def test_what_says_nothing_of_the_driver_is_not_kept(device, outcomes, another_process, status):
    outcomes += [status, 0]
    with pytest.warns(ConvDispatchWarning, match="its last words.*CONVDISPATCH_LARGE_IMPORTS"):
        assert not imports.safe(device, LARGE)
    assert not imports.safe(device, LARGE)  # nor asked again in this process
    another_process()
    assert imports.safe(device, LARGE)


def test_two_threads_start_one_child(device, another_process, monkeypatch):
    started = []

    def tried(device):
        started.append(device)
        time.sleep(0.05)
        return 0, ""

    monkeypatch.setattr(imports, "_tried", tried)
    threads = [threading.Thread(target=imports.safe, args=(device, LARGE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1


def test_a_variable_answers_instead(device, outcomes, monkeypatch):
    monkeypatch.setenv(imports.SWITCH, "1")
    assert imports.safe(device, LARGE)


def test_the_child_says_what_went_wrong(device):
    """A real child: on a device that is not CUDA's it ends with an error and its words."""
    if runtime.cuda_devices(runtime.device_info(device)):
        pytest.skip("devices that are not CUDA's only")
    status, said = imports._tried(device)
    assert status == 1
    assert "is not CUDA's" in said


@pytest.mark.parametrize(("command", "seconds"), [("import time; time.sleep(60)", 1), ("import os; os.abort()", 60)])
def test_a_child_that_hangs_or_crashes(device, monkeypatch, tmp_path, command, seconds):
    monkeypatch.setattr(imports, "_CHILD", command)
    monkeypatch.setattr(imports, "_SECONDS", seconds)
    monkeypatch.chdir(tmp_path)  # for the core that some systems leave
    status, said = imports._tried(device)
    assert (status is None and "no answer" in said) if seconds == 1 else status in imports._CRASHES


def test_large_blocks_on_the_device(queue, device, another_process):
    """A block that some drivers cannot import is memory all the same."""
    large = 512 * MB
    if not runtime.cuda_devices(runtime.device_info(device)):
        pytest.skip("memory that is CUDA's too only")
    block = runtime.allocate(queue, large)
    assert (memory.cuda_address(block) is not None) == imports.safe(device, large)
    cl.enqueue_fill_buffer(queue, block, np.uint8(7), 0, large)
    last = np.zeros(4, np.uint8)
    cl.enqueue_copy(queue, last, block, src_offset=large - 4)
    assert (last == 7).all()
