"""What tests of PyTorch's door compare: errors, counted calls, results with all gradients."""

from __future__ import annotations

import torch

import convdispatch.torch as ct

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative error by dtype."""


def error(got, expected) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def total() -> tuple[int, int]:
    return ct.counters()["ours"], ct.counters()["left"]


def gradients(function, *tensors):
    """The result and all gradients, by a fixed gradient of the result."""
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in tensors]
    y = function(*leaves)
    torch.manual_seed(1)
    grad = torch.randn(y.shape).to(tensors[0].dtype if tensors[0].dtype.itemsize == 2 else y.dtype)
    return y, *torch.autograd.grad(y, leaves, grad)
