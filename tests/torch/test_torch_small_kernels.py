"""Small kernels of training graphs: which are joined, what they compute, how many a step has on a described GPU."""

import operator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import torch_zoo  # noqa: E402 (torch is asked for first)
from torch import fx  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from bench.cases import train_bytes  # noqa: E402
from convdispatch.torch.compile.normed_operators import (  # noqa: E402
    normed_convolution,
    normed_convolution_backward,
    table,
)
from convdispatch.torch.graph import inductor  # noqa: E402
from convdispatch.torch.graph.learning.small_kernels import join_counters, join_small_kernels  # noqa: E402

GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)
_COPY = torch.ops.aten._foreach_copy.default


def test_counters_advance_together():
    """Near misses: a number of elements, a float's step of 2, one that is read, one that the graph has made."""
    graph = fx.Graph()
    values = [torch.tensor(3 + number) for number in range(4)] + [torch.zeros(2, dtype=torch.int64), torch.tensor(1)]
    counters = [graph.placeholder(f"counter{number}") for number in range(len(values))]
    for node, value in zip(counters, values, strict=True):
        node.meta["example_value"] = value
    for number, node in enumerate(counters):
        graph.call_method("add_", (node, 2 if number == 3 else 1))
    graph.output(counters[5])
    module = fx.GraphModule({}, graph)
    join_counters(module)
    names = [getattr(node.target, "__name__", node.target) for node in graph.nodes]
    assert (names.count("_foreach_add_"), names.count("add_")) == (1, 3)
    wanted = [each + 1 + (number == 3) for number, each in enumerate(values)]
    assert torch.equal(module(*values), wanted[5])
    for one, other in zip(values, wanted, strict=True):
        assert torch.equal(one, other)


def traced(program, *given):
    """A program as inductor's pass sees it, whose tensors say that they are no CPU's."""
    graph = make_fx(program, decomposition_table=select_decomp_table(), tracing_mode="fake")(*given)
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = torch.utils._pytree.tree_map(lambda each: each.to("meta"), node.meta["val"])
    return graph


def joined(graph) -> list[int]:
    """How many results each copy of several tensors has, after the pass."""
    join_small_kernels(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return [len(node.args[0]) for node in graph.graph.nodes if node.target is _COPY]


def check(program, given, sizes):
    graph = traced(program, *given)
    wanted = graph(*given)
    assert joined(graph) == sizes
    for mine, right in zip(graph(*given), wanted, strict=True):
        assert mine.dtype == right.dtype
        assert mine.stride() == right.stride()
        torch.testing.assert_close(mine, right, rtol=0, atol=0)
    return graph


def _operands():
    torch.manual_seed(0)
    return [torch.randn(2, 3, 7, 8), *(torch.randn(3, 3, 3, 3) for _ in range(2)), *(torch.randn(3) for _ in range(3))]


def test_casts_of_weights_stand_at_the_start():
    """Two convolutions in bfloat16: weights and a bias; what a convolution reads otherwise stays where it is."""

    def program(x, first, second, bias, mean, scale):
        y, _ = normed_convolution(x.bfloat16(), first.bfloat16(), bias.bfloat16(), None, None, False, *GEOMETRY)
        z, _ = normed_convolution(torch.relu(y), second.bfloat16(), None, None, None, False, *GEOMETRY)
        return z, mean + scale

    graph = check(program, _operands(), [3])
    names = [node.name for node in graph.graph.nodes]
    assert names.index(next(each for each in names if "foreach" in each)) < names.index("relu")


def test_casts_of_linear_layers_weights_are_joined():
    """A picture that is cast for a product stays, and so does what is more than a cast."""

    def program(x, first, second, bias, mean, scale):
        bias, weight = bias.bfloat16(), first[:, :, 0, 0].contiguous()
        y = torch.addmm(bias, torch.relu(x)[0, :, :, 0].T.bfloat16(), weight.bfloat16())
        return torch.mm(y, second.flatten(1).bfloat16()[:, :5]), torch.mm(y, (mean * scale).outer(mean).bfloat16())

    x, first, second, *rest = _operands()
    graph = traced(program, x, first, second, *rest)
    assert joined(graph) == []  # one of these casts alone reads what the graph gets

    def plain(x, first, second, bias, mean, scale):
        return torch.addmm(bias.bfloat16(), x.bfloat16(), first.bfloat16()), torch.mm(x.bfloat16(), second.bfloat16())

    check(plain, [torch.randn(2, 3), torch.randn(3, 4), torch.randn(3, 4), torch.randn(4), *rest[1:]], [3])


def test_tables_and_gradients_of_norms_are_joined():
    """Backward: tables depend on what was saved; a scale that a kernel left does not, nor is an image copied."""

    def program(grad, w, again, mean, scale, shift):
        rows, doubled = table(mean, scale, shift), table(mean, scale * 2, shift)
        arguments = None, None, "relu", *GEOMETRY, [True, True, True]
        data, by_w, sums = normed_convolution_backward(grad, grad, w, rows, *arguments)
        image, by_again, others = normed_convolution_backward(data, grad, again, doubled, *arguments)
        late = table(sums[0], others[1], shift)
        more = normed_convolution_backward(image, grad, w, late, *arguments)[0]
        return more * 2, by_w.double(), by_again.double(), sums[1] * scale, others[0] - mean, image.double().sum()

    check(program, _operands(), [2, 4])


def test_what_stands_alone_stays():
    """One cast, one late number; weights that are read as they are, and a large one; a result that another result is
    made of."""

    def program(x, first, second, bias, mean, scale):
        y, _ = normed_convolution(x, first, bias * 2, None, None, False, *GEOMETRY)
        z, _ = normed_convolution(y, second.expand(1 << 18, 3, 3, 3) * 2, None, None, None, False, *GEOMETRY)
        wide = y.double()
        return wide, wide * 2, mean * scale, z[:, :3]

    x, first, second, *rest = _operands()
    check(program, [x[..., :1], first, second[:1], *rest], [])


def test_tensors_on_a_cpu_are_left_alone():
    graph = make_fx(lambda a, b: (a * 2, b * 2), tracing_mode="fake")(torch.randn(3), torch.randn(3))
    assert joined(graph) == []
    assert operator.getitem not in {node.target for node in graph.graph.nodes}


def test_kernels_of_a_step_do_not_rise():
    """Of two bottlenecks at ResNet-50's sizes, in bfloat16: products, kernels that move pictures, small ones. Inductor
    alone has a cast for each weight and its gradient, a counter and a norm's numbers for each norm."""
    if not inductor.available("cpu"):
        pytest.skip("no C++ compiler")

    def net():
        return torch_zoo.ResNet((2,), torch_zoo._bottleneck, 4, base=64)

    row = train_bytes.counted(net, "gradients", 64, 224, torch.bfloat16, "h200")
    assert (row["products"], row["kernels"], row["small"]) == MOST


MOST = (34, 25, 22)
