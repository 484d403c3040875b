"""PyTorch's own OpInfo samples of its convolutions: our forward, and our gradients against autograd.

Samples without a batch axis get one here, since rank says how many axes of space there are. What PyTorch refuses,
this package must refuse too.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

import convdispatch
from convdispatch.measurement.reference import relative_error

torch = pytest.importorskip("torch", reason="torch, whose samples these are, is not installed (extra: peers)")
pytest.importorskip("expecttest", reason="expecttest, which torch's samples need, is not installed (extra: peers)")

NAMES = [f"conv{kind}{ndim}d" for kind in ("", "_transpose") for ndim in (1, 2, 3)]
REFUSING = ["conv1d", "conv2d", "conv3d"]
"""Those with samples that PyTorch refuses."""
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}
_POSITIONAL = {
    "conv": ("bias", "stride", "padding", "dilation", "groups"),
    "conv_transpose": ("bias", "stride", "padding", "output_padding", "groups", "dilation"),
}


@functools.cache
def operators() -> dict:
    """PyTorch's descriptions by name; loading them takes 6 seconds, so not at collection."""
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


@pytest.mark.parametrize("dtype", LIMIT, ids=["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_samples(name, dtype, full):
    """Every sample forward; by turns its gradient by x or by w, both with --full."""
    torch.manual_seed(0)
    samples = list(operators()[name].sample_inputs("cpu", dtype, requires_grad=True))
    assert len(samples) >= 8
    for number, sample in enumerate(samples):
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
            wanted = "xw" if full else "xw"[number // 2 % 2]  # samples come in pairs, with a batch axis and without
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
