"""Converted layers' plain inference: launched below Python from a third call on, on a CPU and, with a library of C in
the place of CUDA's driver, on a GPU; with the bits that Python's way has."""

import contextlib
import copy
import gc
import os
import weakref

import pytest
import torch
from native_checks import LAST, WRITES, right_in_a_child
from threads import together
from torch.utils._python_dispatch import TorchDispatchMode
from torch_checks import error

import convdispatch.torch as ct
from convdispatch import policy
from convdispatch.torch import functional
from convdispatch.torch.compile.fused_operator import fused_convolution
from convdispatch.torch.compile.operators import BELOW_AUTOGRAD
from convdispatch.torch.dispatch import engine, native
from convdispatch.torch.geometry import for_each_axis
from convdispatch.torch.weights import _seen

nn, F = torch.nn, torch.nn.functional
ACTIVATIONS = {"relu": F.relu, "silu": F.silu, "leaky_relu(0.3)": lambda v: F.leaky_relu(v, 0.3), None: lambda v: v}
# in, weights, stride, padding, groups, channels last
CASES = {
    "1x1": ((2, 8, 9, 8), (12, 8, 1, 1), 1, 0, 1, False),
    "3x3 last": ((2, 20, 9, 8), (12, 20, 3, 3), (2, 1), 1, 1, True),
    "groups": ((2, 8, 9, 8), (16, 4, 3, 3), 1, 1, 2, False),
    "depthwise": ((2, 12, 9, 8), (12, 1, 3, 3), 1, 1, 12, True),
    "1d": ((2, 8, 21), (6, 8, 3), 1, 1, 1, False),
}


def frozen(*shape):
    return nn.Parameter(torch.randn(shape), requires_grad=False)


def convolve(x, w, bias=None, activation="relu", padding=0, stride=1, groups=1):
    """As converted layers call it, or with an activation as compiled graphs do."""
    ndim = w.ndim - 2
    if activation is None:
        return functional.convolve(ndim, x, w, bias, (stride, padding, 1), groups)
    lists = (for_each_axis(value, ndim) for value in (stride, padding, 1))
    return BELOW_AUTOGRAD[fused_convolution](x, w, bias, None, activation, *lists, groups)


def python(parts, run):
    """What ``run()`` answers, and whether Python was asked for a call."""
    parts.clear()
    return run(), bool(parts)


@pytest.mark.parametrize(("name", "mode"), [*((name, torch.no_grad) for name in CASES), ("1x1", torch.inference_mode)])
def test_third_calls_ask_nothing_and_have_pythons_bits(asked, mode, name):
    shape, weights, stride, padding, groups, last = CASES[name]
    torch.manual_seed(0)
    form = LAST if last else torch.contiguous_format
    kind = getattr(F, f"conv{len(shape) - 2}d")
    w = frozen(*weights)
    with mode():
        for biased in (True, False):
            for activation, function in ACTIVATIONS.items():
                for turn in range(4):  # other tensors each time: addresses are arguments
                    x = torch.randn(shape).contiguous(memory_format=form)
                    b = torch.randn(weights[0]) if biased else None
                    exact = kind(x.double(), w.double(), b.double() if biased else None, stride, padding, 1, groups)

                    def run(x=x, b=b, activation=activation):
                        return convolve(x, w, b, activation, padding, stride, groups)

                    ct.reset_counters()
                    got, by_python = python(asked, run)
                    assert not by_python or turn < 2, (biased, activation)
                    assert ct.counters()["convolution"] == sum(ct.counters()["solvers"].values()) == 1
                    assert error(got, function(exact)) < 1e-5
                    native.pause(True)
                    theirs, by_python = python(asked, run)
                    native.pause(False)
                    assert by_python
                    assert torch.equal(got, theirs)
                    assert got.stride() == theirs.stride()


class Block(nn.Module):
    """Three convolutions, two of them with an activation behind them."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Tanh())
        self.last = nn.Conv2d(8, 4, (3, 1), 2)

    def forward(self, x):
        return self.last(self.two(self.one(x) + x))


@pytest.fixture
def block():
    torch.manual_seed(0)
    return Block().eval()


def picture(form=torch.contiguous_format):
    return torch.randn(2, 8, 9, 8).contiguous(memory_format=form)


@pytest.mark.parametrize("form", [torch.contiguous_format, LAST])
@pytest.mark.parametrize(
    ("mode", "learns"),
    [
        (torch.no_grad, True),  # outside of inference mode CUDA's weights are no constants
        (torch.inference_mode, False),
        (torch.inference_mode, True),
    ],
)
def test_kernels_are_launched_below_python(stand_in, block, mode, form, learns):
    """With enable() and without; also of weights that may be written at any time."""
    converted = ct.convert(copy.deepcopy(block)).requires_grad_(learns)
    with mode(), policy(solver="im2col*"):
        converted(picture(form))  # no other solver is tried
    for enabled in (True, False):
        with mode(), ct.enable(solver="im2col*") if enabled else contextlib.nullcontext():
            for turn in range(4):
                if learns and mode is torch.no_grad:
                    for weight in (block.two[0].weight, converted.two[0].weight):
                        weight.data = weight.data * 3
                x = picture(form)
                native.pause(True)
                wanted = copy.deepcopy(block).double()(x.double())
                native.pause(False)
                ct.reset_counters()
                stand_in.launched.clear()
                stand_in.driver.log.clear()
                got = converted(x)
                assert error(got, wanted) < 1e-5
                assert got.is_contiguous(memory_format=form)
                assert ct.counters()["convolution"] == sum(ct.counters()["solvers"].values()) == 3
                assert turn in (1, 2) or bool(stand_in.launched) == (turn > 2)
                if turn > 2:
                    assert "cuMemAllocFromPoolAsync" not in stand_in.driver.names()


@pytest.mark.parametrize("place", ["cpu", "stand_in"])
def test_converted_models_with_and_without_enable(request, device, parts, block, place):
    """Layers that learn, too, and models that a graph could run, layer by layer."""
    cuda = request.getfixturevalue("stand_in") if place == "stand_in" else request.getfixturevalue("here") and None
    for model in (ct.convert(copy.deepcopy(block)), ct.convert(copy.deepcopy(block), fuse=True)):
        for enabled in (True, False):  # converted layers hold by themselves
            with torch.no_grad(), ct.enable(solver="im2col*") if enabled else contextlib.nullcontext():
                for turn in range(4):
                    x = picture()
                    native.pause(True)
                    wanted = block.double()(x.double())
                    block.float()
                    native.pause(False)
                    ct.reset_counters()
                    got, by_python = python(parts, lambda x=x, model=model: model.forward(x))
                    assert error(got, wanted) < 1e-5
                    assert not by_python or turn < 3
                    assert ct.counters()["reasons"] == {}
    with ct.enable(solver="im2col*"):
        x = picture().requires_grad_()
        if cuda is not None:
            cuda.launched.clear()
        assert ct.convert(block)(x).requires_grad


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_weights_that_change_are_packed_anew(asked, mode, write):
    w, x = frozen(16, 8, 3, 3), torch.randn(2, 8, 9, 8)

    def run():
        return convolve(x, w, padding=1)

    with mode():
        for _ in range(4):
            before = run()
        assert not python(asked, run)[1]
        assert _seen[id(w)].packed is not None
        with torch.no_grad():
            WRITES[write](w)
        for _ in range(3):
            torch.testing.assert_close(run(), before * 2)


def test_a_converted_layers_weights_may_learn_between_calls(asked):
    layer, x = ct.convert(nn.Conv2d(8, 16, 3, padding=1)), torch.randn(2, 8, 9, 8)
    for turn in range(5):
        with torch.no_grad():
            got, by_python = python(asked, lambda: layer(x))
            assert error(got, F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
            assert turn < 2 or not by_python
        (layer(x) ** 2).mean().backward()
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.1 * p.grad
                p.grad = None


def test_what_is_more_than_plain_inference_is_pythons(asked):
    w, x, seen = frozen(8, 8, 1, 1), torch.randn(2, 8, 9, 8), []

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def run(x=x):
        return convolve(x, w, activation=None)

    for _ in range(2):
        assert run(x.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        wanted = [run() for _ in range(4)][-1]
        assert not python(asked, run)[1]
        with policy(solver="im2col"):
            assert python(asked, run)[1]
        native.pause(True)
        assert python(asked, run)[1]
        native.pause(False)
        with Looking():
            assert torch.equal(run(), wanted)
        assert [name for name in seen if "convdispatch" in name] == ["convdispatch.convolution.default"]
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                got = run()
                assert got.dtype is torch.bfloat16
        torch.testing.assert_close(torch.vmap(run)(x[None]), wanted[None])
        tangent = torch.func.jvp(run, (x,), (x,))[1]
        torch.testing.assert_close(tangent, F.conv2d(x, w))
        end = engine.watch(lambda part, *_: seen.append(part))
        run()
        end()
        assert seen[-1] == "forward"
        with pytest.raises(RuntimeError, match="channels"):
            run(torch.randn(2, 7, 9, 8))
        run()  # jvp reads the weights' .data, by which they could have been written
        assert not python(asked, run)[1]


def test_what_no_engine_computes_is_pytorchs_with_the_reason(stand_in, block):
    converted = ct.convert(copy.deepcopy(block))
    with torch.no_grad(), ct.enable(solver="none.such"):
        for _ in range(3):
            x = picture()
            wanted = block(x).double()
            ct.reset_counters()
            assert error(converted(x), wanted) < 1e-5
            assert ct.counters()["left"] == 3
        with pytest.raises(RuntimeError, match="channels"):
            converted(torch.randn(2, 7, 9, 8))


def test_several_threads_share_a_layer_whose_weights_come_and_go(asked):
    x = torch.randint(-4, 5, (2, 8, 17, 9)).float()
    w = nn.Parameter(torch.randint(-4, 5, (24, 8, 3, 3)).float(), requires_grad=False)
    wanted = F.relu(F.conv2d(x.double(), w.double()))

    def work(_):
        with torch.no_grad():
            for turn in range(40):
                assert torch.equal(convolve(x, w).double(), wanted)
                if turn % 10 == 5:
                    w.mul_(1)  # packed anew; what was packed goes while others read it

    together(work, 5)


def test_nothing_holds_a_calls_tensors(asked):
    with torch.no_grad():
        x, w = torch.randn(2, 8, 9, 8), frozen(16, 8, 1, 1)
        got = [convolve(x, w) for _ in range(4)]
    held = [weakref.ref(each) for each in (x, w, *got, _seen[id(w)].packed)]
    del x, w, got
    gc.collect()
    assert [each() for each in held] == [None] * len(held)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_childs_calls_are_pytorchs(asked):
    w, x = frozen(16, 8, 3, 3), torch.randn(2, 8, 9, 8)
    assert right_in_a_child(lambda: convolve(x, w, padding=1))
