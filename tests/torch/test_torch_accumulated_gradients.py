"""Weights' gradients that are added to ``.grad`` by the kernel that computes them, and where they must not be."""

import copy

import pytest
import torch
from torch_checks import error

import convdispatch.torch as ct
from convdispatch import InvalidArgument
from convdispatch.torch.dispatch import engine

nn, F = torch.nn, torch.nn.functional


@pytest.fixture
def added(monkeypatch):
    """The answers of ``accumulated_gradient``: whether a kernel may add to ``.grad``."""
    answers = []

    def recorded(w):
        total = decide(w)
        if w.dtype is not torch.float64:  # which is the reference
            answers.append(total is not None)
        return total

    decide = engine.accumulated_gradient
    monkeypatch.setattr(engine, "accumulated_gradient", recorded)
    with ct.enable(accumulate_grad=True):
        yield answers


def layer(*, last: bool = False) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    form = torch.channels_last if last else torch.contiguous_format
    return nn.Conv2d(3, 4, 3).to(memory_format=form), torch.randn(2, 3, 9, 8).to(memory_format=form)


@pytest.mark.parametrize("last", [False, True])
def test_three_micro_batches(added, last):
    """A chain of two layers and shared weights: gradients are PyTorch's, ``.grad`` stays the same memory."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), shared := nn.Conv2d(4, 4, 3, padding=1), shared)
    model = model.to(memory_format=torch.channels_last if last else torch.contiguous_format)
    exact, batches = copy.deepcopy(model).double(), [torch.randn(2, 3, 17, 15) for _ in range(3)]
    addresses = set()
    for number, x in enumerate(batches):
        model(x).square().sum().backward()
        exact(x.double()).square().sum().backward()
        addresses.add(model[0].weight.grad.data_ptr())
        assert added == [False, False, False, *[True] * 3 * number]
    for mine, right in zip(model.parameters(), exact.parameters(), strict=True):
        assert error(mine.grad, right.grad) < 1e-5
    assert len(addresses) == 1
    model.zero_grad(set_to_none=False)
    model(batches[0]).square().sum().backward()
    exact.zero_grad()
    exact(batches[0].double()).square().sum().backward()
    for mine, right in zip(model.parameters(), exact.parameters(), strict=True):
        assert error(mine.grad, right.grad) < 1e-5
    assert ct.counters()["left"] == 0


def test_no_gradient_is_allocated(added):
    """The second backward allocates no tensor of the weights' size."""
    conv, x = nn.Conv2d(64, 64, 3), torch.randn(1, 64, 3, 3)
    conv(x).sum().backward()
    before = conv.weight.grad.clone()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        conv(x).sum().backward()
    assert max(event.self_cpu_memory_usage for event in profile.events()) < conv.weight.nbytes
    assert error(conv.weight.grad, 2 * before.double()) < 1e-6


def _hooked(conv, x):
    conv.weight.register_hook(lambda grad: 2 * grad)
    conv(x).sum().backward()


def _doubled(w):
    w.grad.mul_(2)


def _hooked_after(conv, x):
    conv.weight.register_post_accumulate_grad_hook(_doubled)
    conv(x).sum().backward()


def _returned(conv, x):
    conv.gradient = torch.autograd.grad(conv(x).sum(), [conv.weight])[0]


def _twice_differentiable(conv, x):
    conv(x).square().sum().backward(create_graph=True)


def _of_another_layout(conv, x):
    conv.weight.grad = conv.weight.grad.to(memory_format=torch.channels_last)
    conv(x).sum().backward()


def _weights_computed(conv, x):
    F.conv2d(x, conv.weight * 2).sum().backward()


def _by_hand(conv, x):
    arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
    conv.gradient = torch.ops.aten.convolution_backward(torch.ones(2, 4, 7, 6), x, conv.weight, None, *arguments)[1]


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return F.conv2d(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
        return None, 3 * torch.ops.aten.convolution_backward(grad, x, w, None, *arguments)[1]


def _in_a_function(conv, x):
    _Own.apply(x, conv.weight).sum().backward()


def _checkpointed(conv, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        conv(x).sum().backward()


@pytest.mark.parametrize(
    "case",
    [_hooked, _hooked_after, _returned, _twice_differentiable, _of_another_layout, _weights_computed,
     _by_hand, _in_a_function, _checkpointed],
)  # fmt: skip
def test_what_must_stay_autograd_s(added, case):
    conv, x = layer()
    own = copy.deepcopy(conv)
    conv(x).sum().backward()
    added.clear()
    case(conv, x)
    assert not any(added)
    ct.disable()
    own(x).sum().backward()
    case(own, x)
    assert error(conv.weight.grad, own.weight.grad.double()) < 1e-5
    for mine, theirs in zip([getattr(conv, "gradient", None)], [getattr(own, "gradient", None)], strict=True):
        assert theirs is None or error(mine, theirs.double()) < 1e-5


@pytest.mark.parametrize("case", ["retained", "inputs", "transposed"])
def test_what_else_adds(added, case):
    conv, x = layer()
    conv = nn.ConvTranspose2d(3, 4, 3) if case == "transposed" else conv
    exact = copy.deepcopy(conv).double()
    for model, data in ((conv, x), (exact, x.double())):
        for _ in range(2):
            loss = model(data).square().sum()
            if case == "retained":
                loss.backward(retain_graph=True)
            loss.backward(**({"inputs": [model.weight]} if case == "inputs" else {}))
    assert any(added) == (case != "transposed")
    assert error(conv.weight.grad, exact.weight.grad) < 1e-5


def test_distributed_data_parallel_finds_the_sum(added, group):
    conv, x = layer()
    own = copy.deepcopy(conv).double()
    model = nn.parallel.DistributedDataParallel(conv)
    with model.no_sync():
        model(x).square().sum().backward()
    for _ in range(2):
        model(x).square().sum().backward()
    for _ in range(3):
        own(x.double()).square().sum().backward()
    assert error(conv.weight.grad, own.weight.grad) < 1e-5


def test_the_argument_is_true_or_false():
    with pytest.raises(InvalidArgument, match="accumulate_grad"):
        ct.enable(accumulate_grad="yes")
