"""Nets of float32 weights in 16 bits and in TF32: rounded once, after folding, no further off than their formats."""

import numpy as np
import pytest

from convdispatch import inference, nn
from convdispatch.api import InvalidArgument
from convdispatch.inference.passes.precision import dtype_of
from convdispatch.nn import functional
from convdispatch.tensor import Tensor

SHAPE = (2, 3, 17, 15)


class Small(nn.Module):
    """A strided stem, a residual block with batch norms, two branches, a view of a part, a linear head."""

    def __init__(self):
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8, activation="relu")
        self.one, self.three = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 12, 3, padding=1)
        self.flatten, self.head = nn.Flatten(), nn.Linear(16, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.stem(x)))
        x = self.norm(self.conv(x)) + x
        x = functional.concatenate([self.one(x), self.three(x)], 1)
        return self.head(self.flatten(functional.global_average_pool(x)))[:, 2:]


@pytest.fixture
def net():
    made = Small()
    rng = np.random.default_rng(4)
    made.norm.running_mean.write(rng.standard_normal(8))
    made.norm.running_var.write(rng.uniform(0.5, 2, 8))
    return made.eval()


def run(form, dtype):
    x = np.random.default_rng(5).standard_normal(SHAPE).astype(dtype_of(dtype))
    return form(Tensor.from_numpy(x)).numpy()


@pytest.mark.parametrize(
    ("dtype", "unit", "layout"),
    [
        ("float16", 2**-11, "nchw"),
        ("bfloat16", 2**-8, "nhwc"),
        pytest.param("float16", 2**-11, "nhwc", marks=pytest.mark.full),
        pytest.param("bfloat16", 2**-8, "nchw", marks=pytest.mark.full),
    ],
)
def test_weights_are_rounded_and_results_are_of_the_dtype(net, dtype, unit, layout):
    plain = run(inference.build(net, SHAPE), "float32")
    form = inference.build(net, SHAPE, dtype=dtype, layout=layout)
    got = run(form, dtype)
    assert got.dtype == dtype_of(dtype)
    assert got.shape == plain.shape == (2, 8)
    error = np.linalg.norm(got.astype(np.float64) - plain) / np.linalg.norm(plain)
    assert unit / 8 < error < 4 * unit  # rounded, and in no step twice as coarsely
    assert {p.dtype for p in inference.problems(net, SHAPE, dtype=dtype, layout=layout)} == {dtype}
    with pytest.raises(InvalidArgument, match=f"built for .* {dtype}, got .* float32"):
        form(Tensor.from_numpy(np.zeros(SHAPE, np.float32)))
    assert all(parameter.dtype == np.float32 for parameter in net.parameters())  # the net itself stays


def test_math_reaches_every_convolution(net):
    found = inference.problems(net, SHAPE, math="tf32")
    assert len(found) >= 5
    assert {p.math for p in found} == {"tf32"}
    plain, got = (run(inference.build(net, SHAPE, math=m), "float32") for m in (None, "tf32"))
    np.testing.assert_allclose(got, plain, rtol=0.01, atol=0.01)


def test_what_is_no_dtype_or_math_is_refused(net):
    with pytest.raises(InvalidArgument, match="dtype must be one of NumPy's or 'bfloat16', got 'half-ish'"):
        inference.build(net, SHAPE, dtype="half-ish")
    with pytest.raises(
        InvalidArgument, match="math must be None or one of float32, ieee, tf32, fast, reproducible, got 'tf19'"
    ):
        inference.build(net, SHAPE, math="tf19")
