"""conv_transpose: PyTorch's meaning of shapes, output_padding and groups, checked by the adjoint's definition."""

from __future__ import annotations

import itertools

import numpy as np
import pyopencl as cl
import pyopencl.array
import pytest

import convdispatch
from convdispatch import InvalidArgument, policy


def scattered(x, w, stride, padding, output_padding, dilation, groups):
    """The definition: every input element adds a scaled kernel to the output, which is then cropped."""
    mb, ic, *size = x.shape
    ocg, *kernel = w.shape[1:]
    ndim = len(size)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    padded = [(n - 1) * s + r + extra for n, s, r, extra in zip(size, stride, reach, output_padding)]
    y = np.zeros((mb, ocg * groups, *padded))
    for place in itertools.product(*map(range, size)):
        for group in range(groups):
            mine = slice(group * ic // groups, (group + 1) * ic // groups)
            patch = np.tensordot(x[(slice(None), mine, *place)].astype(float), w[mine].astype(float), (1, 0))
            where = [slice(i * s, i * s + r, d) for i, s, r, d in zip(place, stride, reach, dilation)]
            y[(slice(None), slice(group * ocg, (group + 1) * ocg), *where)] += patch
    crop = [slice(p, n - p) for p, n in zip(padding, padded)]
    assert len(crop) == ndim
    return y[(slice(None), slice(None), *crop)]


# x shape, oc/g, kernel, stride, padding, output_padding, dilation, groups
CASES = {
    "plain": ((2, 3, 4, 5), 4, (3, 3), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    "stride_2": ((2, 3, 4, 5), 4, (3, 3), (2, 2), (1, 1), (0, 0), (1, 1), 1),
    "output_padding": ((2, 3, 4, 5), 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1),
    "output_padding_one_axis": ((2, 3, 4, 5), 4, (3, 2), (3, 2), (1, 0), (2, 0), (1, 1), 1),
    "groups": ((2, 4, 3, 3), 3, (3, 2), (2, 1), (1, 0), (1, 0), (1, 1), 2),
    "depthwise": ((1, 5, 4, 4), 1, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 5),
    "dilated": ((2, 3, 4, 3), 2, (3, 2), (1, 2), (2, 1), (0, 1), (2, 3), 1),
    "pointwise_stride": ((2, 3, 4, 4), 5, (1, 1), (2, 2), (0, 0), (1, 1), (1, 1), 1),
    "rapidocr": ((1, 6, 5, 7), 4, (2, 1), (2, 1), (0, 0), (0, 0), (1, 1), 1),
    "stride_above_kernel": ((1, 2, 3, 3), 3, (2, 2), (3, 3), (0, 0), (0, 0), (1, 1), 1),
    "1d": ((2, 3, 6), 4, (4,), (2,), (1,), (1,), (1,), 1),
    "3d": ((1, 2, 3, 2, 3), 3, (2, 3, 2), (2, 1, 2), (0, 1, 1), (1, 0, 1), (1, 1, 1), 1),
    "output_padding_below_dilation": ((1, 2, 4, 4), 3, (3, 3), (1, 1), (2, 2), (1, 1), (2, 2), 1),
    # beyond the stride: the far pad takes all of it, some, none
    "beyond_stride_within_pad": ((1, 2, 4, 3), 3, (3, 2), (2, 2), (3, 4), (3, 3), (4, 4), 1),
    "beyond_stride_some_pad": ((2, 2, 4, 3), 3, (3, 2), (2, 2), (2, 2), (3, 3), (4, 4), 1),
    "beyond_stride_no_pad": ((2, 3, 4, 5), 4, (3, 3), (2, 2), (0, 0), (3, 3), (4, 4), 1),
    "beyond_every_kernel": ((1, 2, 3, 3), 2, (1, 2), (1, 1), (0, 0), (4, 2), (5, 3), 1),
    "beyond_one_axis": ((2, 4, 3, 4), 3, (2, 3), (2, 3), (1, 0), (0, 4), (1, 5), 2),
    "beyond_1d": ((2, 3, 6), 4, (3,), (2,), (1,), (6,), (7,), 1),
    "beyond_3d": ((1, 2, 2, 3, 2), 3, (2, 2, 1), (2, 1, 2), (0, 0, 0), (3, 1, 4), (4, 2, 5), 1),
    "beyond_depthwise": ((2, 3, 4, 4), 1, (3, 3), (2, 1), (0, 0), (3, 3), (4, 4), 3),
}


def given(case, real=False):
    """x, w and the options of a case: whole numbers, or float64's."""
    shape, ocg, kernel, *options = CASES[case]
    random = np.random.default_rng(0)
    drawn = random.standard_normal if real else lambda size: random.integers(-4, 5, size).astype(np.float32)
    x, w = drawn(shape), drawn((shape[1], ocg, *kernel))
    return x, w, dict(zip(("stride", "padding", "output_padding", "dilation", "groups"), options, strict=True))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("case", CASES)
def test_the_definition(full, case, layout):
    if not full and layout == "nchw" and list(CASES).index(case) % 2:
        pytest.skip("thinned out; --full runs it, and PyTorch is compared with below")
    x, w, options = given(case)
    bias = np.random.default_rng(1).integers(-4, 5, w.shape[1] * options["groups"]).astype(np.float32)
    expected = scattered(x, w, **options) + bias.reshape(-1, *[1] * (x.ndim - 2))
    if layout == "nhwc":
        x, w, expected = (np.moveaxis(array, 1, -1) for array in (x, w, expected))
    options["layout"] = layout
    with policy(solver="im2col"):  # adds whole numbers without rounding; what is chosen may transform them
        np.testing.assert_array_equal(convdispatch.conv_transpose(x, w, bias, **options), expected)
    chosen = convdispatch.conv_transpose(x, w, bias, **options)
    assert np.linalg.norm(chosen - expected) <= 1e-5 * np.linalg.norm(expected)  # what math="float32" promises


@pytest.mark.parametrize("case", [case for case in CASES if case != "plain"])
def test_as_pytorch(case):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: peers)")
    x, w, options = given(case, real=True)
    function = getattr(torch.nn.functional, f"conv_transpose{x.ndim - 2}d")
    expected = function(torch.from_numpy(x), torch.from_numpy(w), **options)
    got = convdispatch.conv_transpose(x, w, **options)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-10, atol=1e-10)


BEYOND = [case for case in CASES if case.startswith("beyond")]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("kind", ["tensor", "array", "part of an array"])
@pytest.mark.parametrize("case", BEYOND)
def test_arrays_on_a_device(queue, thinned, case, kind, layout):
    """Zeros are appended on the queue, whatever the array is a part of."""
    thinned((BEYOND.index(case) + len(kind) + (layout == "nhwc")) % 2)
    x, w, options = given(case)
    expected = scattered(x, w, **options)
    if layout == "nhwc":
        x, w, expected = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, w, expected))
    if kind == "tensor":
        x, w = convdispatch.Tensor.from_numpy(x, queue), convdispatch.Tensor.from_numpy(w, queue)
    else:
        w, whole = (cl.array.to_device(queue, each) for each in (w, np.append(9, x).astype(np.float32)))
        x = whole[1:].reshape(x.shape) if kind == "part of an array" else cl.array.to_device(queue, x)
    got = convdispatch.conv_transpose(x, w, layout=layout, queue=queue, **options)
    np.testing.assert_array_equal(got.numpy() if kind == "tensor" else got.get(), expected)


@pytest.mark.parametrize("case", BEYOND)
@pytest.mark.parametrize("followed", [False, True], ids=["alone", "followed"])
def test_gradients_as_pytorch(queue, thinned, case, followed):
    thinned(BEYOND.index(case) % 2 == followed)
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: peers)")
    from convdispatch.nn import Tape
    from convdispatch.nn.convolution import transposed_convolution
    from convdispatch.tensor import Parameter, Tensor

    x, w, options = given(case, real=True)
    random = np.random.default_rng(1)
    theirs = [torch.from_numpy(array).requires_grad_() for array in (x, w)]
    function = getattr(torch.nn.functional, f"conv_transpose{x.ndim - 2}d")
    expected = function(*theirs, **options)
    after = {}
    if followed:
        added = random.standard_normal(expected.shape)
        theirs.append(torch.from_numpy(added).requires_grad_())
        expected = torch.nn.functional.silu(expected + theirs[2])
    dy = random.standard_normal(expected.shape)
    expected.backward(torch.from_numpy(dy))
    ours = [Parameter(Tensor.from_numpy(array, queue)) for array in (x, w)]
    if followed:
        after = {"residual": Parameter(Tensor.from_numpy(added, queue)), "activation": "silu"}
    with Tape() as tape:
        y = transposed_convolution(*ours, **options, **after)
    ours += [after["residual"]] if followed else []
    tape.backward(y, Tensor.from_numpy(dy, queue))
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-10)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_a_residual_and_an_activation():
    x, w = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32)
    residual = np.array([[[-9, 0, 1, -9]]], np.float32)
    got = convdispatch.conv_transpose(x, w, np.array([1], np.float32), residual=residual, activation="relu")
    assert got.tolist() == [[[0, 3, 4, 0]]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_padding": 2}, "output_padding must be smaller than stride or dilation"),
        ({"output_padding": -1}, "output_padding"),
        ({"padding": 9}, "output would have size"),
        ({"groups": 2}, "multiple of"),
        ({"stride": 0}, "stride must be 1 or more"),
        ({"layout": "hwc"}, "layout must be one of"),
        ({"out": np.zeros((1, 1, 1, 1), np.float32)}, "out must have shape"),
    ],
)
def test_refusals(changes, message):
    x, w = np.ones((1, 3, 4, 4), np.float32), np.ones((3, 2, 3, 3), np.float32)
    with pytest.raises(convdispatch.ConvDispatchError, match=message):
        convdispatch.conv_transpose(x, w, **changes)


def test_channels_must_match():
    with pytest.raises(InvalidArgument, match="takes 4 channels, x of shape"):
        convdispatch.conv_transpose(np.ones((1, 3, 4, 4), np.float32), np.ones((4, 2, 3, 3), np.float32))
