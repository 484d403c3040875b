"""What a search sees of a buffer on its device: the unwritten, the differing, a few elements, a checksum."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest

from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement.search.trial import PATTERN, OutputScan
from convdispatch.measurement.search.trialdata import RANDOM_PERIOD, random_operands

COUNT = 100_003


@pytest.fixture(params=[2, 4, 8])
def seen(request, device):
    """A OutputScan, an array of random bits, and what puts an array on the device."""
    queue = cl.CommandQueue(runtime.context(device))
    values = np.random.default_rng(0).integers(0, 2**16, (COUNT, request.param // 2), np.uint16)
    values[values == PATTERN] = 0

    def put(array):
        return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array)

    return OutputScan(queue, request.param), values, put


def test_what_holds_the_pattern_whole_is_unwritten(seen):
    look, values, put = seen
    assert look.unwritten(put(values), COUNT) == 0
    values[[0, 777, -1]] = PATTERN
    values[5, 0] = PATTERN
    assert look.unwritten(put(values), COUNT) == 3 + (values.shape[1] == 1)
    assert look.unwritten(put(values), COUNT - 1) == 2 + (values.shape[1] == 1), "not what lies behind"


def test_one_bit_is_a_difference(seen):
    look, values, put = seen
    one = put(values)
    assert look.differ(one, put(values), COUNT) == 0
    values[0, -1] ^= 1
    values[-1, 0] ^= 1 << 15
    assert look.differ(one, put(values), COUNT) == 2


def test_elements_are_gathered(seen):
    look, values, put = seen
    at = np.array([0, COUNT - 1, 17, 17])
    assert look.gather(put(values), at).tobytes() == values[at].tobytes()


def test_the_checksum_sees_a_bit_an_exchange_and_a_move(seen):
    look, values, put = seen
    before = look.checksum(put(values), COUNT)
    assert look.checksum(put(values.copy()), COUNT) == before
    changed = [values.copy() for _ in range(4)]
    changed[0][-1, -1] ^= 1 << 15
    changed[1][[3, 9]] = changed[1][[9, 3]]
    changed[2][:] = np.roll(values, 1, axis=0)
    changed[3][0] = 0
    sums = {look.checksum(put(array), COUNT) for array in changed}
    assert len(sums) == 4
    assert before not in sums


def test_large_operands_repeat_a_block_that_no_axis_divides():
    problem = ConvProblem.parse("mb3ic64ih224oc1kh1")
    x = random_operands(problem, 0)["x"]
    assert x.shape == problem.x_shape
    assert abs(x.mean()) < 1e-2
    assert abs(x.std() - 1) < 1e-2
    assert np.array_equal(x.reshape(-1)[:1000], x.reshape(-1)[RANDOM_PERIOD : RANDOM_PERIOD + 1000])
    images = x.reshape(3, -1)[:, :1000]
    assert not np.array_equal(images[0], images[1])
    assert all(RANDOM_PERIOD % divisor for divisor in range(2, int(RANDOM_PERIOD**0.5) + 1))
