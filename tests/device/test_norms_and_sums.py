"""Norms of x, and sums of channels: many parts, means much larger than the spread, the same bits each time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyopencl as cl
import pytest

from convdispatch import ConvProblem
from convdispatch.device import runtime
from convdispatch.device.plans import norms_and_sums
from convdispatch.device.plans.norms_and_sums import MERGED_PARTS, _rounds, normalising, summing, summing_bytes
from convdispatch.measurement import reference


def sums_of(queue, problem: ConvProblem, y: np.ndarray) -> np.ndarray:
    """``sums`` of a result, from workspace that holds NaN."""
    workspace = np.full(summing_bytes(problem) // 4, np.nan, np.float32)
    sums = np.zeros(problem.form("sums")[0], np.float32)
    memory = [runtime.fresh(queue, array.nbytes, array) for array in (y, workspace, sums)]
    operands = (None, None, memory[0], memory[1], None, None, None, None, memory[2])
    for launch in summing(queue.context, problem):
        launch(queue, operands).wait()
    cl.enqueue_copy(queue, sums, memory[2])
    return sums


def welford(values: np.ndarray) -> np.float32:
    """The variance by Welford's recurrence in float32."""
    mean = squares = np.float32(0)
    for count, value in enumerate(values, 1):
        distance = value - mean
        mean += distance / np.float32(count)
        squares += distance * (value - mean)
    return squares / np.float32(len(values))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_variances_where_the_mean_is_far_from_zero(queue, layout):
    """1e4 with a deviation of 1e-2: the error is that of Welford's recurrence, not of sums of squares."""
    problem = ConvProblem.parse("mb36ic4ih61oc2kh1+sums").replace(layout=layout)
    random = np.random.default_rng(1)
    y = (1e4 + 1e-2 * random.standard_normal(problem.y_shape)).astype(np.float32)
    sums = sums_of(queue, problem, y)
    assert reference.sums_fault(problem, y, sums, {}) is None
    channels = np.moveaxis(y, 1 if layout == "nchw" else -1, 0).reshape(2, -1)
    exact = channels.astype(np.float64).var(axis=1)
    assert _rounds(summing_bytes(problem) // (6 * 4))[0] > MERGED_PARTS
    own = np.abs(sums[2] / sums[0] - exact)
    recurrence = np.array([abs(welford(channel) - variance) for channel, variance in zip(channels, exact, strict=True)])
    assert own.max() <= 2 * recurrence.max()
    squares = (channels * channels).mean(axis=1) - channels.mean(axis=1) ** 2
    assert np.abs(squares - exact).min() > 100 * own.max()  # what sums of squares would have given
    assert sums.tobytes() == sums_of(queue, problem, y).tobytes()


def test_one_element_and_constant_channels(queue):
    problem = ConvProblem.parse("mb1ic4ih1oc3kh1+sums")
    y = np.array([1.5, -2.0, 3e38], np.float32).reshape(problem.y_shape)
    assert sums_of(queue, problem, y).tolist() == [[1, 1, 1], [1.5, -2.0, np.float32(3e38)], [0, 0, 0]]
    problem = ConvProblem.parse("mb3ic4ih40oc2kh1+sums")
    y = np.broadcast_to(np.float32([0.1, 1e30]).reshape(1, 2, 1, 1), problem.y_shape).copy()
    assert sums_of(queue, problem, y).tolist() == [[4800, 4800], [np.float32(0.1), np.float32(1e30)], [0, 0]]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("text", [
    "fwd_f32_nhwc_mb2ic12ih5oc1kh1+norm(relu)", "fwd_f16_mb2ic3ih6oc1kh1+norm(identity)",
    "fwd_f32_mb2ic3ih5oc1kh1+norm(relu)", "fwd_f32_mb3ic8ih1oc1kh1+norm(relu)",
])  # fmt: skip
def test_norms_of_every_width(queue, monkeypatch, text, kind):
    """Four elements at once on a GPU, one where channels or pixels are no fours; behind an offset, with nothing written
    before or after it."""
    info = norms_and_sums.device_info
    monkeypatch.setattr(norms_and_sums, "device_info", lambda device: dataclasses.replace(info(device), type=kind))
    problem, random = ConvProblem.parse(text), np.random.default_rng(0)
    dtype, channel_axis = np.dtype(problem.dtype), 1 if problem.layout == "nchw" else -1
    x = random.standard_normal(problem.x_shape).astype(dtype)
    table = random.standard_normal((3, problem.ic)).astype(np.float32)
    start = 128 // dtype.itemsize
    result = np.full(x.size + 2 * start, 7, dtype)
    memory = [runtime.fresh(queue, array.nbytes, array) for array in (result, x, table)]
    names = ("to", "x", "norm")
    normalising(queue.context, problem, names, start=128, names=names)(queue, memory, None).wait()
    cl.enqueue_copy(queue, result, memory[0])
    mean, scale, shift = np.moveaxis(table.reshape(3, *[1] * (x.ndim - 1), problem.ic), -1, channel_axis % x.ndim + 1)
    expected = (x.astype(np.float64) - mean) * scale + shift
    if "relu" in text:
        expected = np.maximum(expected, 0)
    assert (result[:start] == 7).all()
    assert (result[start + x.size :] == 7).all()
    np.testing.assert_allclose(result[start : start + x.size].reshape(x.shape), expected, rtol=2e-3, atol=2e-3)
