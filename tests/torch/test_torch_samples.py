"""PyTorch's own OpInfo samples of all six convolutions: this package's functions, and PyTorch's under enable().

In one file, for PyTorch takes 6 seconds to load its samples. The functions get samples without a batch axis with one,
since rank says how many axes of space there are. What PyTorch refuses, this package must refuse too.
"""

import functools
import warnings

import numpy as np
import pytest
import torch

import convdispatch
from convdispatch.measurement.reference import relative_error

pytest.importorskip("expecttest", reason="expecttest, which torch's samples need, is not installed (extra: peers)")

import convdispatch.torch as ct

NAMES = [f"conv{kind}{ndim}d" for kind in ("", "_transpose") for ndim in (1, 2, 3)]
REFUSING = ["conv1d", "conv2d", "conv3d"]
"""Those with samples that PyTorch refuses."""
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}
_POSITIONAL = {
    "conv": ("bias", "stride", "padding", "dilation", "groups"),
    "conv_transpose": ("bias", "stride", "padding", "output_padding", "groups", "dilation"),
}


@pytest.fixture(autouse=True, scope="module")
def switches():
    """What PyTorch's samples import forbids to set its switches for good; the files after this one set them."""
    yield
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True


@functools.cache
def operators() -> dict:
    """PyTorch's descriptions by name; not loaded at collection."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    wanted = {f"nn.functional.{name}": name for name in NAMES}
    return {wanted[op.name]: op for op in op_db if op.name in wanted}


def arguments(name: str, sample) -> tuple[dict, bool]:
    """x, w, bias and options of one sample, with a batch axis; and whether it had one."""
    named = dict(zip(_POSITIONAL[name[:-2].rstrip("0123456789")], sample.args[1:])) | dict(sample.kwargs)
    ndim = int(name[-2])
    x, w = sample.input, sample.args[0]
    batched = x.ndim == ndim + 2
    for option in ("stride", "padding", "dilation", "output_padding"):
        value = named.get(option)
        if isinstance(value, (tuple, list)):  # PyTorch lets one number in parentheses stand for all axes
            named[option] = tuple(value) * ndim if len(value) == 1 else tuple(value)
    return {"x": x if batched else x[None], "w": w, **named}, batched


def numpy(tensor):
    return None if tensor is None else tensor.detach().numpy()


def ours(name: str, given: dict):
    call = convdispatch.conv_transpose if "transpose" in name else convdispatch.conv
    arrays = {key: numpy(given[key]) for key in ("x", "w", "bias") if given.get(key) is not None}
    return call(**arrays, **{key: value for key, value in given.items() if key not in ("x", "w", "bias")})


def test_every_operator_is_there():
    assert set(operators()) == set(NAMES)
    assert {name for name, op in operators().items() if op.error_inputs_func is not None} == set(REFUSING)


def chosen(name: str, dtype: torch.dtype, full: bool):
    """(number, turn, sample, gradients): every geometry, by turns with a batch axis or without, and its gradient by x
    or by w; in float64 every fourth. With ``full`` every sample and both gradients."""
    torch.manual_seed(0)
    samples = list(operators()[name].sample_inputs("cpu", dtype, requires_grad=True))
    assert len(samples) >= 8
    for number, sample in enumerate(samples):  # in pairs, with a batch axis and without
        turn = number // (2 if dtype == torch.float32 else 8)
        left_out = dtype == torch.float64 and number // 2 % 4 != len(name) % 4
        if full or not (left_out or number % 2 != (turn + 1) // 2 % 2):
            yield number, turn, sample, "xw" if full else "xw"[turn % 2]


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_samples(name, dtype, full):
    for number, _, sample, wanted in chosen(name, dtype, full):
        expected = operators()[name].op(sample.input, *sample.args, **sample.kwargs)
        given, batched = arguments(name, sample)
        got = ours(name, given)
        got = got if batched else got[0]
        where = f"{name} sample {number}: x {tuple(given['x'].shape)} w {tuple(given['w'].shape)} {sample.kwargs}"
        assert got.shape == tuple(expected.shape), where
        assert relative_error(got, numpy(expected)) <= LIMIT[dtype], where
        if "transpose" not in name:
            dy = torch.randn_like(expected)
            dx, dw = torch.autograd.grad(expected, (sample.input, sample.args[0]), dy)
            gradients(given, batched, wanted, (numpy(dy), numpy(dx), numpy(dw)), LIMIT[dtype], where)


def gradients(given: dict, batched: bool, wanted: str, arrays: tuple, limit: float, where: str) -> None:
    """Compare the ``wanted`` gradients ("x", "w" or both) of one sample with autograd's."""
    dy, dx, dw = arrays
    x, w = numpy(given["x"]), numpy(given["w"])
    geometry = {key: value for key, value in given.items() if key not in ("x", "w", "bias")}
    dy, dx = (dy, dx) if batched else (dy[None], dx[None])
    if "x" in wanted:
        got = convdispatch.conv_backward_data(dy, w, x.shape, **geometry)
        assert relative_error(got, dx) <= limit, f"by x: {where}"
    if "w" in wanted:
        got = convdispatch.conv_backward_weights(x, dy, w.shape, **geometry)
        assert relative_error(got, dw) <= limit, f"by w: {where}"


@pytest.mark.parametrize("name", REFUSING)
def test_what_pytorch_refuses_is_refused(name):
    refused = 0
    for case in operators()[name].error_inputs("cpu"):
        sample = case.sample_input
        with pytest.raises(case.error_type):
            operators()[name].op(sample.input, *sample.args, **sample.kwargs)
        given, _ = arguments(name, sample)
        with pytest.raises(convdispatch.ConvDispatchError):
            ours(name, given)
        refused += 1
    assert refused >= 8


def test_samples_without_a_batch_are_refused_as_they_are():
    with pytest.raises(convdispatch.InvalidArgument, match="as many axes"):
        convdispatch.conv(np.ones((3, 4, 4), np.float32), np.ones((3, 3, 3, 3), np.float32))


# --- unchanged PyTorch under enable(), each call counted --------------------------------------------------------------


def error(got, expected) -> float:
    got, expected = got.detach(), expected.detach()
    return float((got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_with_gradients(name, dtype, full):
    """The same, whose programs are there already; unless ``full`` two thirds of float32's and a third of float64's."""
    operator, limit = operators()[name], LIMIT[dtype]
    for number, turn, sample, by in chosen(name, dtype, full):
        if not full and (turn % 3 == 1 if dtype == torch.float32 else turn % 3):
            continue
        x, w, *bias = [sample.input, *(each for each in sample.args if isinstance(each, torch.Tensor))]
        leaves = [*({"x": x, "w": w}[letter] for letter in by), *bias]
        expected = operator.op(sample.input, *sample.args, **sample.kwargs)
        grad = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, leaves, grad)
        ct.reset_counters()
        with ct.enable():
            got = operator.op(sample.input, *sample.args, **sample.kwargs)
            gradients = torch.autograd.grad(got, leaves, grad)
        where = f"{name} sample {number}: {tuple(sample.input.shape)} {sample.args[1:]} {sample.kwargs}"
        for mine, theirs in zip((got, *gradients), (expected, *wanted), strict=True):
            assert mine.shape == theirs.shape, where
            assert error(mine, theirs) <= limit, where
        counted = ct.counters()
        assert (counted["ours"], counted["left"]) == (2, 0), f"{where}: {counted}"


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
