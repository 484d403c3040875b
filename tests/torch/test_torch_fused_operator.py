"""torch.ops.convdispatch.fused_convolution: values and PyTorch's checks of operators."""

import pytest
import torch

import convdispatch.torch as ct
from convdispatch.torch.compile.fused_operator import activate, fused_convolution, slope_times

GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)
ACTIVATIONS = ["relu", "sigmoid", "tanh", "relu6", "clip(-0.5, 0.5)", "elu(0.5)", "leaky_relu(0.2)", "hardsigmoid"]
ACTIVATIONS += ["elu(-0.5)", "leaky_relu(-0.2)"]
BY_INPUT = ["silu", "hardswish", "gelu", "mish"]
"""Activations whose slope does not follow from their result."""


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    with ct.enable(solver="im2col*"):
        yield


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS, *BY_INPUT])
def test_values_and_slopes_are_pytorchs_at_bounds_too(activation):
    x = torch.tensor([-7.0, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 6.0, 7.0, float("nan")]).view(1, 1, 2, 5)
    one, grad = torch.ones(1, 1, 1, 1), torch.arange(1.0, 11.0).view(1, 1, 2, 5)
    y = fused_convolution(x, one, None, None, activation, [1, 1], [0, 0], [1, 1], 1)
    expected = activate(x.requires_grad_(), activation)
    torch.testing.assert_close(y, expected.detach(), equal_nan=True)
    if activation in BY_INPUT:
        wanted = torch.autograd.grad(expected, x, grad)[0]
        torch.testing.assert_close(slope_times(grad, activation, x.detach()), wanted, equal_nan=True)


def test_pytorchs_checks_of_the_operator():
    x, w, b, r = (torch.randn(s) for s in ((2, 4, 5, 4), (4, 4, 3, 3), (4,), (2, 4, 5, 4)))
    for residual in (r, r[:1]):
        given = (x, w, b, residual, "relu", *GEOMETRY)
        checks = torch.library.opcheck(fused_convolution, given, test_utils=("test_schema", "test_faketensor"))
        assert set(checks.values()) == {"SUCCESS"}
        expected = torch.relu(torch.conv2d(x.double(), w.double(), b.double(), padding=1) + residual)
        torch.testing.assert_close(fused_convolution(*given).double(), expected, atol=1e-5, rtol=1e-5)
