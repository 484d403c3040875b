"""What tests of PyTorch's door compare: errors, counted calls, results and gradients, answers of compiled models."""

import copy

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

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


def alike(got, wanted, limit=1e-5) -> None:
    """Assert that answers have one structure, and tensors the same shapes, types and, but for roundings, values."""
    got, structure = tree_flatten(got)
    wanted, own = tree_flatten(wanted)
    assert structure == own
    for one, other in zip(got, wanted, strict=True):
        assert type(one) is type(other)
        if isinstance(other, torch.Tensor):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert torch.equal(one, other) if not other.is_floating_point() else error(one, other) < limit


def in_double(model, *given, **named):
    """What a copy of the model answers in float64."""
    wide = tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, (given, named))
    return copy.deepcopy(model).double()(*wide[0], **wide[1])


def right(made, model, *given, limit=1e-5, **named) -> None:
    """Assert that a compiled model's answer, a tensor, is the model's own in float64. The model is copied, which reads
    ``.data`` of its parameters."""
    wanted = in_double(model, *given, **named)  # first, for a call may write what it is given
    got = made(*given, **named)
    assert got.shape == wanted.shape
    assert error(got, wanted) < limit


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


def with_statistics(model):
    """The model in eval mode, its batch norms with statistics and parameters that are no identity."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                torch.nn.init.uniform_(module.weight, 0.5, 2)
                torch.nn.init.normal_(module.bias)
    return model.eval()
