"""Bias gradients by the native path, our kernels of channel sums among them, of gradients that lie in many ways."""

import pytest
import torch

import convdispatch.torch as ct
from convdispatch.torch.dispatch import native
from convdispatch.torch.eager import bias_gradient, planning
from convdispatch.torch.geometry import FORMATS

F = torch.nn.functional
# channels in and out, groups, axes of space
LAYERS = {
    "depthwise": (8, 8, 8, 2),
    "dense": (4, 8, 1, 2),
    "groups": (4, 4, 2, 2),
    "depthwise 3-D": (4, 4, 4, 3),
}
LAID = {
    "plain": lambda t: t,
    "last": lambda t: t.contiguous(memory_format=FORMATS.get(t.ndim, torch.contiguous_format)),
    "expanded": lambda t: t[(slice(None), slice(None), *(slice(1),) * (t.ndim - 2))].expand_as(t),
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
    "tokens": lambda t: t.flatten(2).mT.contiguous().mT.unflatten(2, t.shape[2:]),
}
# whether x lies channels last, and the weights; who asks for a gradient: x, weights, bias; how the result's lies
CALLS = [
    *((True, True, (True, True, True), laid) for laid in LAID),
    (True, False, (True, True, True), "last"),
    (True, True, (False, False, True), "last"),
    (False, False, (False, True, True), "last"),
    (False, False, (True, False, True), "plain"),
]


def format_on_cuda(x, w, bias, geometry):
    """Depthwise layers are no library's there, and their gradients contiguous."""
    if geometry.groups == x.shape[1] and x.ndim in (4, 5):
        kind = getattr(torch._C._ConvBackend, f"CudaDepthwise{x.ndim - 2}d")
        return torch._C._conv_determine_backend_memory_format(x, w, kind)
    form = FORMATS.get(x.ndim)
    last = form is not None and any(t.is_contiguous(memory_format=form) for t in (x, w))
    return form if last else torch.contiguous_format


@pytest.mark.parametrize("name", LAYERS)
def test_a_bias_gradient_is_of_the_gradient_as_it_lies(stand_in, monkeypatch, name):
    monkeypatch.setattr(planning, "format_of", format_on_cuda)
    monkeypatch.setattr(bias_gradient, "_LEAST", 0)
    torch.manual_seed(0)
    channels, out, groups, ndim = LAYERS[name]
    convolve = {2: F.conv2d, 3: F.conv3d}[ndim]
    native_sums = 0
    for x_last, w_last, asked, laid in CALLS:
        for turn in range(4):
            x, w = torch.randn(2, channels, *(5, 4, 3)[:ndim]), torch.randn(out, channels // groups, *(3,) * ndim)
            given = LAID["last" if x_last else "plain"](x), LAID["last" if w_last else "plain"](w), torch.randn(out)
            tensors = [each.detach().requires_grad_(one) for each, one in zip(given, asked, strict=True)]
            exact = [each.detach().double().requires_grad_(one) for each, one in zip(given, asked, strict=True)]
            native.pause(True)
            wanted = convolve(*exact, padding=1, groups=groups)
            grad = LAID[laid](torch.randn(wanted.shape))
            wanted = torch.autograd.grad(wanted, [e for e in exact if e.requires_grad], grad.double())
            native.pause(False)
            with ct.enable(solver="im2col*"):
                result = convolve(*tensors, padding=1, groups=groups)
                stand_in.launched.clear()
                found = torch.autograd.grad(result, [t for t in tensors if t.requires_grad], grad)
            launched = [kernel for kernel, _ in stand_in.launched]
            assert launched or not turn or not any(asked[:2]), "the native path takes all of it"
            native_sums += "channel_sums" in launched
            for one, other in zip(found, wanted, strict=True):
                assert (one.double() - other).norm() <= 1e-5 * other.norm(), (x_last, w_last, asked, laid, turn)
    assert native_sums, "some gradients lay as our kernels read them"
