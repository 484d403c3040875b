"""The native call path with a library of C in the place of CUDA's driver, beside the same calls by Python alone."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from native_stand_in import stand_in  # noqa: E402, F401 (torch is asked for first)
from threads import together  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch import policy  # noqa: E402
from convdispatch.selection import dispatch  # noqa: E402
from convdispatch.torch.dispatch import engine, native  # noqa: E402
from convdispatch.torch.weights import _seen  # noqa: E402

F = torch.nn.functional
# in, out, kernel, and the operator's arguments
SHAPES = {
    "3x3": ((2, 8, 9, 8), (16, 8, 3, 3), {"padding": 1}),
    "stride": ((2, 8, 9, 8), (12, 8, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "groups": ((2, 8, 9, 8), (16, 4, 3, 3), {"groups": 2, "dilation": 2}),
    "1d": ((2, 8, 21), (6, 8, 3), {"padding": 1}),
}
TRANSPOSED = {
    "transposed": ((2, 8, 5, 6), (8, 6, 3, 3), {"stride": 2, "padding": 1}),
    "longer": ((2, 8, 5, 6), (8, 6, 2, 2), {"dilation": 2, "output_padding": 1}),
}


@pytest.fixture(params=["native", "python"])
def path(request, stand_in):  # noqa: F811
    """Both ways: all calls of the second are Python's."""
    with ct.enable(solver="im2col*"):
        native.pause(request.param == "python")
        ct.reset_counters()
        yield request.param, stand_in
        native.pause(False)


def operands(shape, weights, form=torch.contiguous_format, channels=None):
    torch.manual_seed(0)
    x, w = torch.randn(shape), torch.randn(weights)
    if len(shape) == 4:
        x, w = x.contiguous(memory_format=form), w.contiguous(memory_format=form)
    return x.requires_grad_(), w.requires_grad_(), torch.randn(channels or weights[0]).requires_grad_()


def close(got, wanted):
    assert (got.double() - wanted).norm() <= 1e-5 * wanted.norm()


def trained(convolve, x, w, bias, grad, **options):
    """(result, gradients) by float64, and what the call gives."""
    got = convolve(x, w, bias, **options)
    return got.detach(), torch.autograd.grad(got, [each for each in (x, w, bias) if each is not None], grad)


@pytest.mark.parametrize("name", [*SHAPES, *TRANSPOSED])
def test_a_step_three_times(path, name):
    way, cuda = path
    shape, weights, options = (SHAPES | TRANSPOSED)[name]
    transposed = name in TRANSPOSED
    kind = {3: F.conv1d, 4: F.conv_transpose2d if transposed else F.conv2d}[len(shape)]
    form = torch.channels_last if name in ("stride", "transposed") else torch.contiguous_format
    x, w, bias = operands(shape, weights, form, weights[1] if transposed else None)
    bias = bias if name in ("3x3", "transposed") else None
    exact = [None if each is None else each.detach().double().requires_grad_() for each in (x, w, bias)]
    with torch.enable_grad():
        native.pause(True)
        result = kind(*exact, **options)
        grad = torch.randn(result.shape)
        wanted = torch.autograd.grad(result, [each for each in exact if each is not None], grad.double())
        native.pause(way == "python")
    for turn in range(3):
        cuda.launched.clear()
        cuda.driver.log.clear()
        got, gradients = trained(kind, x, w, bias, grad, **options)
        close(got, result.detach())
        for one, other in zip(gradients, wanted, strict=True):
            close(one, other)
            assert one.dtype is torch.float32
        if way == "python" or not turn or name == "longer":
            assert not cuda.launched
        else:
            assert cuda.launched
            assert "cuMemAllocFromPoolAsync" not in cuda.driver.names()


def test_counters_and_what_ran_last(path):
    x, w, _ = operands(*SHAPES["3x3"][:2])
    for _ in range(5):
        F.conv2d(x, w, padding=1).sum().backward()
    counts = ct.counters()
    assert counts["convolution"] == counts["convolution_backward"] == 5
    assert sum(counts["solvers"].values()) == 15
    assert ct.counters()["solvers"] == counts["solvers"]


def test_gradients_that_nobody_asks_for_are_not_made(path):
    x, w, bias = operands(*SHAPES["3x3"][:2])
    x.requires_grad_(False)
    for _ in range(3):
        gradients = torch.autograd.grad(F.conv2d(x, w, bias, padding=1).sum(), (w, bias))
        assert [each.shape for each in gradients] == [w.shape, bias.shape]
        answer = torch.ops.aten.convolution_backward(
            torch.ones(2, 16, 9, 8), x, w, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
        )
        assert answer[0] is None
        assert answer[2] is None
        assert torch.equal(answer[1], gradients[0])


def test_other_tensors_of_the_same_kind_need_no_python(stand_in):  # noqa: F811
    """As under autocast, which makes new weights each step: addresses are arguments."""
    kept = []
    with ct.enable(solver="im2col*"), torch.no_grad():
        for turn in range(6):
            x, w = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3)
            kept += [x, w]
            stand_in.launched.clear()
            close(F.conv2d(x, w, padding=1), F.conv2d(x.double(), w.double(), padding=1))
            assert bool(stand_in.launched) == (turn > 0)


def test_what_decides_a_call_is_in_its_key(stand_in, monkeypatch):  # noqa: F811
    x, w, bias = (each.detach() for each in operands(*SHAPES["3x3"][:2]))
    asked = []
    real = engine.cached_call
    monkeypatch.setattr(engine, "cached_call", lambda *a, **k: asked.append(a[0]) or real(*a, **k))

    def python(run):
        """Whether Python was asked the first time, and not the second."""
        asked.clear()
        with torch.no_grad():
            run()
            first = len(asked)
            run()
        return first > 0 and len(asked) == first

    with ct.enable(solver="im2col*"):
        assert python(lambda: F.conv2d(x, w, padding=1))
        assert python(lambda: F.conv2d(x, w, bias, padding=1))
        assert python(lambda: F.conv2d(x, w, padding=0))
        assert python(lambda: F.conv2d(x, w, padding=1, dilation=2))
        assert python(lambda: F.conv2d(x[:1], w, padding=1))
        assert python(lambda: F.conv2d(x.to(memory_format=torch.channels_last), w, padding=1))
        assert not python(lambda: F.conv2d(x, w, padding=1)), "it was known"
        for name in ("allow_tf32", "deterministic", "benchmark"):
            before = getattr(torch.backends.cudnn, name)
            setattr(torch.backends.cudnn, name, not before)
            try:
                assert python(lambda: F.conv2d(x, w, padding=1)), name
            finally:
                setattr(torch.backends.cudnn, name, before)
        asked.clear()
        with policy(solver="im2col"), torch.no_grad():
            F.conv2d(x, w, padding=1)
            F.conv2d(x, w, padding=1)
        assert len(asked) == 2, "a policy's calls are Python's"
    with ct.enable(math="ieee"):
        assert python(lambda: F.conv2d(x, w, padding=1)), "enable() with other words"
    with ct.enable(solver="im2col*"), torch.no_grad():
        end = engine.watch(lambda *_: None)
        asked.clear()
        F.conv2d(x, w, padding=1)
        F.conv2d(x, w, padding=1)
        assert len(asked) == 2, "who watches sees each call"
        end()


@pytest.mark.parametrize("depthwise", [False, True])
def test_operands_that_lie_otherwise_are_copied_below_python(stand_in, monkeypatch, depthwise):  # noqa: F811
    """Pictures of transformers: tokens, seen as channels last, and weights that lie plainly."""
    torch.manual_seed(0)
    channels, group = 8, 8 if depthwise else 1
    monkeypatch.setattr(native, "kernels_of", lambda grad: pytest.fail("they would read the copy of the gradient"))
    w, bias = torch.randn(channels, channels // group, 3, 3), torch.randn(2 * channels)[::2]
    w.requires_grad_(), bias.requires_grad_()
    for turn in range(3):
        x = torch.randn(2, 30, channels).transpose(1, 2).unflatten(2, (5, 6)).requires_grad_()
        grad = torch.randn(channels).view(1, -1, 1, 1).expand(2, -1, 5, 6)  # of a mean
        exact = [each.detach().double().requires_grad_() for each in (x, w, bias)]
        wanted = F.conv2d(*exact, padding=1, groups=group)
        stand_in.launched.clear()
        with ct.enable(solver="im2col*"):
            got = F.conv2d(x, w, bias, padding=1, groups=group)
            forward = len(stand_in.launched)
            gradients = torch.autograd.grad(got, (x, w, bias), grad)
        assert bool(forward) == bool(len(stand_in.launched) > forward) == (turn > 0)
        close(got.detach(), wanted.detach())
        for one, other in zip(gradients, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
            close(one, other)


def test_gaps_shifted_memory_and_another_context(stand_in):  # noqa: F811
    x, w, _ = (each.detach() for each in operands(*SHAPES["3x3"][:2]))
    expected = F.conv2d(x.double(), w.double(), padding=1)
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    gaps = x.transpose(2, 3).contiguous().transpose(2, 3)
    with ct.enable(solver="im2col*"), torch.no_grad():
        for _ in range(2):
            close(F.conv2d(x, w, padding=1), expected)
        for each in (shifted, gaps):
            for turn in range(2):
                stand_in.launched.clear()
                close(F.conv2d(each, w, padding=1), expected)
                assert bool(stand_in.launched) == (turn > 0 and each is gaps)
        stand_in.context(0xBAD)
        stand_in.launched.clear()
        close(F.conv2d(x, w, padding=1), expected)
        assert not stand_in.launched
        stand_in.context()
        close(F.conv2d(x, w, padding=1), expected)
        assert stand_in.launched


def test_a_launch_that_fails_is_pythons(stand_in):  # noqa: F811
    x, w, _ = (each.detach() for each in operands(*SHAPES["3x3"][:2]))
    expected = F.conv2d(x.double(), w.double(), padding=1)
    with ct.enable(solver="im2col*"), torch.no_grad():
        for _ in range(2):
            close(F.conv2d(x, w, padding=1), expected)
        ct.reset_counters()
        stand_in.status = 700
        close(F.conv2d(x, w, padding=1), expected)
        stand_in.status = 0
        close(F.conv2d(x, w, padding=1), expected)
        assert ct.counters()["convolution"] == 2
        assert sum(ct.counters()["solvers"].values()) == 2


def test_errors_are_pytorchs_kinds(path):
    x, w, _ = operands(*SHAPES["3x3"][:2])
    with pytest.raises(RuntimeError, match="channels"):
        F.conv2d(x, torch.randn(16, 7, 3, 3))

    class Unusual(BaseException):
        pass

    def watcher(*_):
        raise Unusual("of a watcher")

    end = engine.watch(watcher)
    with pytest.raises(Unusual, match="of a watcher"):
        F.conv2d(x, w, padding=1)
    end()


def test_constant_weights_in_inference_mode(stand_in, monkeypatch):  # noqa: F811
    layer = torch.nn.Conv2d(8, 16, 3, padding=1)
    layer.requires_grad_(False)
    x = torch.randn(2, 8, 9, 8)

    def exact():
        return F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)

    with ct.enable(solver="im2col*"), torch.inference_mode():
        for turn in range(3):
            stand_in.launched.clear()
            close(layer(x), exact())
            assert bool(stand_in.launched) == (turn > 0)
        with torch.no_grad():
            layer.weight.mul_(2)
        close(layer(x), exact())
        close(layer(x), exact())
        layer.weight.data = torch.randn(16, 8, 3, 3)
        close(layer(x), exact())
        other = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False)
        wanted = F.conv2d(x.double(), other.weight.double(), other.bias.double(), padding=1)
        for _ in range(3):
            close(other(x), wanted)
            close(layer(x), exact())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_holds_a_calls_tensors(path, mode):
    for _ in range(3):
        given = operands(*SHAPES["3x3"][:2])
        with mode():
            got = F.conv2d(*given, padding=1)
        if mode is torch.no_grad:
            wanted = F.conv2d(*given, padding=1)
            gradients = torch.autograd.grad(wanted.sum(), given)
            held = [weakref.ref(each) for each in (*given, got, wanted, *gradients)]
            del wanted, gradients
        else:
            held = [weakref.ref(each) for each in (*given, got)]
        del given, got
        gc.collect()
        assert [each() for each in held] == [None] * len(held)


def test_packed_weights_go_with_their_layer(stand_in):  # noqa: F811
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False), torch.randn(2, 8, 9, 8)
    with ct.enable(solver="im2col*"), torch.inference_mode():
        for _ in range(3):
            layer(x)
        packed = weakref.ref(_seen[id(layer.weight)].packed)
        assert packed() is not None
        del layer
        gc.collect()
        assert packed() is None


def test_tracing_records_pytorchs_operators(stand_in):  # noqa: F811
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1), torch.randn(2, 8, 9, 8)
    with ct.enable(solver="im2col*"), torch.no_grad():
        layer(x)
        layer(x)
        stand_in.launched.clear()
        traced = torch.jit.trace(layer, (x,), check_trace=False)
        assert not stand_in.launched
        assert "aten::_convolution" in str(traced.graph)


def test_several_threads(stand_in):  # noqa: F811
    x, w, _ = operands(*SHAPES["3x3"][:2])
    wanted = F.conv2d(x.double(), w.double(), padding=1).detach()

    def work(_):
        for _ in range(20):
            mine = x.detach().clone().requires_grad_()
            got = F.conv2d(mine, w, padding=1)
            got.sum().backward()
            assert (got.double() - wanted).norm() <= 1e-5 * wanted.norm()

    with ct.enable(solver="im2col*"):
        together(work, 4)


def test_disabled_it_is_gone(stand_in, capfd):  # noqa: F811
    x, w, _ = (each.detach() for each in operands(*SHAPES["3x3"][:2]))
    with torch.no_grad():
        with ct.enable(solver="im2col*"):
            F.conv2d(x, w, padding=1)
            F.conv2d(x, w, padding=1)
        stand_in.launched.clear()
        F.conv2d(x, w, padding=1)
        assert not stand_in.launched
        with ct.enable(solver="im2col*"):
            F.conv2d(x, w, padding=1)
            assert stand_in.launched, "decided before, under the same words"
    assert "verrid" not in capfd.readouterr().err


def test_a_step_that_enters_enable_anew_plans_nothing(stand_in, monkeypatch):  # noqa: F811
    """What other words decide is apart from it."""
    asked = []
    real = engine.cached_call
    monkeypatch.setattr(engine, "cached_call", lambda *a, **k: asked.append(a[0]) or real(*a, **k))
    net = torch.nn.Sequential(*(torch.nn.Conv2d(each, each + 1, 3, padding=1) for each in (2, 3, 4)))
    x = torch.randn(2, 2, 6, 5)
    weights = list(net.parameters())
    wanted = torch.autograd.grad(net(x).square().sum(), weights)
    counts = []
    for solver in ("im2col*", "im2col*", "implicitgemm*", "im2col*", "implicitgemm*"):
        asked.clear()
        ct.reset_counters()
        with ct.enable(solver=solver):
            gradients = torch.autograd.grad(net(x).square().sum(), weights)
        for one, other in zip(gradients, wanted, strict=True):
            close(one, other.double())
        counts.append(len(asked))
        assert {name.split(".")[0] for name in ct.counters()["solvers"]} == {solver.rstrip("*")}
    assert counts == [8, 0, 8, 0, 0]
    dispatch.forget()
    with ct.enable(solver="im2col*"):
        net(x)
    assert len(asked) == 3, "what is chosen anew is asked for anew"
