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


def forms(model) -> list[str]:
    """The forms that a converted model's calls have, or the reasons why there is none, in words."""
    return list(ct.fusion(model).forms.values())


def programs(model) -> list:
    """The recorded programs of a converted model's forms. Asserts that every call had one."""
    states = [each for part in model.modules() if (each := vars(part).get("_compiled_state"))]
    graphs = [graph for state in states for graph in state.backend.graphs]
    found = [form for graph in graphs for weights in graph._weight_sets.sets for form in weights.forms.values()]
    assert not [form for form in found if isinstance(form, str)], found
    return [form._program for form in found]


def layers(model) -> list[str]:
    """The operations of a converted model's only form, a convolution with the activation that it takes in."""
    (program,) = programs(model)
    problems = [(layer.name, layer.problem and layer.problem.activation) for layer in program.layers]
    return [name if activation is None else f"{name} + {activation}" for name, activation in problems]
