"""PyTorch's own OpInfo samples of all six convolutions under enable(), with gradients, each call counted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch, whose samples these are, is not installed (extra: peers)")
pytest.importorskip("expecttest", reason="expecttest, which torch's samples need, is not installed (extra: peers)")

from test_torch_opinfo import NAMES, operators  # noqa: E402

import convdispatch.torch as ct  # noqa: E402 (torch is asked for first)

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


def error(got, expected) -> float:
    got, expected = got.detach(), expected.detach()
    return float((got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_with_gradients(name, dtype, full):
    """The samples' values, and by turns their gradients by input or weight; of float64 every eighth sample. All with
    --full."""
    torch.manual_seed(0)
    operator, limit = operators()[name], LIMIT[dtype]
    samples = list(operator.sample_inputs("cpu", dtype, requires_grad=True))
    for number, sample in enumerate(samples):
        if dtype == torch.float64 and number % 8 and not full:
            continue
        leaves = [sample.input, *(each for each in sample.args if isinstance(each, torch.Tensor))]
        if not full:
            leaves = [leaves[number // 2 % 2], *leaves[2:]]  # samples come in pairs, with a batch axis and without
        expected = operator.op(sample.input, *sample.args, **sample.kwargs)
        grad = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, leaves, grad)
        ct.reset_counters()
        with ct.enable(solver=None if full else "im2col*"):
            got = operator.op(sample.input, *sample.args, **sample.kwargs)
            gradients = torch.autograd.grad(got, leaves, grad)
        where = f"{name} sample {number}: {tuple(sample.input.shape)} {sample.args[1:]} {sample.kwargs}"
        for mine, theirs in zip((got, *gradients), (expected, *wanted), strict=True):
            assert mine.shape == theirs.shape, where
            assert error(mine, theirs) <= limit, where
        counted = ct.counters()
        assert (counted["ours"], counted["left"]) == (2, 0), f"{where}: {counted}"
    assert len(samples) >= 8


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d"])
def test_what_pytorch_refuses_is_refused_by_its_kind_of_error(name):
    refused = 0
    for case in operators()[name].error_inputs("cpu"):
        sample = case.sample_input
        with ct.enable(), pytest.raises(case.error_type):
            operators()[name].op(sample.input, *sample.args, **sample.kwargs)
        refused += 1
    assert refused >= 8


MODULES = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


@pytest.mark.parametrize("name", MODULES)
def test_pytorchs_samples_of_modules(name, full):
    """Each of PyTorch's module samples, forward and backward, beside PyTorch; by turns without --full."""
    from torch.testing._internal.common_modules import module_db

    (info,) = (each for each in module_db if each.module_cls is getattr(torch.nn, name))
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    ran = 0
    for sample in samples if full or len(samples) < 4 else samples[::2]:
        torch.manual_seed(0)
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        x = sample.forward_input.args[0].detach().requires_grad_()

        def run(module=module, x=x):
            y = module(x)
            return y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])

        expected = run()
        ct.reset_counters()
        with ct.enable(solver="im2col*"):
            got = run()
        assert (ct.counters()["ours"], ct.counters()["left"]) == (2, 0), (sample.desc, ct.counters())
        for mine, theirs in zip(got, expected, strict=True):
            assert error(mine, theirs) <= 1e-5, sample.desc
        ran += 1
    assert ran >= 2
