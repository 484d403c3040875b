"""conv() made again by the native call path: what is launched, and all that sends a call the usual way.

Tensors of the CPU stand for CUDA's, a library of C for the driver.
"""

from __future__ import annotations

import ctypes
import gc
import math
import struct
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import host_cuda  # noqa: E402 (torch is asked for first)
from native_stand_in import _RUN, stand_in  # noqa: E402, F401

import convdispatch as cd  # noqa: E402
from convdispatch import ConvProblem  # noqa: E402
from convdispatch.api.problem import DIRECTIONS  # noqa: E402
from convdispatch.calls.call import PLACES  # noqa: E402
from convdispatch.calls.stream_call import StreamCall  # noqa: E402
from convdispatch.device.native import loading  # noqa: E402

OPTIONS = ((1, 1), 1, 1, 1, None, "nchw", "float32", False)
_SHARED = 65536
"""Bytes that a launch gives."""


class _Launches:
    """One kernel of three addresses and a number, and a word of scratch memory after 300 bytes of it."""

    def program(self, launcher):
        packed = struct.pack("QQQQi", 0, 0, 0, 0, 42)
        places = [(0, 0, 0), (8, 1, 0), (16, 2, 0), (24, 5, 300)]
        launches = [(9, (2, 3, 4, 32, 1, 1, _SHARED), 1, packed, places)]
        return launcher.program("one", host_cuda.CONTEXT, launches, [0], 512, self.shape, self.strides)


@pytest.fixture
def made(stand_in):  # noqa: F811
    """``made(direction)`` answers (again, what a call is given); ``made.given`` has what was launched."""
    given, status = [], [0]

    def kernel(function, arguments, size, stream, early, shared):
        given.append((function, struct.unpack("QQQQi", ctypes.string_at(arguments, size)), stream))
        return status[0] if shared == _SHARED else 1

    run = _RUN(kernel)
    stand_in.library.stand_in_for(run)

    def make(direction="fwd"):
        problem = ConvProblem.parse("mb1ic4ih8oc8kh3ph1").replace(direction=direction)
        operands = tuple(torch.ones(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
        written = PLACES[direction][2]
        launches = _Launches()
        launches.shape, launches.strides = problem.out_shape, operands[written].stride()
        call = SimpleNamespace(
            problem=problem, written=written, arrays=SimpleNamespace(number=-1), out_shape=problem.out_shape,
            sizes=[math.prod(each.shape) * 4 for each in operands], launches=launches,
            place=SimpleNamespace(blocking=False), program=launches.program,
        )  # fmt: skip
        library = SimpleNamespace(torch=torch, records_gradients=True)
        shape = None if direction == "fwd" else tuple(operands[written].shape)
        again = StreamCall.replay(call, library, (*operands, None, None, None), OPTIONS, shape)
        return again, (operands, OPTIONS, shape)

    make.given, make.status, make.context = given, status, stand_in.context
    yield make
    stand_in.library.stand_in_for(stand_in._run)


@pytest.mark.parametrize("new", [False, True], ids=["out given", "new"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_operands_lie_where_the_launch_looks(made, direction, new):
    again, (operands, options, shape) = made(direction)
    written, asked = PLACES[direction][2], list(operands)
    if new:
        asked[written] = None
    result = again(tuple(asked), options, shape)
    assert result is asked[written] or new
    assert tuple(result.shape) == tuple(operands[written].shape)
    assert result.is_contiguous()
    asked[written] = result
    ((function, arguments, stream),) = made.given
    assert (function, stream) == (9, 77)
    assert list(arguments[:3]) == [each.data_ptr() for each in asked]
    assert arguments[3] % 64 == 300 % 64
    assert arguments[4] == 42
    assert loading.launcher().launches()[0] == "one"
    held = [weakref.ref(each) for each in asked] if new else []
    del asked, operands, result, again
    gc.collect()
    assert not new or held[written]() is None


def over(x, w, y):
    y = torch.ones(8 * 64 + 64)[64:].reshape(1, 8, 8, 8)
    return torch.empty(0).set_(y.untyped_storage(), 0, (1, 4, 8, 8)), w, y


CHANGES = {
    "other dtype": lambda x, w, y: (x.double(), w, y),
    "other dtype of w": lambda x, w, y: (x, w.double(), y),
    "other shape": lambda x, w, y: (torch.ones(1, 4, 8, 9), w, y),
    "with gaps": lambda x, w, y: (torch.ones(1, 4, 8, 16)[..., ::2], w, y),
    "parameter": lambda x, w, y: (x, torch.nn.Parameter(w), y),
    "NumPy's": lambda x, w, y: (np.ones((1, 4, 8, 8), np.float32), w, y),
    "unaligned": lambda x, w, y: (torch.ones(4 * 64 + 1)[1:].reshape(1, 4, 8, 8), w, y),
    "result over x": over,
    "other result": lambda x, w, y: (x, w, torch.ones(1, 8, 8, 7)),
    "result with gaps": lambda x, w, y: (x, w, y.contiguous(memory_format=torch.channels_last)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_tensors_go_the_usual_way(made, change):
    again, (operands, options, shape) = made()
    assert again(operands, options, shape) is operands[2]
    assert again(CHANGES[change](*operands), options, shape) is None
    assert len(made.given) == 1


def test_other_arguments_go_the_usual_way(made):
    again, (operands, options, shape) = made()
    assert again("bwd_data", operands, options, shape) is None
    assert again(operands, ((2, 1), *options[1:]), shape) is None
    assert again(operands, (np.ones(2), *options[1:]), shape) is None
    assert again(operands, options, (1, 4, 8, 8)) is None
    with cd.policy(deterministic=True):
        assert again(operands, options, shape) is None
    made.context(0xBAD)
    assert again(operands, options, shape) is None
    made.context()
    assert not made.given
    made.status[0] = 719
    assert again(operands, options, shape) is None
    made.status[0] = 0
    assert again(operands, options, shape) is operands[2]


def test_nothing_is_made_inside_frozen(made):
    with cd.frozen():
        again, (operands, options, shape) = made()
        assert again(operands, options, shape) is operands[2]
        assert again((*operands[:2], None), options, shape) is None
    assert again(operands, options, shape) is None
    assert len(made.given) == 1
