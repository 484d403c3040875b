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

torch = pytest.importorskip("torch")

import host_cuda  # noqa: E402 (torch is asked for first)
from native_stand_in import _RUN, stand_in  # noqa: E402, F401
from test_calls_replay import CHANGES, OPTIONS  # noqa: E402

import convdispatch as cd  # noqa: E402
from convdispatch import ConvProblem  # noqa: E402
from convdispatch.api.problem import DIRECTIONS  # noqa: E402
from convdispatch.calls import guarded_replay  # noqa: E402
from convdispatch.calls.bound_call import PLACES  # noqa: E402
from convdispatch.device.native import loading  # noqa: E402

_SHARED = 65536
"""Bytes that a launch gives."""


class _Launches:
    """One kernel of three addresses and a number, and a word of scratch memory after 300 bytes of it."""

    def program(self, launcher, name, context, sizes, strides):
        packed = struct.pack("QQQQi", 0, 0, 0, 0, 42)
        places = [(0, 0, 0), (8, 1, 0), (16, 2, 0), (24, 5, 300)]
        launches = [(9, (2, 3, 4, 32, 1, 1, _SHARED), 1, packed, places)]
        return launcher.program(name, context, launches, [0], 512, sizes, strides)


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
        call = SimpleNamespace(
            problem=problem, written=written, number=-1, out_shape=problem.out_shape, launches=_Launches(),
            sizes=[math.prod(each.shape) * 4 for each in operands], given=None,
            place=SimpleNamespace(cuda=SimpleNamespace(context=SimpleNamespace(value=host_cuda.CONTEXT))),
            name="one",
        )  # fmt: skip
        library = SimpleNamespace(torch=torch, raw=lambda number: 77, current=lambda: -1, streams={})
        shape = None if direction == "fwd" else tuple(operands[written].shape)
        again = guarded_replay.replay_on_stream(call, library, operands, OPTIONS, shape)
        return again, (direction, operands, OPTIONS, shape)

    make.given, make.status, make.context = given, status, stand_in.context
    yield make
    stand_in.library.stand_in_for(stand_in._run)


@pytest.mark.parametrize("new", [False, True], ids=["out given", "new"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_operands_lie_where_the_launch_looks(made, direction, new):
    again, (_, operands, options, shape) = made(direction)
    written, asked = PLACES[direction][2], list(operands)
    if new:
        asked[written] = None
    result = again(direction, tuple(asked), options, shape)
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


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_other_tensors_go_the_usual_way(made, change):
    again, (direction, operands, options, shape) = made()
    assert again(direction, operands, options, shape) is operands[2]
    given = list(operands)
    change(given)
    assert again(direction, tuple(given), options, shape) is None
    assert len(made.given) == 1


def test_other_arguments_go_the_usual_way(made):
    again, (direction, operands, options, shape) = made()
    assert again("bwd_data", operands, options, shape) is None
    assert again(direction, operands, ((2, 1), *options[1:]), shape) is None
    assert again(direction, operands, (np.ones(2), *options[1:]), shape) is None
    assert again(direction, operands, options, (1, 4, 8, 8)) is None
    with cd.policy(deterministic=True):
        assert again(direction, operands, options, shape) is None
    made.context(0xBAD)
    assert again(direction, operands, options, shape) is None
    made.context()
    assert not made.given
    made.status[0] = 719
    assert again(direction, operands, options, shape) is None
    made.status[0] = 0
    assert again(direction, operands, options, shape) is operands[2]


def test_nothing_is_made_inside_frozen(made):
    with cd.frozen():
        again, (direction, operands, options, shape) = made()
        assert again(direction, operands, options, shape) is operands[2]
        assert again(direction, (*operands[:2], None), options, shape) is None
    assert again(direction, operands, options, shape) is None
    assert len(made.given) == 1
