"""The native call path where a call is PyTorch's own kernel's: while ours is compiled, and for good."""

import gc
import subprocess
import sys
import weakref
from concurrent.futures import Future

import pytest
import torch
from paths import SUPPORT

import convdispatch.torch as ct
from convdispatch.calls.framework import tiers
from convdispatch.device import runtime
from convdispatch.torch.dispatch import native
from convdispatch.torch.eager.planning import TORCH

F = torch.nn.functional
CASES = {
    "plain": (F.conv2d, (2, 8, 9, 8), (16, 8, 3, 3), {"padding": 1}),
    "stride": (F.conv2d, (2, 8, 9, 8), (12, 8, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "groups": (F.conv2d, (2, 8, 9, 8), (16, 4, 3, 3), {"groups": 2, "dilation": 2}),
    "1d": (F.conv1d, (2, 8, 21), (6, 8, 3), {"padding": 1}),
    "3d": (F.conv3d, (1, 4, 5, 6, 7), (6, 4, 2, 3, 2), {}),
    "transposed": (F.conv_transpose2d, (2, 8, 5, 6), (8, 6, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
}


@pytest.fixture
def answers(stand_in, monkeypatch):
    """What children are to answer, by direction: nothing yet."""
    made = {}

    def ask(self, problem, policy, seconds):
        return made.setdefault(problem.direction, Future())

    monkeypatch.setenv("CONVDISPATCH_TIER", "ready")
    monkeypatch.setattr(tiers, "BURST_S", 0.0)
    monkeypatch.setattr(tiers.PlannerPool, "ask", ask)
    monkeypatch.setattr(tiers, "waits", lambda *_: False)
    monkeypatch.setattr(tiers._Allowance, "may_load", lambda *_: True)
    yield made
    tiers._pending.clear()


def close(got, wanted):
    assert (got.double() - wanted).norm() <= 1e-5 * wanted.norm()


def test_gradients_are_right_while_one_kernel_after_the_other_is_there(answers, path, parts):
    way, cuda = path
    torch.manual_seed(0)
    given = [torch.randn(size).requires_grad_() for size in ((2, 8, 9, 8), (16, 8, 3, 3), (16,))]
    grad = torch.randn(2, 16, 9, 8)
    native.pause(True)
    exact = [each.detach().double().requires_grad_() for each in given]
    ct.disable()
    result = F.conv2d(*exact, padding=1)
    wanted = torch.autograd.grad(result, exact, grad.double())
    ct.enable(solver="im2col*")
    native.pause(way == "python")
    ct.reset_counters()

    def steps(ours):
        """Three steps, of which each computes so many calls here; by the native path from the second on."""
        for turn in range(3):
            parts.clear(), cuda.theirs()
            before = ct.counters()
            got = F.conv2d(*given, padding=1)
            close(got.detach(), result.detach())
            cuda.driver.log.clear()
            for one, other in zip(torch.autograd.grad(got, given, grad), wanted, strict=True):
                close(one, other)
            assert ("cuLaunchKernel" in cuda.driver.names()) == (ours == 2), "nothing runs in vain"
            after = ct.counters()
            assert after["ours"] - before["ours"] == ours
            assert after["compiling"] - before["compiling"] == 2 - ours
            assert after["left"] == 0
            if way == "python":
                assert len(parts) == 3
                assert cuda.theirs() == 0
            elif turn:
                assert parts == []
                assert cuda.theirs() == 2 - ours

    steps(0)
    answers["fwd"].set_result(None)
    steps(1)
    answers["bwd_data"].set_result(None)
    steps(1)
    answers["bwd_weights"].set_result(None)
    steps(2)
    counts = ct.counters()
    assert (counts["compiling"], counts["convolution"], counts["convolution_backward"]) == (12, 9, 3)


def test_nothing_changes_inside_a_capture(answers, path, monkeypatch):
    way, cuda = path
    x, w = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3)
    with torch.no_grad():
        for _ in range(2):
            F.conv2d(x, w, padding=1)
        answers["fwd"].set_result(None)
        monkeypatch.setattr(TORCH, "capturing", lambda: True)
        for _ in range(3):
            F.conv2d(x, w, padding=1)
        assert ct.counters()["compiling"] == 5
        assert cuda.theirs() == (4 if way == "native" else 0)
        monkeypatch.setattr(TORCH, "capturing", lambda: False)
        F.conv2d(x, w, padding=1)
        assert ct.counters()["ours"] == 1
        assert ct.counters()["compiling"] == 5


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_pytorchs_kernel_is_given_the_call_as_it_is(stand_in, parts, name, bias):
    kind, shape, weights, options = CASES[name]
    torch.manual_seed(0)
    given = [torch.randn(shape).requires_grad_(), torch.randn(weights).requires_grad_()]
    if bias:
        given.append(torch.randn(weights[1] if name == "transposed" else weights[0]).requires_grad_())
    result = kind(*given, **options)
    grad = torch.randn(result.shape)
    wanted = torch.autograd.grad(result, given, grad)
    with ct.enable(min_flops=1e15):
        ct.reset_counters()
        for turn in range(3):
            parts.clear(), stand_in.theirs()
            got = kind(*given, **options)
            assert torch.equal(got, result)
            assert got.stride() == result.stride()
            for one, other in zip(torch.autograd.grad(got, given, grad), wanted, strict=True):
                assert torch.equal(one, other)
            assert stand_in.theirs() == (2 if turn else 0)
            assert bool(parts) == (not turn)
        assert ct.counters()["left"] == 6
        assert set(ct.counters()["reasons"].values()) == {3}
        assert ct.counters()["ours"] == 0


def test_gradients_that_nobody_asks_for(stand_in):
    x, w, grad = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3), torch.randn(2, 16, 9, 8)
    rest = ([16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    with ct.enable(min_flops=1e15):
        for mask in ([True, False, False], [False, True, False], [False, False, True]):
            answers = [torch.ops.aten.convolution_backward(grad, x, w, *rest, mask) for _ in range(2)]
            for one, other in zip(*answers, strict=True):
                assert (one is None) == (other is None)
                assert one is None or torch.equal(one, other)
            assert [each is not None for each in answers[1]] == mask
        assert stand_in.theirs() == 2, "the last is a sum of ours"


def test_in_inference_mode(answers, stand_in, parts):
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False), torch.randn(2, 8, 9, 8)
    exact = F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)
    with ct.enable(solver="im2col*"), torch.inference_mode():
        for turn in range(3):
            parts.clear()
            close(layer(x), exact)
            assert bool(parts) == (not turn)
        assert stand_in.theirs() == 2
        answers["fwd"].set_result(None)
        for _ in range(3):
            close(layer(x), exact)
        assert stand_in.launched
    assert ct.counters()["compiling"] >= 3


def test_a_kernel_that_fails_is_asked_for_by_python(stand_in):
    x, w = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3)
    with ct.enable(min_flops=1e15), torch.no_grad():
        F.conv2d(x, w, padding=1)
        wanted = F.conv2d(x, w, padding=1)
        assert stand_in.theirs(failing=True) == 1
        assert torch.equal(F.conv2d(x, w, padding=1), wanted)
        assert stand_in.theirs() == 0


def test_nothing_holds_a_calls_tensors(answers, path):
    for _ in range(3):
        given = [torch.randn(size).requires_grad_() for size in ((2, 8, 9, 8), (16, 8, 3, 3), (16,))]
        got = F.conv2d(*given, padding=1)
        gradients = torch.autograd.grad(got.sum(), given)
        kept = [weakref.ref(each) for each in (*given, got, *gradients)]
        del given, got, gradients
        gc.collect()
        assert [each() for each in kept] == [None] * len(kept)


def test_without_pytorchs_kernels_python_leaves_the_calls(stand_in, monkeypatch, parts):
    """As in a PyTorch whose compiled models call them otherwise."""
    real = native.loading.launcher()

    class Lacking:
        def __getattr__(self, name):
            return getattr(real, name)

        def offer(self, steps, *rest):
            return bool(steps) and real.offer(steps, *rest)

    monkeypatch.setattr(native.loading, "launcher", Lacking)
    x, w = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3)
    with ct.enable(min_flops=1e15), torch.no_grad():
        for _ in range(3):
            F.conv2d(x, w, padding=1)
        assert len(parts) == 3


def test_a_process_ends_while_calls_are_pytorchs(stand_in, device):
    """What is asked each time, of calls that are left and of packed weights, is Python's, and Python ends first."""
    text = """if True:
        import sys
        import pytest, torch
        import convdispatch.torch as ct
        from convdispatch.device import runtime
        import native_stand_in
        begun = native_stand_in.installed(pytest.MonkeyPatch(), runtime.find_device(sys.argv[1]))
        theirs = next(begun).theirs
        ct.enable(min_flops=1e15)
        x, w = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3)
        for no_gradients in (torch.no_grad, torch.inference_mode):
            with no_gradients():
                for _ in range(2):
                    torch.nn.functional.conv2d(x, w)
        print(theirs())
        sys.exit(7)
    """
    command = [sys.executable, "-c", text, runtime.address(device)]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (7, ["2"]), done.stderr
