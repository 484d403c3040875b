"""The native call path, on a CPU and, with a library of C in the place of CUDA's driver, on a GPU: what Python decided
runs again without it, with the same bits, or goes to Python."""

import gc
import os
import weakref

import pytest
import torch
from native_checks import LAST, WRITES, right_in_a_child
from threads import together
from torch.utils._python_dispatch import TorchDispatchMode

import convdispatch.torch as ct
from convdispatch import policy
from convdispatch.selection import dispatch
from convdispatch.torch.dispatch import engine, native
from convdispatch.torch.weights import _seen

F = torch.nn.functional
FIRST = torch.contiguous_format
# in, weights, memory formats of both, the operator's arguments
CASES = {
    "3x3": ((2, 8, 9, 8), (16, 8, 3, 3), FIRST, FIRST, {"padding": 1}),
    "channels last": ((2, 20, 9, 8), (12, 20, 3, 2), LAST, LAST, {"stride": (2, 1), "padding": (1, 0)}),
    "weights first": ((2, 20, 9, 8), (37, 20, 3, 3), LAST, FIRST, {"padding": 1}),
    "input first": ((2, 19, 9, 8), (12, 19, 2, 2), FIRST, LAST, {}),
    "groups": ((2, 8, 9, 8), (16, 4, 3, 3), FIRST, FIRST, {"groups": 2, "dilation": 2}),
    "depthwise": ((2, 12, 9, 8), (12, 1, 3, 3), LAST, FIRST, {"groups": 12, "padding": 1}),
    "1d": ((2, 8, 21), (6, 8, 3), FIRST, FIRST, {"padding": 1}),
    "3d": ((1, 4, 5, 6, 7), (6, 4, 3, 3, 3), FIRST, FIRST, {"padding": 1}),
    "transposed": ((2, 8, 5, 6), (8, 6, 3, 3), FIRST, LAST, {"stride": 2, "padding": 1}),
    "longer": ((2, 8, 5, 6), (8, 6, 2, 2), FIRST, FIRST, {"dilation": 2, "output_padding": 1}),
}


@pytest.fixture(params=["cpu", "cuda"])
def asked(request, parts, device):
    """What Python was asked for since this was cleared, inside enable() with a solver that packs constant weights."""
    request.getfixturevalue("here" if request.param == "cpu" else "stand_in")
    with ct.enable(solver="im2col*"):
        ct.reset_counters()
        yield parts
    native.forget()


def operands():
    torch.manual_seed(0)
    shape, weights = CASES["3x3"][:2]
    x, w = torch.randn(shape), torch.randn(weights)
    return x.requires_grad_(), w.requires_grad_(), torch.randn(weights[0]).requires_grad_()


def close(got, wanted):
    assert (got.double() - wanted).norm() <= 1e-5 * wanted.norm()


def exactly(layer, x):
    return F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)


def step(kind, x, w, bias, grad, options):
    got = kind(x, w, bias, **options)
    return [got.detach(), *torch.autograd.grad(got, (x, w, bias), grad)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in CASES), ("weights first", torch.float16), ("3x3", torch.float64)],
)
def test_a_step_again_asks_nothing_and_has_the_same_bits(asked, name, dtype):
    shape, weights, of_x, of_w, options = CASES[name]
    transposed = name in ("transposed", "longer")
    kind = F.conv_transpose2d if transposed else getattr(F, f"conv{len(shape) - 2}d")
    answers = []
    for turn in range(5):  # other tensors each time: addresses are arguments
        torch.manual_seed(turn % 2)
        x = (torch.randn(shape).to(dtype).contiguous(memory_format=of_x)).requires_grad_()
        w = (torch.randn(weights).to(dtype).contiguous(memory_format=of_w)).requires_grad_()
        bias = torch.randn(weights[1] if transposed else weights[0]).to(dtype).requires_grad_()
        native.pause(True)
        wide = [each.detach().double().requires_grad_() for each in (x, w, bias)]
        grad = torch.randn(kind(*wide, **options).shape).to(dtype)
        wanted = step(kind, *wide, grad.double(), options)
        native.pause(turn == 4)
        asked.clear()
        answers.append(step(kind, x, w, bias, grad, options))
        native.pause(False)
        assert bool(asked) == (turn in (0, 4) or name == "longer"), (
            "what was decided is Python's, or nothing is decided"
        )
        for got, exact in zip(answers[-1], wanted, strict=True):
            assert got.dtype is dtype
            assert (got.double() - exact).norm() <= (2e-3 if dtype is torch.float16 else 1e-5) * exact.norm()
    for turn in (0, 1, 2):
        for one, other in zip(answers[turn], answers[turn + 2], strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((37, 20, 3, 3), torch.float32),
        ((5, 33, 17, 19), torch.float64),
        ((1, 64, 20, 21), torch.float16),
        ((3, 1, 3, 3), torch.float32),
        ((70, 3, 1, 5), torch.float32),
    ],
)
def test_weights_are_copied_to_channels_last_as_pytorch_does(asked, shape, dtype):
    """Pictures of one 1 among zeros, as large as the filters: results are the weights' own elements."""
    w = torch.arange(torch.Size(shape).numel()).remainder(251).to(dtype).view(shape)
    size = w[0].numel()
    chosen = torch.arange(0, size, max(1, size // 60) | 1)
    x = torch.zeros(len(chosen), size, dtype=dtype)
    x[torch.arange(len(chosen)), chosen] = 1
    x = x.view(-1, *shape[1:]).contiguous(memory_format=LAST)
    wanted = x.flatten(1).double() @ w.flatten(1).double().t()
    with torch.no_grad():
        for turn in range(3):
            asked.clear()
            got = F.conv2d(x, w)
            assert bool(asked) == (turn == 0)
            assert torch.equal(got.flatten(1).double(), wanted)


def python(asked, run):
    """Whether Python was asked the first time, and not the second."""
    asked.clear()
    run()
    first = len(asked)
    run()
    return first > 0 and len(asked) == first


@pytest.mark.parametrize("asked", ["cpu"], indirect=True)
def test_what_decides_a_call_is_in_its_key(asked):
    x, layer = torch.randn(2, 8, 9, 8), torch.nn.Conv2d(8, 16, 3, padding=1)
    with torch.no_grad():
        assert python(asked, lambda: layer(x))
        assert python(asked, lambda: layer(x[:1]))
        assert python(asked, lambda: layer(x.contiguous(memory_format=LAST)))
        torch.set_float32_matmul_precision("high")
        try:
            assert python(asked, lambda: layer(x))
        finally:
            torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(True)
        try:
            assert python(asked, lambda: layer(x))
        finally:
            torch.use_deterministic_algorithms(False)
        asked.clear()
        layer(x)
        assert not asked
        layer.requires_grad_(False)
        assert python(asked, lambda: layer(x))
        with torch.inference_mode():
            assert python(asked, lambda: layer(x))
        with policy(solver="im2col"):
            assert not python(asked, lambda: layer(x))
    assert python(asked, lambda: layer(x))


@pytest.mark.parametrize("asked", ["cuda"], indirect=True)
def test_what_decides_a_call_on_cuda_is_in_its_key(asked):
    x, w, bias = (each.detach() for each in operands())
    with torch.no_grad():
        for given, options in (
            ((x, w), {"padding": 1}), ((x, w, bias), {"padding": 1}), ((x, w), {"padding": 0}),
            ((x, w), {"padding": 1, "dilation": 2}), ((x[:1], w), {"padding": 1}),
            ((x.to(memory_format=LAST), w), {"padding": 1}),
        ):  # fmt: skip
            assert python(asked, lambda: F.conv2d(*given, **options))  # noqa: B023
        assert not python(asked, lambda: F.conv2d(x, w, padding=1)), "it was known"
        for name in ("allow_tf32", "deterministic", "benchmark"):
            before = getattr(torch.backends.cudnn, name)
            setattr(torch.backends.cudnn, name, not before)
            try:
                assert python(asked, lambda: F.conv2d(x, w, padding=1)), name
            finally:
                setattr(torch.backends.cudnn, name, before)
        for paused in ("a policy", "a watcher"):
            end = engine.watch(lambda *_: None) if paused == "a watcher" else int
            asked.clear()
            with policy(solver="im2col" if paused == "a policy" else None):
                F.conv2d(x, w, padding=1)
                F.conv2d(x, w, padding=1)
            assert len(asked) == 2, f"{paused} sees each call in Python"
            end()
        with ct.enable(math="ieee"):
            assert python(asked, lambda: F.conv2d(x, w, padding=1)), "enable() with other words"


def test_gaps_shifted_memory_and_nothing(asked):
    room, layer = torch.randn(2 * 16 * 9 * 8 + 4), torch.nn.Conv2d(8, 16, 3, padding=1)
    given = {
        "gaps": room[: 2 * 16 * 72].view(2, 16, 9, 8)[:, ::2],
        "shifted": room[1 : 2 * 8 * 72 + 1].view(2, 8, 9, 8),
        "turned": room[: 2 * 8 * 72].view(2, 8, 8, 9).transpose(2, 3),
        "expanded": room[:72].view(1, 1, 9, 8).expand(2, 8, 9, 8),
        "none": torch.empty(0, 8, 9, 8),
    }
    with torch.no_grad():
        for name, x in given.items():
            for turn in range(3):
                asked.clear()
                got, wanted = layer(x), exactly(layer, x)
                assert got.shape == wanted.shape
                assert (got - wanted).norm() <= 1e-5 * wanted.norm(), name
                assert name not in ("gaps", "turned") or bool(asked) == (turn == 0)
                assert name != "shifted" or asked


@pytest.mark.parametrize("depthwise", [False, True])
def test_operands_that_lie_otherwise_are_copied_below_python(stand_in, monkeypatch, depthwise):
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


def test_another_context_is_pythons(stand_in):
    x, w, _ = (each.detach() for each in operands())
    expected = F.conv2d(x.double(), w.double(), padding=1)
    with ct.enable(solver="im2col*"), torch.no_grad():
        for context, launches in ((None, False), (None, True), (0xBAD, False), (None, True)):
            stand_in.context(context)
            stand_in.launched.clear()
            close(F.conv2d(x, w, padding=1), expected)
            assert bool(stand_in.launched) == launches


def test_a_launch_that_fails_is_pythons(stand_in):
    x, w, _ = (each.detach() for each in operands())
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
    x, w, _ = operands()
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


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_constant_weights_that_change_are_packed_anew(request, asked, mode, write):
    """On CUDA, in inference mode alone, and where PyTorch counts the write or a parameter's ``.data`` is read."""
    if "cuda" in request.node.name and (mode is torch.enable_grad or write in ("by a view", "by NumPy")):
        pytest.skip("no constant weights")
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1, bias=False).requires_grad_(False), torch.randn(2, 8, 9, 8)
    other = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False)
    with mode():
        for _ in range(3):
            before = layer(x)
        asked.clear()
        assert torch.equal(layer(x), before)
        assert not asked
        assert _seen[id(layer.weight)].packed is not None
        with torch.no_grad():
            WRITES[write](layer.weight)
        for _ in range(3):
            torch.testing.assert_close(layer(x), before * 2)
            close(other(x), exactly(other, x))


@pytest.mark.parametrize("asked", ["cpu"], indirect=True)
def test_weights_that_learn_again_are_no_longer_constant(asked):
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False), torch.randn(2, 8, 9, 8)
    for _ in range(3):
        frozen = layer(x)
    assert _seen[id(layer.weight)].packed is not None
    layer.requires_grad_(True)
    for _ in range(3):
        got = layer(x)
        assert id(layer.weight) not in _seen
        torch.testing.assert_close(got, frozen)
        got.sum().backward()
        assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_holds_a_calls_tensors(asked, mode):
    for _ in range(3):
        given = operands()
        layer = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False)
        with mode():
            got = [layer(given[0].detach()) for _ in range(3)]
        packed = _seen.get(id(layer.weight))
        held = [*given, layer.weight, layer.bias, *got, *([packed.packed] if packed and packed.packed else [])]
        if mode is torch.no_grad:
            result = F.conv2d(*given, padding=1)
            held += [result, *torch.autograd.grad(result.sum(), given)]
            del result
        held = [weakref.ref(each) for each in held]
        del given, layer, got, packed
        gc.collect()
        assert [each() for each in held] == [None] * len(held)


def test_packed_weights_go_with_their_layer(stand_in):
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False), torch.randn(2, 8, 9, 8)
    with ct.enable(solver="im2col*"), torch.inference_mode():
        for _ in range(3):
            layer(x)
        packed = weakref.ref(_seen[id(layer.weight)].packed)
        assert packed() is not None
        del layer
        gc.collect()
        assert packed() is None


@pytest.mark.parametrize("asked", ["cpu"], indirect=True)
def test_more_threads_than_before(asked):
    x, layer = torch.randn(2, 8, 9, 8), torch.nn.Conv2d(8, 16, 3, padding=1)
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            wanted = [layer(x) for _ in range(2)][-1]
            for count in (1, 3, before, 7):
                torch.set_num_threads(count)
                layer(x)
                asked.clear()
                assert torch.equal(layer(x), wanted)
                assert not asked
    finally:
        torch.set_num_threads(before)


def test_several_threads_share_layers_whose_weights_come_and_go(asked):
    x = torch.randint(-4, 5, (2, 8, 17, 9)).float()
    shared = torch.nn.Conv2d(8, 24, 3, bias=False)
    shared.weight.data = torch.randint(-4, 5, shared.weight.shape).float()
    shared.requires_grad_(False)
    wanted = F.conv2d(x.double(), shared.weight.double())

    x_learning, w_learning, _ = operands()
    learnt = F.conv2d(x_learning.double(), w_learning.double(), padding=1).detach()

    def work(_):
        for turn in range(40):
            with torch.no_grad():
                assert torch.equal(shared(x).double(), wanted)
                if turn % 10 == 5:
                    shared.weight.mul_(1)  # packed anew; what was packed goes while others read it
            if turn % 4 == 0:
                got = F.conv2d(x_learning.detach().clone().requires_grad_(), w_learning, padding=1)
                close(got.detach(), learnt)
                got.sum().backward()

    together(work, 5)


def test_modes_and_tracers_see_the_operator(asked):
    layer, x, seen = torch.nn.Conv2d(8, 16, 3, padding=1), torch.randn(2, 8, 9, 8), []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with torch.no_grad():
        wanted = [layer(x) for _ in range(3)][-1]
        with Mode():
            assert torch.equal(layer(x), wanted)
        assert torch.ops.aten.convolution.default in seen
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                got = layer(x)
                assert got.dtype is torch.bfloat16
                torch.testing.assert_close(got.float(), wanted, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(torch.vmap(layer)(x[None]), wanted[None])
        traced = torch.jit.trace(layer, (x,), check_trace=False)
        assert "aten::_convolution" in str(traced.graph)
    tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, F.conv2d(torch.ones_like(x), layer.weight, padding=1))


def test_disabled_it_is_gone(stand_in, capfd):
    x, w, _ = (each.detach() for each in operands())
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


def test_a_step_that_enters_enable_anew_plans_nothing(stand_in, parts):
    """What other words decide is apart from it."""
    net = torch.nn.Sequential(*(torch.nn.Conv2d(each, each + 1, 3, padding=1) for each in (2, 3, 4)))
    x = torch.randn(2, 2, 6, 5)
    weights = list(net.parameters())
    wanted = torch.autograd.grad(net(x).square().sum(), weights)
    counts = []
    for solver in ("im2col*", "im2col*", "implicitgemm*", "im2col*", "implicitgemm*"):
        parts.clear()
        ct.reset_counters()
        with ct.enable(solver=solver):
            gradients = torch.autograd.grad(net(x).square().sum(), weights)
        for one, other in zip(gradients, wanted, strict=True):
            close(one, other.double())
        counts.append(len(parts))
        assert {name.split(".")[0] for name in ct.counters()["solvers"]} == {solver.rstrip("*")}
    assert counts == [8, 0, 8, 0, 0]
    dispatch.forget()
    with ct.enable(solver="im2col*"):
        net(x)
    assert len(parts) == 3, "what is chosen anew is asked for anew"


def test_counters_and_what_ran_last(path):
    x, w, _ = operands()
    for _ in range(5):
        F.conv2d(x, w, padding=1).sum().backward()
    counts = ct.counters()
    assert counts["convolution"] == counts["convolution_backward"] == 5
    assert sum(counts["solvers"].values()) == 15
    assert ct.counters()["solvers"] == counts["solvers"]


def test_gradients_that_nobody_asks_for_are_not_made(path):
    x, w, bias = operands()
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("asked", ["cpu"], indirect=True)
def test_a_forked_childs_calls_are_pytorchs(asked):
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1), torch.randn(2, 8, 9, 8)
    assert right_in_a_child(lambda: layer(x))


@pytest.mark.parametrize("asked", ["cpu"], indirect=True)
def test_a_call_that_finds_no_queues_is_pythons_and_counted_once(asked):
    x, layer = torch.randn(2, 8, 9, 8), torch.nn.Conv2d(8, 16, 3, padding=1)
    with torch.no_grad():
        wanted = [layer(x) for _ in range(3)][-1]
        ct.reset_counters()
        asked.clear()
        before = torch.get_num_threads()
        torch.set_num_threads(before + 9)  # no queues for so many yet
        try:
            assert torch.equal(layer(x), wanted)
            assert asked == ["forward"]
        finally:
            torch.set_num_threads(before)
        assert ct.counters()["convolution"] == 1
        assert sum(ct.counters()["solvers"].values()) == 1
