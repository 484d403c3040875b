"""Gradients of depthwise layers on CUDA while theirs are compiled: PyTorch's own, which cuDNN need not compile."""

import functools

import pytest
import torch

import convdispatch.torch as ct
from convdispatch import policy
from convdispatch.calls.framework import tiers
from convdispatch.selection import dispatch
from convdispatch.torch.dispatch import quick_depthwise, routing

LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch):
    monkeypatch.setattr(quick_depthwise, "_on_cuda", lambda x: True)


def given(dtype, form, mask=(True, True, True), groups=6, channels=12):
    torch.manual_seed(3)
    x, w, grad = torch.randn(2, 6, 9, 8), torch.randn(channels, 6 // groups, 3, 3), torch.randn(2, channels, 5, 8)
    tensors = [each.to(dtype).to(memory_format=form) for each in (grad, x, w)]
    return (*tensors, [channels], [2, 1], [1, 1], [1, 1], False, [0, 0], groups, list(mask))


def theirs(*arguments):
    return routing.original("convolution_backward", *arguments)


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False), (True, False, True)])
@pytest.mark.parametrize(
    ("dtype", "form"), [(torch.float32, LAST), (torch.bfloat16, LAST), (torch.float16, FIRST), (torch.float64, LAST)]
)
def test_gradients_are_pytorchs_taken_without_cudnn(dtype, form, mask):
    """Whose operands are contiguous, and float32 where they had 16 bits; types and formats are as they were."""
    arguments, asked = given(dtype, form, mask), []

    def noting(*each):
        asked.extend(each[:3])
        return theirs(*each)

    found = quick_depthwise.quick_depthwise_backward(noting, *arguments)
    exact = theirs(*(each.double().contiguous() for each in arguments[:3]), *arguments[3:])
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert all(each.is_contiguous() and each.dtype is wide for each in asked)
    assert [each is not None for each in found] == list(mask)
    for got, true, like in zip(found, exact, (arguments[1], arguments[2], None), strict=True):
        if got is not None:
            assert got.dtype is dtype
            assert like is None or got.stride() == like.stride()
            assert float((got.double() - true).norm() / true.norm()) < 2 * torch.finfo(dtype).eps


def test_what_pytorch_takes_without_cudnn_or_refuses_is_left_to_it():
    never = functools.partial(pytest.fail, "asked")
    for arguments in (given(torch.float32, FIRST), given(torch.float32, LAST, groups=2)):
        assert quick_depthwise.quick_depthwise_backward(never, *arguments) is None

    def full(*_):
        raise torch.OutOfMemoryError("full")

    assert quick_depthwise.quick_depthwise_backward(full, *given(torch.float32, LAST)) is None


def test_a_training_step_takes_them_while_its_kernels_are_compiled(monkeypatch):
    monkeypatch.setattr(tiers, "BURST_S", 0.0)
    dispatch.forget()
    answered, real = [], routing.quick_depthwise_backward
    monkeypatch.setattr(quick_depthwise, "_convolve", lambda x, w, k, b, *lists: routing.original(
        "convolution", x, w, b, *lists, False, [0, 0], x.shape[1]))  # fmt: skip
    monkeypatch.setattr(routing, "quick_depthwise_backward", lambda *each: answered.append(real(*each)) or answered[-1])
    torch.manual_seed(4)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, groups=3), torch.nn.Conv2d(6, 4, 1)).to(memory_format=LAST)
    x = torch.randn(2, 3, 11, 14).to(memory_format=LAST).requires_grad_()
    leaves = [x, *net.parameters()]
    expected = torch.autograd.grad(net(x).square().sum(), leaves)
    with ct.enable(), policy(tier="ready"):
        found = torch.autograd.grad(net(x).square().sum(), leaves)
    tiers.drain()
    assert [each is not None for each in answered] == [False, True]
    for got, wanted in zip(found, expected, strict=True):
        assert float((got - wanted).norm() / wanted.norm()) < 1e-5
        assert got.stride() == wanted.stride()
