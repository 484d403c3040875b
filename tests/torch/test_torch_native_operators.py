"""The operators of compiled graphs by the native call path: warm calls run no Python, and nothing is swallowed."""

import sys

import pytest
import torch
from torch_checks import error

import convdispatch.torch as ct
from convdispatch import policy
from convdispatch.torch.compile.backend import Backend
from convdispatch.torch.compile.operators import BELOW_AUTOGRAD
from convdispatch.torch.dispatch import native

F, D = torch.nn.functional, torch.ops.convdispatch
GEOMETRY = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
MOST_FUNCTIONS = 4
"""The Python functions that a warm call may run: those that answer for PyTorch's switches."""
OVERLOADS = ("default", "below_autograd")
CONVOLUTIONS, FUSED, BACKWARDS = (
    {each: getattr(packet, each) for each in OVERLOADS}
    for packet in (D.convolution, D.fused_convolution, D.convolution_backward)
)


def integers(*shape, seed=0, dtype=torch.float32):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(seed=0):
    """Input, weight, bias and a gradient of the result."""
    shapes = (2, 8, 9, 8), (16, 8, 3, 3), (16,), (2, 16, 9, 8)
    return [integers(*shape, seed=seed + at) for at, shape in enumerate(shapes)]


def fused(overload, x, w, bias, residual=None, activation="relu"):
    return FUSED[overload](x, w, bias, residual, activation, [1, 1], [1, 1], [1, 1], 1)


def backward(overload, grad, x, w, mask, bias_sizes=None):
    return BACKWARDS[overload](grad, x, w, bias_sizes, *GEOMETRY, mask)


def exact_gradients(grad, x, w):
    arguments = grad.double(), x.double(), w.double(), [w.shape[0]], *GEOMETRY, [True, True, True]
    return torch.ops.aten.convolution_backward.default(*arguments)


def normed_runs(overload, x, w, bias, grad):
    """By name, a call of an operator with a norm or sums, and its exact results, None for one not requested."""
    normed, normed_backward = (
        getattr(each, overload) for each in (D.normed_convolution, D.normed_convolution_backward)
    )
    table = torch.stack([integers(8, seed=7), 2.0 ** integers(8, seed=8).clamp(-1, 1), integers(8, seed=9)])
    mean, scale, shift = (row.double().reshape(1, -1, 1, 1) for row in table)
    residual, geometry = integers(*x.shape, seed=10), GEOMETRY[:3]
    before = (x.double() - mean) * scale + shift
    data, weights, _ = exact_gradients(grad, F.relu(before), w)
    masked = torch.where(before > 0, data, 0)
    added = torch.where(before > 0, data + residual, 0)

    def sums(data):
        return torch.stack([data.sum((0, 2, 3)), (data * (x.double() - mean)).sum((0, 2, 3))])

    def convolution(read, *rest):
        y = F.conv2d(read, w.double(), rest[0] and bias.double(), padding=1)
        variance, center = torch.var_mean(y, (0, 2, 3), correction=0)
        rows = [torch.full_like(center, 2 * 9 * 8), center, 2 * 9 * 8 * variance]
        return y, torch.stack(rows) if rest[1] else None

    wanted = {
        "norm": convolution(F.relu(before), None, False),
        "sums": convolution(x.double(), bias is not None, True),
        "norm and sums": convolution(F.relu(before), None, True),
    }
    runs = {
        "norm": lambda: normed(x, w, None, table, "relu", False, *geometry, 1),
        "sums": lambda: normed(x, w, bias, None, None, True, *geometry, 1),
        "norm and sums": lambda: normed(x, w, None, table, "relu", True, *geometry, 1),
    }
    masks = {"all": [True] * 3, "data": [True, False, False], "weights": [False, True, False]}
    for name, mask in masks.items():
        runs[name] = lambda mask=mask: normed_backward(grad, x, w, table, None, None, "relu", *geometry, 1, mask)
        exact = masked, weights, sums(masked)
        wanted[name] = [one if asks else None for one, asks in zip(exact, mask, strict=True)]
    read, arguments = integers(*x.shape, seed=11), ("relu", *geometry, 1, [True, True, True])
    runs["join"] = lambda: normed_backward(grad, x, w, table, residual, None, *arguments[:-1], [True, False, True])
    wanted["join"] = added, None, sums(added)
    runs["what is read"] = lambda: normed_backward(grad, x, w, table, residual, read, *arguments)
    wanted["what is read"] = added, exact_gradients(grad, read, w)[1], sums(added)
    return {name: (runs[name], wanted[name]) for name in runs}


def check_normed(got, wanted):
    for one, exact in zip(got, wanted, strict=True):
        if exact is None:
            assert one.shape == (0,)
        else:
            torch.testing.assert_close(one.double(), exact, rtol=1e-6, atol=1e-4)


def functions(run):
    """The names of the Python functions that ``run()`` runs below itself, and its result."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        answer = run()
    finally:
        sys.setprofile(None)
    return called[1:], answer


def test_warm_calls_below_autograd_run_no_more_python_than_the_switches(asked):
    with torch.no_grad():
        for turn in range(5):
            x, w, bias, grad = operands(10 * turn)
            wide = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
            runs = {
                "forward": lambda: CONVOLUTIONS["below_autograd"](x, w, bias, *GEOMETRY),  # noqa: B023
                "fused": lambda: fused("below_autograd", x, w, bias),  # noqa: B023
                "backward": lambda: backward("below_autograd", grad, x, w, [True, True, True], [16]),  # noqa: B023
            }
            wanted = {"forward": [wide], "fused": [F.relu(wide)], "backward": exact_gradients(grad, x, w)}
            for name, run in runs.items():
                ct.reset_counters()
                asked.clear()
                names, got = functions(run)
                for one, exact in zip([got] if name != "backward" else got, wanted[name], strict=True):
                    assert torch.equal(one.double(), exact)
                counts = ct.counters()
                assert counts["ours"] == 1
                assert counts["convolution_backward"] == (name == "backward")
                assert sum(counts["solvers"].values()) == (2 if name == "backward" else 1)
                if turn > 1:
                    assert not asked
                    assert len(names) <= MOST_FUNCTIONS, names


@pytest.mark.parametrize("overload", OVERLOADS)
def test_operators_with_norms_run_no_more_python_either(asked, overload):
    """Sums take a work group of several work items, which PyTorch's threads do not run."""
    with torch.no_grad():
        for turn in range(4):
            for name, (run, wanted) in normed_runs(overload, *operands(10 * turn)).items():
                ct.reset_counters()
                asked.clear()
                names, got = functions(run)
                check_normed(got, wanted)
                assert ct.counters()["ours"] == 1
                if turn > 1 and name in ("norm", "data", "weights"):
                    assert not asked
                    assert len(names) <= MOST_FUNCTIONS, names


@pytest.mark.parametrize("overload", OVERLOADS)
def test_kernels_with_norms_and_sums_are_launched_below_python(stand_in, overload):
    for turn in range(4):
        for name, (run, wanted) in normed_runs(overload, *operands(10 * turn)).items():
            ct.reset_counters()
            stand_in.launched.clear()
            names, got = functions(run)
            check_normed(got, wanted)
            if turn > 1:
                assert stand_in.launched, f"{name} must launch below Python"
                assert not {"routed", "forward", "backward"} & set(names)
            assert ct.counters()["ours"] == 1
    for each in (integers(2, 8, 9, 8).to(memory_format=torch.channels_last), integers(2, 8, 8, 9).mT):  # other strides
        for _ in range(3):
            for run, wanted in normed_runs(overload, each, *operands()[1:]).values():
                check_normed(run(), wanted)


def test_a_table_and_sums_are_in_the_key(asked):
    """The same input and weights: with another activation, of a part of the results, in float64."""
    x, w, _, grad = operands()
    norm = torch.stack([torch.zeros(8), torch.ones(8), torch.zeros(8)])
    normed, back = D.normed_convolution.default, D.normed_convolution_backward.default
    for _ in range(3):
        for wide in (False, True):
            given = [each.double() if wide else each for each in (x, w, norm, grad)]
            for activation, function in {"relu": F.relu, "identity": lambda v: v, "relu6": F.relu6}.items():
                geometry = (*GEOMETRY[:3], 1)
                y, sums = normed(given[0], given[1], None, given[2], activation, True, *geometry)
                assert y.dtype is sums.dtype is given[0].dtype
                exact = F.conv2d(function(x.double()), w.double(), padding=1)
                assert torch.equal(y.double(), exact)
                torch.testing.assert_close(sums[1].double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=1e-5)
                grads = given[3], given[0], given[1], given[2], None, None, activation, *geometry
                data, _, sums = back(*grads, [True, False, True])
                assert data.dtype is sums.dtype is given[0].dtype
                leaf = x.double().requires_grad_()
                F.conv2d(function(leaf), w.double(), padding=1).backward(grad.double())
                assert torch.equal(data.double(), leaf.grad)


def test_products_of_channels_are_pytorch_s_below_python(stand_in):
    """Where channels lie last; others are multiplied by Python's function."""
    products = torch.library.Library("aten", "IMPL")
    seen = []
    products.impl(
        "mm.dtype", lambda left, right, dtype: (seen.append(dtype), left.to(dtype) @ right.to(dtype))[1], "CPU"
    )
    left, right = (integers(2, channels, 5, 4, dtype=torch.bfloat16) for channels in (8, 16))
    exact = torch.einsum("ncyx,nkyx->ck", left.float(), right.float())
    try:
        for last in (True, False):
            operands = left, right
            if last:
                operands = [each.to(memory_format=torch.channels_last) for each in operands]
            for turn in range(3):
                seen.clear()
                got = D.channel_products.below_autograd(*operands)
                assert got.dtype is torch.float32
                assert torch.equal(got, exact)
                assert seen == [torch.float32] * (last and turn > 0)
    finally:
        products._destroy()


@pytest.mark.parametrize("overload", OVERLOADS)
def test_kernels_are_launched_from_the_third_call_on(stand_in, overload):
    """The first call registers the operator's kernel, the second is decided."""
    with ct.enable(solver="im2col*"), torch.no_grad():
        for turn in range(4):
            x, w, bias, grad = operands(10 * turn)
            residual = integers(2, 16, 9, 8, seed=99)
            wide = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
            for run, wanted in (
                (lambda: [CONVOLUTIONS[overload](x, w, bias, *GEOMETRY)], [wide]),  # noqa: B023
                (lambda: [fused(overload, x, w, bias)], [F.relu(wide)]),  # noqa: B023
                (lambda: [fused(overload, x, w, bias, residual, None)], [wide + residual]),  # noqa: B023
                (lambda: backward(overload, grad, x, w, [True, True, True], [16]), exact_gradients(grad, x, w)),  # noqa: B023
            ):
                stand_in.launched.clear()
                for got, exact in zip(run(), wanted, strict=True):
                    assert torch.equal(got.double(), exact)
                if turn < 1 or turn > 1:
                    assert bool(stand_in.launched) == (turn > 1)


def test_a_gradient_that_was_not_requested_is_empty(asked):
    x, w, _, grad = operands()
    wanted = exact_gradients(grad, x, w)
    for mask in ([True, False, False], [False, True, False], [False, False, True], [True, True, False]):
        for _ in range(4):
            results = backward("default", grad, x, w, mask, [16])
            for got, exact, is_requested in zip(results, wanted, mask, strict=True):
                assert got.dtype is torch.float32
                assert torch.equal(got.double(), exact) if is_requested else got.shape == (0,)
            empty = [each for each, is_requested in zip(results, mask, strict=True) if not is_requested]
            assert len({id(each) for each in empty}) == len(empty)


def test_activation_residual_and_pads_are_in_the_key(asked):
    x, w, bias, _ = operands()
    residual = integers(2, 16, 9, 8, seed=50)
    turned = residual.transpose(2, 3).contiguous().transpose(2, 3)
    gaps = torch.stack([residual, residual], 1).flatten(1, 2)[:, ::2][:, :16]
    shifted = torch.empty(residual.numel() + 1)[1:].view(residual.shape).copy_(residual)
    others = residual[:1], shifted, residual.double(), residual[:1, :1, :1, :1].expand_as(residual)
    wide = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    activations = {
        None: lambda v: v,
        "relu": F.relu,
        "leaky_relu(0.25)": lambda v: F.leaky_relu(v, 0.25),
        "leaky_relu(0.5)": lambda v: F.leaky_relu(v, 0.5),
        "clip(-12.0, 12.0)": lambda v: v.clamp(-12, 12),
        "clip(-12.0, 16.0)": lambda v: v.clamp(-12, 16),
    }
    with torch.no_grad():
        for turn in range(3):
            for activation, function in activations.items():
                for added in (None, residual, turned, gaps, *others):
                    asked.clear()
                    got = fused("below_autograd", x, w, bias, added, activation)
                    wanted = function(wide if added is None else wide + added)
                    assert torch.equal(got.double(), wanted)
                    if turn > 1 and any(added is each for each in (residual, turned, gaps)):
                        assert not asked
        for pads, sides in (([0, 1, 2, 1], (1, 1, 0, 2)), ([2, 1, 0, 1], (1, 1, 2, 0))):
            for _ in range(3):
                got = FUSED["below_autograd"](x, w, bias, None, None, [1, 1], pads, [1, 1], 1)
                assert torch.equal(got.double(), F.conv2d(F.pad(x.double(), sides), w.double(), bias.double()))


@pytest.mark.parametrize("name", ["plain", "frozen", "inference"])
def test_weights_that_changed_are_read_anew(asked, name):
    x, w, bias, grad = operands()
    weight = w if name == "plain" else torch.nn.Parameter(w, requires_grad=False)
    with torch.inference_mode() if name == "inference" else torch.no_grad():
        for write in (lambda: None, lambda: weight.mul_(2), lambda: weight.data.add_(1), lambda: weight.neg_()):
            with torch.inference_mode(False), torch.no_grad():
                write()
            for _ in range(4):
                wide = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
                assert torch.equal(fused("below_autograd", x, weight, bias).double(), F.relu(wide))
                assert torch.equal(CONVOLUTIONS["below_autograd"](x, weight, bias, *GEOMETRY).double(), wide)
                results = backward("below_autograd", grad, x, weight, [True, True, False])
                for got, exact in zip(results, exact_gradients(grad, x, weight)[:2], strict=False):
                    assert torch.equal(got.double(), exact)


def test_what_decides_a_call_asks_python_again(asked):
    x, w, bias, _ = operands()

    def run(x=x):
        return CONVOLUTIONS["default"](x, w, bias, *GEOMETRY)

    def warm():
        for _ in range(3):
            run()
        asked.clear()
        run()
        return not asked

    with torch.no_grad():
        assert warm()
        for under in (policy(solver="im2col*"), policy(batch_invariant=True), policy(strict_nan=True)):
            with under:
                assert not warm()
        assert warm()
        torch.use_deterministic_algorithms(True)
        try:
            asked.clear()
            run()
            assert asked
            assert warm()
        finally:
            torch.use_deterministic_algorithms(False)
        with ct.enable(solver="im2col"):  # decisions under other settings are others
            asked.clear()
            run()
            assert asked
        assert warm()
        native.pause(True)
        assert not warm()
        native.pause(False)
        assert warm()
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                assert run().dtype is torch.bfloat16
        assert run().dtype is torch.float32


def test_operands_as_they_lie(asked):
    x, w, bias, grad = operands()
    gaps = [each.transpose(2, 3).contiguous().transpose(2, 3) for each in (x, grad)]
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    negative = torch._neg_view(-x)
    assert negative.is_neg()
    wide = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    for each in (x, gaps[0], shifted, negative, x.contiguous(memory_format=torch.channels_last)):
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(CONVOLUTIONS["default"](each, w, bias, *GEOMETRY).double(), wide)
                assert torch.equal(fused("below_autograd", each, w, bias).double(), F.relu(wide))
            results = backward("default", gaps[1], each, w, [True, True, False])
            for got, exact in zip(results, exact_gradients(grad, x, w)[:2], strict=False):
                assert torch.equal(got.double(), exact)


def test_errors_and_tangents_are_as_at_the_first_call(asked):
    x, w, bias, grad = operands()
    run = CONVOLUTIONS["default"]
    for _ in range(4):
        run(x, w, bias, *GEOMETRY)
        backward("default", grad, x, w, [True, True, False])
    with pytest.raises(RuntimeError, match="channels"):
        run(x[:, :7], w, bias, *GEOMETRY)
    with pytest.raises(RuntimeError):
        backward("default", grad[:, :7], x, w, [True, True, False])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        for call in (lambda: run(dual, w, bias, *GEOMETRY), lambda: fused("default", dual, w, bias)):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call()
        assert torch.equal(run(x, w, bias, *GEOMETRY), F.conv2d(x, w, bias, padding=1))


def test_what_pytorch_computes_is_no_view_and_is_counted(here):
    """PyTorch's own result for one axis of space is a view, which no operation in place may change behind an
    operator."""
    lines, weights = integers(2, 8, 21), integers(6, 8, 3, seed=1)
    geometry = [1], [1], [1], False, [0], 1
    wanted = F.conv1d(lines.double(), weights.double(), padding=1)
    with ct.enable(solver="none.such"):
        ct.reset_counters()
        for turn in range(1, 5):
            got = CONVOLUTIONS["default"](lines, weights, None, *geometry)
            assert not got._is_view()
            assert torch.equal(got.double(), wanted)
            x, w, bias, _ = operands()
            assert torch.equal(CONVOLUTIONS["default"](x, w, bias, *GEOMETRY), F.conv2d(x, w, bias, padding=1))
            assert ct.counters()["left"] == 3 * turn  # F.conv2d's too
    native.forget()


def test_gradients_of_operators_that_are_warm(asked):
    for turn in range(4):
        x, w, bias, grad = operands(10 * turn)
        learning = [each.clone().requires_grad_() for each in (x, w, bias)]
        exact = [each.double().requires_grad_() for each in (x, w, bias)]
        asked.clear()
        CONVOLUTIONS["default"](*learning, *GEOMETRY).backward(grad)
        assert turn < 2 or not asked
        F.conv2d(*exact, padding=1).backward(grad.double())
        for one, other in zip(learning, exact, strict=True):
            assert torch.equal(one.grad.double(), other.grad)


@pytest.mark.parametrize("engine", ["operators", None])
def test_a_compiled_step_runs_no_function_of_ours_for_a_convolution(asked, monkeypatch, engine, full):
    if engine is None and not full:
        pytest.skip("inductor's compiler takes its time: --full")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8)
    )
    x, factors = torch.randn(2, 3, 9, 8), torch.randn(2, 8, 7, 6)
    options = {} if engine is None else {"engine": engine}
    compiled = torch.compile(net, backend=Backend(options=options))

    def step():
        net.zero_grad()
        (compiled(x) * factors).sum().backward()

    for _ in range(4):
        step()
    ct.reset_counters()
    asked.clear()
    names, _ = functions(step)
    assert ct.counters()["convolution"] == ct.counters()["convolution_backward"] == 2
    assert not asked
    assert not {"by_engine", "routed", "_forward", "_backward", "forward_no_grad", "autograd_impl"} & set(names)
    exact = torch.nn.Sequential(*net).double()
    gradients = [each.grad.clone() for each in net.parameters()]
    exact.zero_grad()
    (exact(x.double()) * factors).sum().backward()
    for got, each in zip(gradients, exact.parameters(), strict=True):
        assert error(got, each.grad) < 1e-4 or each.grad.norm() < 1e-6  # the norm takes the last bias away again


def test_every_operator_that_inductor_calls_has_an_overload_below_autograd():
    assert {each.name() for each in BELOW_AUTOGRAD} == {
        *("convdispatch::convolution", "convdispatch::convolution_backward", "convdispatch::fused_convolution"),
        *("convdispatch::normed_convolution", "convdispatch::normed_convolution_backward"),
        "convdispatch::channel_products",
    }
    for operator, overload in BELOW_AUTOGRAD.items():
        assert [each.type for each in operator._schema.arguments] == [each.type for each in overload._schema.arguments]
        assert torch.Tag.needs_fixed_stride_order in overload.tags
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "Autograd")
        learns = operator.name() in ("convdispatch::convolution", "convdispatch::convolution_backward")
        assert torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Autograd") == learns
