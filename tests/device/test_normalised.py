"""The launch that writes a norm of x: four elements at once on a GPU, and one where channels or pixels are no fours."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyopencl as cl
import pytest

from convdispatch import ConvProblem
from convdispatch.device import runtime
from convdispatch.device.plans import normalised


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("text", [
    "fwd_f32_nhwc_mb2ic12ih5oc1kh1+norm(relu)", "fwd_f16_mb2ic3ih6oc1kh1+norm(identity)",
    "fwd_f32_mb2ic3ih5oc1kh1+norm(relu)", "fwd_f32_mb3ic8ih1oc1kh1+norm(relu)",
])  # fmt: skip
def test_every_width(queue, monkeypatch, text, kind):
    """Behind an offset, with nothing written before or after it."""
    device_info = normalised.device_info
    monkeypatch.setattr(normalised, "device_info", lambda device: dataclasses.replace(device_info(device), type=kind))
    problem, random = ConvProblem.parse(text), np.random.default_rng(0)
    dtype, channel_axis = np.dtype(problem.dtype), 1 if problem.layout == "nchw" else -1
    x = random.standard_normal(problem.x_shape).astype(dtype)
    table = random.standard_normal((3, problem.ic)).astype(np.float32)
    start = 128 // dtype.itemsize
    result = np.full(x.size + 2 * start, 7, dtype)
    memory = [runtime.fresh(queue, array.nbytes, array) for array in (result, x, table)]
    names = ("to", "x", "norm")
    normalised.normalising(queue.context, problem, names, start=128, names=names)(queue, memory, None).wait()
    cl.enqueue_copy(queue, result, memory[0])
    mean, scale, shift = np.moveaxis(table.reshape(3, *[1] * (x.ndim - 1), problem.ic), -1, channel_axis % x.ndim + 1)
    expected = (x.astype(np.float64) - mean) * scale + shift
    if "relu" in text:
        expected = np.maximum(expected, 0)
    assert (result[:start] == 7).all()
    assert (result[start + x.size :] == 7).all()
    np.testing.assert_allclose(result[start : start + x.size].reshape(x.shape), expected, rtol=2e-3, atol=2e-3)
