"""torch.ops.convdispatch.fused_convolution: gradients, PyTorch's checks of operators, autocast."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import convdispatch.torch as ct  # noqa: E402 (torch is asked for first)
from convdispatch.torch.fused import fused_convolution  # noqa: E402

GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    with ct.enable(solver="im2col*"):
        yield


def near(got, expected, limit):
    return got.shape == expected.shape and float((got.double() - expected).norm() / expected.norm()) <= limit


@pytest.mark.parametrize("activation", [None, "relu", "silu", "clip(-0.5, 0.5)", "elu(0.5)", "leaky_relu(0.2)"])
def test_the_operators_gradients(activation):
    shapes = (2, 4, 5, 4), (4, 4, 3, 3), (4,), (2, 4, 5, 4)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    function = lambda *t: fused_convolution(*t, activation, *GEOMETRY)  # noqa: E731
    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    if activation in ("relu", "silu"):
        assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


def test_pytorchs_checks_of_the_operator_and_autocast():
    x, w, b, r = (torch.randn(s) for s in ((2, 4, 5, 4), (4, 4, 3, 3), (4,), (2, 4, 5, 4)))
    checks = torch.library.opcheck(fused_convolution, (x.requires_grad_(), w, b, r, "relu", *GEOMETRY))
    assert set(checks.values()) == {"SUCCESS"}
    spread = (x.detach(), w, None, r[:1], "relu", *GEOMETRY)
    assert (
        torch.library.opcheck(fused_convolution, spread, test_utils="test_faketensor")["test_faketensor"] == "SUCCESS"
    )
    with torch.autocast("cpu"):
        y = fused_convolution(x, w, b, r, "relu", *GEOMETRY)
    assert y.dtype == torch.bfloat16
    assert near(y.detach(), torch.relu(torch.conv2d(x.double(), w.double(), b.double(), padding=1) + r), 2e-2)
