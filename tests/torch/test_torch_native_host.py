"""The native call path on a CPU: what Python decided runs again without it, with the same bits, or goes to Python."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")


from threads import together  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch import policy  # noqa: E402
from convdispatch.device import runtime  # noqa: E402
from convdispatch.torch.dispatch import engine, native  # noqa: E402
from convdispatch.torch.weights import _seen  # noqa: E402

F = torch.nn.functional
LAST, FIRST = torch.channels_last, torch.contiguous_format
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
}


@pytest.fixture
def asked(here, monkeypatch):
    """What Python was asked for since this was cleared, inside enable() with a solver that packs constant weights."""
    found, real = [], engine.cached_call
    monkeypatch.setattr(engine, "cached_call", lambda part, *rest: found.append(part) or real(part, *rest))
    with ct.enable(solver="im2col*"):
        yield found
    native.forget()


def step(kind, x, w, bias, grad, options):
    got = kind(x, w, bias, **options)
    return [got.detach(), *torch.autograd.grad(got, (x, w, bias), grad)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in CASES), ("weights first", torch.float16), ("3x3", torch.float64)],
)
def test_a_step_again_asks_nothing_and_has_the_same_bits(asked, name, dtype):
    shape, weights, of_x, of_w, options = CASES[name]
    kind = F.conv_transpose2d if name == "transposed" else getattr(F, f"conv{len(shape) - 2}d")
    torch.manual_seed(0)
    channels = weights[1] if name == "transposed" else weights[0]
    answers = []
    for turn in range(4):  # other tensors each time: addresses are arguments
        torch.manual_seed(turn % 2)
        x = (torch.randn(shape).to(dtype).contiguous(memory_format=of_x)).requires_grad_()
        w = (torch.randn(weights).to(dtype).contiguous(memory_format=of_w)).requires_grad_()
        bias = torch.randn(channels).to(dtype).requires_grad_()
        native.pause(True)
        wide = [each.detach().double().requires_grad_() for each in (x, w, bias)]
        grad = torch.randn(kind(*wide, **options).shape).to(dtype)
        wanted = step(kind, *wide, grad.double(), options)
        native.pause(False)
        asked.clear()
        answers.append(step(kind, x, w, bias, grad, options))
        assert bool(asked) == (turn == 0), "a call was Python's that was decided, or nothing was decided"
        for got, exact in zip(answers[-1], wanted, strict=True):
            assert got.dtype is dtype
            assert (got.double() - exact).norm() <= (2e-3 if dtype is torch.float16 else 1e-5) * exact.norm()
    for turn in (0, 1):
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
def test_operands_are_copied_to_channels_last_as_pytorch_does(asked, shape, dtype):
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


def test_what_decides_a_call_is_in_its_key(asked):
    x, layer = torch.randn(2, 8, 9, 8), torch.nn.Conv2d(8, 16, 3, padding=1)

    def python(run):
        """Whether Python was asked the first time, and not the second."""
        asked.clear()
        run()
        first = len(asked)
        run()
        return first > 0 and len(asked) == first

    with torch.no_grad():
        assert python(lambda: layer(x))
        assert python(lambda: layer(x[:1]))
        assert python(lambda: layer(x.contiguous(memory_format=LAST)))
        torch.set_float32_matmul_precision("high")
        try:
            assert python(lambda: layer(x))
        finally:
            torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(True)
        try:
            assert python(lambda: layer(x))
        finally:
            torch.use_deterministic_algorithms(False)
        asked.clear()
        layer(x)
        assert not asked
        layer.requires_grad_(False)
        assert python(lambda: layer(x))
        with torch.inference_mode():
            assert python(lambda: layer(x))
        with policy(solver="im2col"):
            assert not python(lambda: layer(x))
    assert python(lambda: layer(x))


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
            for _ in range(3):
                got = layer(x)
                wanted = F.conv2d(x.double(), layer.weight.double(), layer.bias.double(), padding=1)
                assert got.shape == wanted.shape
                assert (got - wanted).norm() <= 1e-5 * wanted.norm(), name


WRITES = {
    "in place": lambda p: p.mul_(2),
    "by data": lambda p: p.data.mul_(2),
    "by a view": lambda p: p.detach().view(-1)[:].mul_(2),
    "by NumPy": lambda p: p.detach().numpy().__imul__(2),
    "other memory": lambda p: setattr(p, "data", p.data * 2),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_constant_weights_that_change_are_packed_anew(asked, mode, write):
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1, bias=False).requires_grad_(False), torch.randn(2, 8, 9, 8)
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
        x, layer = torch.randn(2, 8, 9, 8), torch.nn.Conv2d(8, 16, 3, padding=1).requires_grad_(False)
        with mode():
            got = [layer(x) for _ in range(3)]
        held = [weakref.ref(each) for each in (x, layer.weight, layer.bias, *got, _seen[id(layer.weight)].packed)]
        del x, layer, got
        gc.collect()
        assert [each() for each in held] == [None] * len(held)


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

    def work(_):
        with torch.no_grad():
            for turn in range(40):
                assert torch.equal(shared(x).double(), wanted)
                if turn % 10 == 5:
                    shared.weight.mul_(1)  # packed anew; what was packed goes while others read it

    together(work, 5)


def test_modes_and_tracers_see_the_operator(asked):
    from torch.utils._python_dispatch import TorchDispatchMode

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


def right_in_a_child(call) -> bool:
    """Whether a forked child answers what this process does, and counts why it is PyTorch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads are not in the child either
    try:
        with torch.no_grad():
            wanted = [call() for _ in range(3)][-1]
            child = os.fork()
            if not child:
                try:
                    right = (call() - wanted).norm() <= 1e-5 * wanted.norm()
                    said = [each for each in ct.counters()["reasons"] if runtime.FORKED in each]
                    os._exit(0 if right and said else 2)
                finally:
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_childs_calls_are_pytorchs(asked):
    layer, x = torch.nn.Conv2d(8, 16, 3, padding=1), torch.randn(2, 8, 9, 8)
    assert right_in_a_child(lambda: layer(x))


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
