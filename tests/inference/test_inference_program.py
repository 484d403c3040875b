"""Recorded programs: what is replayed computes what was recorded, in shared memory."""

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convdispatch.api import Launch, build, conv
from convdispatch.device import runtime
from convdispatch.device.commands.recording import Recording, Slot
from convdispatch.device.replay.arena import lay_out, lifetimes
from convdispatch.device.replay.program import Program
from convdispatch.tensor import Tensor

N = 256
TEXT = """
kernel void start(global float *y, float v) { y[get_global_id(0)] = v + get_global_id(0); }
kernel void sum(global const float *a, global const float *b, global float *y) {
  int i = get_global_id(0);
  float s = 0;
  for (int k = 0; k < 300; ++k) s += a[i] * 0.5f - s;
  y[i] = a[i] + 2 * b[(i + 1) % get_global_size(0)] + 0 * s;
}
"""


@pytest.fixture(scope="module")
def queue():
    return cl.CommandQueue(runtime.context(runtime.default_device()))


@st.composite
def graphs(draw):
    """For each step the two earlier steps that it adds, or none: a number."""
    steps = []
    for i in range(draw(st.integers(2, 14))):
        source = i == 0 or draw(st.integers(0, 5)) == 0
        steps.append(() if source else tuple(draw(st.integers(max(0, i - 6), i - 1)) for _ in range(2)))
    return steps


def record(queue, steps):
    program = build(queue.context, TEXT)
    start = Launch(program, "start", (N,), None, "y v", names=("y", "v"))
    add = Launch(program, "sum", (N,), None, "a b y", names=("a", "b", "y"))
    recording, slots, values = Recording(queue), [], []
    for i, inputs in enumerate(steps):
        recording.step = i
        slots.append(recording.allocate(4 * N, persistent=i == len(steps) - 1))
        if inputs:
            a, b = inputs
            add(recording, (slots[a], slots[b], slots[i]))
            values.append(values[a] + 2 * np.roll(values[b], -1))
        else:
            start(recording, (slots[i], np.float32(i)))
            values.append(np.arange(N, dtype=np.float64) + i)
    return recording, slots[-1], values[-1]


@settings(deadline=None, max_examples=60)
@given(steps=graphs())
def test_any_graph(queue, steps):
    recording, last, expected = record(queue, steps)
    program = Program(recording)
    got = np.empty(N, np.float32)
    for _ in range(2):  # a second run must not overtake the first, nor find its memory changed
        cl.enqueue_fill_buffer(queue, program.memory(last), np.float32(np.nan), 0, 4 * N)
        program.run()
        cl.enqueue_copy(queue, got, program.memory(last))
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_chain_needs_two_slots(queue):
    recording, *_ = record(queue, [()] + [(i, i) for i in range(9)])
    arena = lay_out(lifetimes([command.slots for command in recording.commands]), 128)
    assert arena.size == 2 * 4 * N
    assert len(arena.offsets) == 9


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30),
    st.sampled_from([1, 128, 4096]),
)
def test_slots_in_use_together_never_overlap(sizes, align):
    from convdispatch.device.replay.arena import Lifetime

    used = [Lifetime(Slot(size), min(a, b), max(a, b)) for size, a, b in sizes]
    arena = lay_out(used, align)
    for i, one in enumerate(used):
        assert arena.offsets[one.slot] % align == 0
        assert arena.offsets[one.slot] + one.slot.size <= arena.size
        for other in used[:i]:
            if one.meets(other):
                low, high = sorted((one, other), key=lambda life: arena.offsets[life.slot])
                assert arena.offsets[low.slot] + low.slot.size <= arena.offsets[high.slot]
    assert arena.size <= sum(-(-life.slot.size // align) * align for life in used)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_conv_is_recorded_with_its_workspace(queue, layout):
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 6, 9, 9) if layout == "nchw" else (2, 9, 9, 6), dtype=np.float32)
    w = random.standard_normal((8, 6, 3, 3) if layout == "nchw" else (8, 3, 3, 6), dtype=np.float32)
    v = random.standard_normal((8, 8, 3, 3) if layout == "nchw" else (8, 3, 3, 8), dtype=np.float32)
    expected = conv(conv(x, w, padding=1, activation="relu", layout=layout), v, padding=1, layout=layout)

    recording = Recording(queue)
    source = Tensor(recording.allocate(x.nbytes, persistent=True), x.shape, x.dtype, recording)
    first = conv(source, Tensor.from_numpy(w, queue), padding=1, activation="relu", layout=layout)
    second = conv(first, Tensor.from_numpy(v, queue), padding=1, layout=layout)
    second.base_data.persistent = True
    program = Program(recording)
    cl.enqueue_copy(queue, program.memory(source.base_data), x)
    program.run()
    got = np.empty(second.shape, np.float32)
    cl.enqueue_copy(queue, got, program.memory(second.base_data))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
