"""Calls made again on PyTorch's CUDA tensors: what is given to the launches, and all that sends a call the usual way.

Tensors of the CPU stand for CUDA's: their device's number is -1.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import convdispatch as cd  # noqa: E402 (torch is asked for first)
from convdispatch import ConvProblem  # noqa: E402
from convdispatch.api.problem import DIRECTIONS  # noqa: E402
from convdispatch.calls.bound_call import PLACES  # noqa: E402
from convdispatch.calls.cuda_call import CudaCall  # noqa: E402
from convdispatch.calls.guarded_replay import replay_on_stream  # noqa: E402
from convdispatch.device.cuda_driver import CudaError  # noqa: E402

OPTIONS = ((1, 1), 1, 1, 1, None, "nchw", "float32", False)
STREAM = SimpleNamespace(handle=7, place=SimpleNamespace(recent=[]))


class _Launches:
    def __init__(self):
        self.given, self.error = [], None

    def program(self, *_):  # where there is a native call path, it takes none of these
        return None

    def run(self, stream, addresses):
        if self.error:
            raise self.error
        self.given.append((stream, list(addresses)))


def _made(direction="fwd", current=lambda: -1):
    """(again, its launches, what a call is given, the library)."""
    problem = ConvProblem.parse("mb1ic4ih8oc8kh3ph1").replace(direction=direction)
    shapes = [problem.x_shape, problem.w_shape, problem.y_shape]
    operands = [torch.ones(shape) for shape in shapes]
    written = PLACES[direction][2]
    library = SimpleNamespace(torch=torch, raw=lambda number: 7, current=current, streams={(-1, 7): STREAM})
    launches = _Launches()
    call = SimpleNamespace(
        problem=problem, written=written, number=-1, out_shape=problem.out_shape, launches=launches, name="one",
        place=SimpleNamespace(cuda=SimpleNamespace(context=SimpleNamespace(value=0))),
        sizes=[math.prod(shape) * 4 for shape in shapes],
    )  # fmt: skip
    call.given = lambda stream, addresses: CudaCall.given(call, stream, addresses)
    shape = None if direction == "fwd" else tuple(operands[written].shape)
    return (
        replay_on_stream(call, library, operands, OPTIONS, shape),
        launches,
        (direction, operands, OPTIONS, shape),
        library,
    )


@pytest.mark.parametrize("new", [False, True], ids=["out given", "new"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_operands_lie_where_the_launches_look(direction, new):
    again, launches, (_, operands, options, shape), _ = _made(direction)
    written, given = PLACES[direction][2], list(operands)
    if new:
        given[written] = None
    result = again(direction, given, options, shape)
    operands[written] = result
    assert result is given[written] or new
    assert tuple(result.shape) == tuple(operands[written].shape)
    assert launches.given == [(STREAM, [*(each.data_ptr() for each in operands), 0, 0])]


def _other_dtype(operands):
    operands[0] = operands[0].double()


def _other_weights_dtype(operands):
    operands[1] = operands[1].double()


def _other_shape(operands):
    operands[0] = torch.ones(1, 4, 8, 9)


def _with_gaps(operands):
    operands[0] = torch.ones(1, 4, 8, 16)[..., ::2]


def _parameter(operands):
    operands[1] = torch.nn.Parameter(operands[1])


def _numpy(operands):
    operands[0] = np.ones((1, 4, 8, 8), np.float32)


def _unaligned(operands):
    operands[0] = torch.ones(4 * 64 + 1)[1:].reshape(1, 4, 8, 8)


def _over(operands):
    operands[2] = torch.ones(8 * 64 + 64)[64:].reshape(1, 8, 8, 8)
    operands[0] = torch.empty(0).set_(operands[2].untyped_storage(), 0, (1, 4, 8, 8))


def _other_result(operands):
    operands[2] = torch.ones(1, 8, 8, 7)


def _result_with_gaps(operands):
    operands[2] = torch.ones(1, 8, 8, 8).contiguous(memory_format=torch.channels_last)


CHANGES = (
    _other_dtype, _other_weights_dtype, _other_shape, _with_gaps, _parameter, _numpy, _unaligned, _over, _other_result,
    _result_with_gaps,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_tensors_go_the_usual_way(change):
    again, launches, (direction, operands, options, shape), _ = _made()
    assert again(direction, operands, options, shape) is operands[2]
    given = list(operands)
    change(given)
    assert again(direction, given, options, shape) is None
    assert len(launches.given) == 1


def test_other_arguments_go_the_usual_way():
    again, launches, (direction, operands, options, shape), library = _made()
    assert again("bwd_data", operands, options, shape) is None
    assert again(direction, operands, ((2, 1), *options[1:]), shape) is None
    assert again(direction, operands, (np.ones(2), *options[1:]), shape) is None
    assert again(direction, operands, options, (1, 4, 8, 8)) is None
    with cd.policy(deterministic=True):
        assert again(direction, operands, options, shape) is None
    library.streams.clear()
    assert again(direction, operands, options, shape) is None
    assert not launches.given


def test_another_device_of_the_thread_goes_the_usual_way():
    number = [-1]
    again, launches, asked, _ = _made(current=lambda: number[0])
    assert again(*asked) is asked[1][2]
    number[0] = 1
    assert again(*asked) is None
    assert len(launches.given) == 1


def test_short_memory_goes_the_usual_way_and_faults_do_not():
    again, launches, asked, _ = _made()
    launches.error = CudaError("CUDA_ERROR_OUT_OF_MEMORY")
    launches.error.status = 2
    assert again(*asked) is None
    launches.error = CudaError("CUDA_ERROR_LAUNCH_FAILED")
    launches.error.status = 719
    with pytest.raises(CudaError, match="LAUNCH_FAILED"):
        again(*asked)


def test_nothing_is_made_inside_frozen():
    with cd.frozen():
        again, launches, (direction, operands, options, shape), _ = _made()
        assert again(direction, operands, options, shape) is operands[2]
        with pytest.raises(cd.Frozen):
            again(direction, [*operands[:2], None], options, shape)
    assert again(direction, operands, options, shape) is None
    assert len(launches.given) == 1
