"""torch.ops.convdispatch.fused_convolution: gradients, PyTorch's checks of operators, autocast."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import convdispatch.torch as ct
from convdispatch.torch.compile.fused_operator import activate, fused_convolution

GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    with ct.enable(solver="im2col*"):
        yield


def near(got, expected, limit):
    return got.shape == expected.shape and float((got.double() - expected).norm() / expected.norm()) <= limit


ACTIVATIONS = ["relu", "silu", "sigmoid", "tanh", "relu6", "clip(-0.5, 0.5)", "elu(0.5)", "leaky_relu(0.2)"]
ACTIVATIONS += ["hardsigmoid", "hardswish", "gelu", "mish"]


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS, "elu(-0.5)", "leaky_relu(-0.2)"])
def test_the_operators_gradients(activation):
    shapes = (2, 4, 5, 4), (4, 4, 3, 3), (4,), (2, 4, 5, 4)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    function = lambda *t: fused_convolution(*t, activation, *GEOMETRY)  # noqa: E731
    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)
    solved = ct.counters()["convolution"]
    y = function(*given)
    torch.autograd.grad(y.sum(), given)
    again = activation in ("silu", "hardswish", "gelu", "mish", "elu(-0.5)", "leaky_relu(-0.2)")
    assert ct.counters()["convolution"] - solved == 1 + again, "the convolution is computed again only where it must be"


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_pytorchs_at_bounds_too(activation):
    x = torch.tensor([-7.0, -0.5, -0.25, -0.0, 0.0, 0.25, 0.5, 6.0, 7.0, float("nan")]).view(1, 1, 2, 5)
    one, grad = torch.ones(1, 1, 1, 1), torch.arange(1.0, 11.0).view(1, 1, 2, 5)
    given = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = fused_convolution(given[0], one, None, None, activation, [1, 1], [0, 0], [1, 1], 1)
    expected = activate(given[1], activation)
    torch.testing.assert_close(y, expected, equal_nan=True)
    got, wanted = (torch.autograd.grad(*each, grad)[0] for each in ((y, given[0]), (expected, given[1])))
    torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize(
    "shapes", [((1, 4, 1, 1), (3, 4, 3, 2)), ((3, 4, 3, 2), (1, 1, 3, 2)), ((1, 4, 3, 2), (3, 1, 1, 1))]
)
def test_gradients_of_what_is_spread(shapes):
    batch, height, width = shapes[0][0], *(2 * n - 1 for n in shapes[0][2:])
    sizes = (batch, 2, height, width), (4, 2, 3, 3), (4,), shapes[1]
    given = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    function = lambda *t: fused_convolution(*t, "tanh", [2], [1], [1], 1)  # noqa: E731
    assert function(*given).shape == (3, 4, 3, 2)
    assert torch.autograd.gradcheck(function, given, fast_mode=True)


def test_a_compiler_gets_the_slope_and_the_sum():
    graphs = []

    def seen(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    x, w, b = (torch.randn(s, requires_grad=True) for s in ((2, 4, 5, 4), (4, 4, 3, 3), (4,)))
    function = lambda *t: fused_convolution(*t, None, "relu", *GEOMETRY).square().sum()  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=seen, bw_compiler=seen))
    got, wanted = (torch.autograd.grad(each(x, w, b), (x, w, b)) for each in (compiled, function))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    names = ("aten.threshold_backward.default", "aten.sum.dim_IntList", "convdispatch.convolution_backward.default")
    assert [graphs[1].count(name) for name in names] == [1, 1, 1]
    assert not any("convdispatch.convolution.default" in name for graph in graphs for name in graph)


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
