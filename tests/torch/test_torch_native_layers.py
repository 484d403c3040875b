"""Converted and fused layers' plain inference on a CPU: launched below Python the second time, with the same bits."""

from __future__ import annotations

import copy
import gc
import os
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from test_torch_native_fused import Block  # noqa: E402
from test_torch_native_host import LAST, WRITES, asked, right_in_a_child  # noqa: E402, F401
from threads import together  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_checks import error  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch import policy  # noqa: E402
from convdispatch.torch import functional  # noqa: E402
from convdispatch.torch.dispatch import native  # noqa: E402
from convdispatch.torch.weights import _seen  # noqa: E402

nn, F = torch.nn, torch.nn.functional
ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "leaky_relu(0.3)": lambda v: F.leaky_relu(v, 0.3),
    None: lambda v: v,
}
FOLLOWING = [(True, True, "relu"), (False, False, "silu"), (True, False, None)]
FOLLOWING += [(True, False, "leaky_relu(0.3)"), (True, True, None), (False, True, "silu"), (True, False, "relu")]
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


def python(asked, run):  # noqa: F811
    """What ``run()`` answers, and whether Python was asked for a call."""
    asked.clear()
    return run(), bool(asked)


@pytest.mark.parametrize(("name", "mode"), [*((name, torch.no_grad) for name in CASES), ("1x1", torch.inference_mode)])
def test_second_calls_ask_nothing_and_have_pythons_bits(asked, mode, name):  # noqa: F811
    shape, weights, stride, padding, groups, last = CASES[name]
    torch.manual_seed(0)
    form = LAST if last else torch.contiguous_format
    kind = getattr(F, f"conv{len(shape) - 2}d")
    w = frozen(*weights)
    with mode():
        for biased, adds, activation in FOLLOWING if name == "1x1" else FOLLOWING[:3]:
            for turn in range(3):  # other tensors each time: addresses are arguments
                x = torch.randn(shape).contiguous(memory_format=form)
                b = torch.randn(weights[0]) if biased else None
                exact = kind(x.double(), w.double(), b.double() if biased else None, stride, padding, 1, groups)
                residual = torch.randn(exact.shape).contiguous(memory_format=form) if adds else None
                wanted = ACTIVATIONS[activation](exact if residual is None else exact + residual)

                def run(x=x, b=b, residual=residual, activation=activation):
                    return functional.fused(x, w, b, residual, activation, stride, padding, 1, groups)

                ct.reset_counters()
                got, by_python = python(asked, run)
                assert by_python == (turn == 0), (biased, adds, activation)
                assert ct.counters()["convolution"] == sum(ct.counters()["solvers"].values()) == 1
                assert error(got, wanted) < 1e-5
                native.pause(True)
                theirs, by_python = python(asked, run)
                native.pause(False)
                assert by_python
                assert torch.equal(got, theirs)
                assert got.stride() == theirs.stride()


def test_what_is_added_may_lie_otherwise_or_be_shorter(asked):  # noqa: F811
    w, x, room = frozen(8, 8, 1, 1), torch.randn(2, 8, 9, 8), torch.randn(2 * 16 * 72 + 1)
    added = {
        "turned": room[: 2 * 8 * 72].view(2, 8, 8, 9).transpose(2, 3),
        "last": room[: 2 * 8 * 72].view(2, 8, 9, 8).contiguous(memory_format=LAST),
        "gaps": room[: 2 * 16 * 72].view(2, 16, 9, 8)[:, ::2],
        "shifted": room[1 : 2 * 8 * 72 + 1].view(2, 8, 9, 8),
        "a picture": room[: 8 * 72].view(1, 8, 9, 8),
        "expanded": room[:72].view(1, 1, 9, 8).expand(2, 8, 9, 8),
        "the input": x,
        "another type": torch.randn(2, 8, 9, 8).double(),
    }
    with torch.no_grad():
        for name, residual in added.items():
            wanted = F.relu(F.conv2d(x.double(), w.double()) + residual)
            for _ in range(3):
                got = functional.fused(x, w, None, residual, "relu", 1, 0, 1, 1)
                assert error(got, wanted) < 1e-5, name
        for name in ("turned", "gaps", "the input"):
            assert not python(asked, lambda n=name: functional.fused(x, w, None, added[n], "relu", 1, 0, 1, 1))[1], name


def block():
    """A model of several layers."""
    torch.manual_seed(0)
    made = Block().eval()
    made.norm.running_mean.normal_()
    return made


def test_models_layer_by_layer_with_and_without_enable(asked):  # noqa: F811
    plain = block()
    with torch.no_grad():
        for model in (ct.convert(copy.deepcopy(plain)), ct.convert(copy.deepcopy(plain), fuse=True)):
            for enabled in (True, False):
                if not enabled:  # converted layers hold by themselves
                    ct.disable()
                for turn in range(3):
                    x = torch.randn(2, 8, 9, 8)
                    ct.reset_counters()
                    got, by_python = python(asked, lambda x=x, model=model: model.forward(x))
                    native.pause(True)
                    assert error(got, plain(x).double()) < 1e-5
                    native.pause(False)
                    assert turn == 0 or not by_python
                    assert ct.counters()["reasons"] == {}
                ct.enable(solver="im2col*")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_weights_that_change_are_packed_anew(asked, mode, write):  # noqa: F811
    w, x = frozen(16, 8, 3, 3), torch.randn(2, 8, 9, 8)

    def run():
        return functional.fused(x, w, None, None, None, 1, 1, 1, 1)

    with mode():
        for _ in range(3):
            before = run()
        assert not python(asked, run)[1]
        assert _seen[id(w)].packed is not None
        with torch.no_grad():
            WRITES[write](w)
        for _ in range(3):
            torch.testing.assert_close(run(), before * 2)


def test_a_converted_layers_weights_may_learn_between_calls(asked):  # noqa: F811
    layer, x = ct.convert(nn.Conv2d(8, 16, 3, padding=1)), torch.randn(2, 8, 9, 8)
    for turn in range(4):
        with torch.no_grad():
            got, by_python = python(asked, lambda: layer(x))
            assert error(got, F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)) < 1e-5
            assert turn == 0 or not by_python
        (layer(x) ** 2).mean().backward()
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.1 * p.grad
                p.grad = None


def test_what_is_more_than_plain_inference_is_pythons(asked):  # noqa: F811
    w, x = frozen(8, 8, 1, 1), torch.randn(2, 8, 9, 8)

    def run(x=x):
        return functional.fused(x, w, None, None, "relu", 1, 0, 1, 1)

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    learns = x.clone().requires_grad_()
    for _ in range(2):
        got = run(learns)
        assert got.requires_grad
    with torch.no_grad():
        wanted = [run() for _ in range(3)][-1]
        assert not python(asked, run)[1]
        with policy(solver="im2col"):
            assert python(asked, run)[1]
        with Looking():
            assert torch.equal(run(), wanted)
        assert "convdispatch.fused_convolution.default" in seen
        assert "convdispatch.fused_native.default" not in seen
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                got = run()
                assert got.dtype is torch.bfloat16
        torch.testing.assert_close(torch.vmap(run)(x[None]), wanted[None])
        tangent = torch.func.jvp(lambda v: functional.fused(v, w, None, None, None, 1, 0, 1, 1), (x,), (x,))[1]
        torch.testing.assert_close(tangent, F.conv2d(x, w))
        end = ct.dispatch.engine.watch(lambda part, *_: seen.append(part))
        run()
        end()
        assert seen[-1] == "forward"
        with pytest.raises(RuntimeError, match="channels"):
            run(torch.randn(2, 7, 9, 8))
        run()  # jvp reads the weights' .data, by which they could have been written
        assert not python(asked, run)[1]


def test_several_threads_share_a_layer_whose_weights_come_and_go(asked):  # noqa: F811
    x, added = torch.randint(-4, 5, (2, 8, 17, 9)).float(), torch.randint(-4, 5, (2, 24, 15, 7)).float()
    w = nn.Parameter(torch.randint(-4, 5, (24, 8, 3, 3)).float(), requires_grad=False)
    wanted = F.relu(F.conv2d(x.double(), w.double()) + added)

    def work(_):
        with torch.no_grad():
            for turn in range(40):
                assert torch.equal(functional.fused(x, w, None, added, "relu", 1, 0, 1, 1).double(), wanted)
                if turn % 10 == 5:
                    w.mul_(1)  # packed anew; what was packed goes while others read it

    together(work, 5)


def test_nothing_holds_a_calls_tensors(asked):  # noqa: F811
    with torch.no_grad():
        x, w, added = torch.randn(2, 8, 9, 8), frozen(16, 8, 1, 1), torch.randn(2, 16, 9, 8)
        got = [functional.fused(x, w, None, added, "relu", 1, 0, 1, 1) for _ in range(3)]
    held = [weakref.ref(each) for each in (x, w, added, *got, _seen[id(w)].packed)]
    del x, w, added, got
    gc.collect()
    assert [each() for each in held] == [None] * len(held)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_childs_calls_are_pytorchs(asked):  # noqa: F811
    w, x = frozen(16, 8, 3, 3), torch.randn(2, 8, 9, 8)
    assert right_in_a_child(lambda: functional.fused(x, w, None, None, "relu", 1, 1, 1, 1))
