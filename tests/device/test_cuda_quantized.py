"""Quantized convolutions of arrays on CUDA's streams, with the host in the place of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import CudaArray

import convdispatch as cd
from convdispatch import ConvDispatchError, InvalidArgument, Quantization
from convdispatch.api.dtypes import numpy_dtype

SHAPE = {"padding": 1, "layout": "nhwc"}


def _given():
    random = np.random.default_rng(0)
    return {
        "x": random.integers(0, 256, (2, 9, 8, 16)).astype(np.uint8),
        "w": random.integers(-128, 128, (24, 3, 3, 16)).astype(np.int8),
        "bias": random.integers(-5000, 5000, 24).astype(np.int32),
        "residual": random.integers(0, 256, (2, 9, 8, 24)).astype(np.uint8),
    }


BYTES = Quantization(x_scale=0.02, x_zero_point=117, w_scale=np.full(24, 0.01, np.float32), y_scale=0.7,
                     y_zero_point=100, dtype="uint8", residual_scale=0.6, residual_zero_point=3)  # fmt: skip


@pytest.mark.parametrize("solver", ["int8.direct", None])
def test_bits_are_those_of_the_host(fake, solver):
    driver, library = fake
    given = _given()
    there = {name: CudaArray(array) for name, array in given.items()}
    with cd.policy(solver=solver):
        expected = cd.conv(**given, quantization=BYTES, activation="relu", **SHAPE)
        out = CudaArray(np.zeros_like(expected))
        w, bias = cd.constant(there["w"]), cd.constant(there["bias"])
        for kwargs in ({**there}, {**there, "w": w, "bias": bias}, {**there, "w": cd.constant(given["w"])}):
            y = cd.conv(**kwargs, quantization=BYTES, activation="relu", **SHAPE)
            assert type(y) is CudaArray
            assert y.dtype == np.uint8
            assert np.array_equal(y.values, expected)
        driver.log.clear()
        again = {**there, "w": w, "bias": bias}
        assert cd.conv(**again, quantization=BYTES, activation="relu", out=out, **SHAPE) is out
        assert np.array_equal(out.values, expected)
        assert "cuLaunchKernel" in driver.names()
        assert not {"cuStreamSynchronize", "cuMemcpyAsync"} & set(driver.names()), "no wait and no copy"
        whole = Quantization(x_zero_point=117)
        sums = cd.conv(there["x"], w, quantization=whole, **SHAPE)
        assert sums.dtype == np.int32
        assert np.array_equal(sums.values, cd.conv(given["x"], given["w"], quantization=whole, **SHAPE))
    assert library.made == 4


@pytest.mark.parametrize("out", ["float8_e5m2", "bfloat16", "float32"])
def test_float8(fake, out):
    driver, _ = fake
    random, dtype = np.random.default_rng(0), numpy_dtype("float8_e4m3")
    x, w = (random.standard_normal(shape).astype(dtype) for shape in ((2, 9, 8, 16), (24, 3, 3, 16)))
    bias = np.linspace(-1, 1, 24).astype(np.float32)
    scales = Quantization(0.5, w_scale=np.linspace(0.1, 1, 24), dtype=out, y_scale=0.02 if "8" in out else None)
    options = {"quantization": scales, "activation": "relu6", "math": "tf32", **SHAPE}
    expected = cd.conv(x, w, bias, **options)
    there, held = CudaArray(x), cd.constant(CudaArray(w))
    y = cd.conv(there, held, cd.constant(bias), **options)
    driver.log.clear()
    again = cd.conv(there, held, cd.constant(bias), out=y, **options)
    assert again is y
    assert y.dtype == numpy_dtype(out)
    assert y.values.tobytes() == expected.tobytes()
    assert "cuLaunchKernel" in driver.names()


def test_a_capture_wants_a_call_before(fake):
    driver, _ = fake
    there = {name: CudaArray(array) for name, array in _given().items() if name in "xw"}
    kept = Quantization()
    driver.capturing = True
    with pytest.raises(ConvDispatchError, match="make one call before the capture"):
        cd.conv(**there, quantization=kept, **SHAPE)
    driver.capturing = False
    first = cd.conv(**there, quantization=kept, **SHAPE)
    driver.capturing = True
    assert np.array_equal(cd.conv(**there, quantization=kept, **SHAPE).values, first.values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"w": np.zeros((24, 3, 3, 16), np.int8)}, "w must be a CudaArray as x is, got ndarray"),
        ({"w": CudaArray(np.zeros((24, 3, 3, 16), np.int8), number=1)}, "w must be where x is: x is on CUDA's"),
        ({"w": CudaArray(np.zeros((24, 3, 3, 16), np.uint8))}, "w is int8 with zero point 0, got uint8"),
        ({"out": CudaArray(np.zeros((2, 9, 8, 24), np.int8))}, "out must be int32 of shape"),
        ({"residual": CudaArray(np.zeros((2, 9, 8), np.int32))}, "residual must be int32 of shape"),
        ({"queue": "one"}, "pass no queue"),
    ],
)
def test_refusals(fake, changes, words):
    there = {name: CudaArray(array) for name, array in _given().items() if name in "xw"}
    with pytest.raises(InvalidArgument, match=words):
        cd.conv(**{**there, **changes}, quantization=Quantization(), **SHAPE)


def test_a_result_over_x_is_refused(fake):
    given = _given()
    x, w = CudaArray(given["x"]), CudaArray(given["w"][:16, :1, :1].copy())
    with pytest.raises(InvalidArgument, match="out shares memory with x"):
        cd.conv(x, w, quantization=Quantization(dtype="uint8"), layout="nhwc", out=x)
    with pytest.raises(InvalidArgument, match="x is in host memory"):
        cd.conv(CudaArray(given["x"], number=None), w, quantization=Quantization(), layout="nhwc")
