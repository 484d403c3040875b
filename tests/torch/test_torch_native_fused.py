"""Converted and fused layers by the native call path, with a library of C in the place of CUDA's driver."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from native_stand_in import stand_in  # noqa: E402, F401 (torch is asked for first)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_checks import error  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch import policy  # noqa: E402
from convdispatch.torch import functional  # noqa: E402
from convdispatch.torch.dispatch import native  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    """A sum and an activation after one convolution, an activation after another, nothing after the last."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.two, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, (3, 1), 2)

    def forward(self, x):
        y = F.relu(self.norm(self.one(x)) + x)
        return self.last(F.silu(self.two(y)))


@pytest.fixture
def block(stand_in):  # noqa: F811
    """(the stand-in, a block, the same with our layers and frozen weights)."""
    torch.manual_seed(0)
    plain = Block().eval()
    plain.norm.running_mean.normal_()
    with policy(solver="im2col*"), torch.no_grad():
        return stand_in, plain, ct.convert(copy.deepcopy(plain)).requires_grad_(False)


def picture(seed=0, form=torch.contiguous_format, **kind):
    made = torch.randn(2, 8, 9, 8, generator=torch.Generator().manual_seed(seed), **kind)
    return made.contiguous(memory_format=form)


class Looking(TorchDispatchMode):
    """Sees operators as recorders do."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def launches(cuda, run):
    """What ``run()`` answers, and how many kernels the native path launched in it."""
    cuda.launched.clear()
    return run(), len(cuda.launched)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_second_calls_are_native(block, mode, form):
    cuda, plain, fused = block
    with mode(), ct.enable(solver="im2col*"):
        for turn in range(3):
            x = picture(turn, form)
            wanted = plain(x).double()
            ct.reset_counters()
            cuda.driver.log.clear()
            got, count = launches(cuda, lambda x=x: fused(x))
            assert error(got, wanted) < 1e-5
            assert got.is_contiguous(memory_format=form)
            assert ct.counters()["convolution"] == 3
            assert sum(ct.counters()["solvers"].values()) == 3
            assert (count > 0) == (turn > 0)
            if turn:
                assert "cuMemAllocFromPoolAsync" not in cuda.driver.names()


def test_converted_layers_second_calls_are_native(block):
    """Of a model that is not traced: as PyTorch's layers, whose weights may learn or be written at any time."""
    cuda, plain, _ = block
    converted = ct.convert(copy.deepcopy(plain))
    for enabled in (True, False):
        with torch.no_grad(), ct.enable(solver="im2col*") if enabled else contextlib.nullcontext():
            for turn in range(3):
                for weight in (plain.two.weight, converted.two.weight):
                    weight.data = weight.data * 3
                ct.reset_counters()
                got, count = launches(cuda, lambda turn=turn: converted(picture(turn)))
                assert error(got, plain(picture(turn)).double()) < 1e-5
                assert (count > 0) == (turn > 0)
                assert ct.counters()["convolution"] == (6 if enabled else 3)
    x = picture().requires_grad_()
    got, count = launches(cuda, lambda: converted(x))
    assert got.requires_grad
    assert count == 0


def test_weights_that_change_are_packed_anew(block):
    cuda, plain, fused = block
    with torch.no_grad(), ct.enable(solver="im2col*"):
        for _ in range(2):
            fused(picture())
        for write in (lambda w: w.mul_(2), lambda w: w.data.mul_(0.5), lambda w: setattr(w, "data", w.data * 3)):
            write(plain.two.weight)
            write(fused.two.weight)
            for turn in range(3):
                got, count = launches(cuda, lambda turn=turn: fused(picture(turn)))
                assert error(got, plain(picture(turn)).double()) < 1e-5
            assert count >= 3


def test_a_sum_an_activation_and_a_bias_are_in_the_key(block):
    cuda, _, _ = block
    w, bias, x = nn.Parameter(torch.randn(8, 8, 1, 1), False), torch.randn(8), picture()
    added, other = torch.randn(2, 8, 9, 8), torch.randn(2, 8, 8, 9).transpose(2, 3)
    each = {"relu": F.relu, "leaky_relu(0.3)": lambda v: F.leaky_relu(v, 0.3), None: lambda v: v}
    cases = [(None, None, "relu"), (bias, None, "relu"), (bias, added, "relu"), (bias, other, "relu")]
    cases += [(bias, added, "leaky_relu(0.3)"), (bias, added, None), (bias, added[:1], None)]
    with torch.no_grad(), ct.enable(solver="im2col*"):
        for turn in range(2):
            for b, residual, activation in cases:
                wanted = F.conv2d(x.double(), w.double(), None if b is None else b.double())
                wanted = each[activation](wanted if residual is None else wanted + residual.double())
                got, count = launches(cuda, lambda: functional.fused(x, w, b, residual, activation, 1, 0, 1, 1))  # noqa: B023
                assert error(got, wanted) < 1e-5
                assert (count > 0) == (turn > 0 and (residual is None or len(residual) == 2))


def test_what_is_more_than_plain_inference_is_pythons(block):
    cuda, _, fused = block
    learning = copy.deepcopy(fused).requires_grad_()
    with ct.enable(solver="im2col*"):
        with torch.no_grad():
            for _ in range(2):
                fused(picture())
        for turn in range(4):  # the operators with gradients: a first call registers a kernel, a second one is decided
            got, count = launches(cuda, lambda: learning(picture()))
            assert got.requires_grad
            assert turn in (1, 2) or (count > 0) == (turn > 2)
        with torch.no_grad():
            with policy(solver="im2col"):
                assert launches(cuda, lambda: fused(picture()))[1] == 0
            with Looking() as looking:
                fused(picture())
            assert "convdispatch.convolution.default" in looking.seen
            assert "convdispatch.fused_native.default" not in looking.seen
            native.pause(True)
            assert launches(cuda, lambda: fused(picture()))[1] == 0
            native.pause(False)
            fused(picture())  # the recorded operators used the same weights, so that packed ones are asked for again
            assert launches(cuda, lambda: fused(picture()))[1] > 0
    with torch.no_grad():
        for turn in range(2):  # without enable() too
            assert (launches(cuda, lambda: fused(picture()))[1] > 0) == (turn > 0)


def test_what_no_engine_computes_is_pytorchs_with_the_reason(block):
    _, plain, fused = block
    with torch.no_grad(), ct.enable(solver="none.such"):
        for _ in range(3):
            wanted = plain(picture()).double()
            ct.reset_counters()
            assert error(fused(picture()), wanted) < 1e-5
            assert ct.counters()["left"] == 3
        with pytest.raises(RuntimeError, match="channels"):
            fused(torch.randn(2, 7, 9, 8))
