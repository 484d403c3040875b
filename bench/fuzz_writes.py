"""What ``fuzz_torch`` does to a model between two calls: to its weights, to its parts, or to the whole model.

A change takes a ``World``: ``world.model`` is the module, ``world.call`` what is called of it, ``world.replace`` puts
another module in its place, ``world.value`` is a number, and ``world.arguments()`` makes inputs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils._pytree import tree_leaves

from convdispatch.torch.graph.conversion import copied

__all__ = ["CHANGES"]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _each(write: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    def run(world: Any) -> None:
        for p in world.model.parameters():
            write(p)

    return run


def _learn(optimizer: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Any], None]:
    def run(world: Any) -> None:
        steps = optimizer(world.model.parameters())
        with torch.enable_grad():
            results = tree_leaves(world.call(*world.arguments()))
            loss = sum(y.float().square().mean() for y in results if isinstance(y, torch.Tensor) and y.requires_grad)
            if isinstance(loss, torch.Tensor):
                loss.backward()
        nn.utils.clip_grad_norm_(world.model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()

    return run


def _load(world: Any, assign: bool = False) -> None:
    state = {n: v * 1.1 if v.is_floating_point() else v for n, v in world.model.state_dict().items()}
    world.model.load_state_dict(state, assign=assign)


def _swap(world: Any) -> None:
    for p in list(world.model.parameters()):
        other = nn.Parameter(p.detach() * 0.9, requires_grad=p.requires_grad)
        try:
            torch.utils.swap_tensors(p, other)
        except RuntimeError as error:  # PyTorch's own, where a recorder's fake tensors refer to the parameter
            if "weakref" not in str(error) or world.door == "fused":
                raise
            p.data = other.data


def _mean(world: Any) -> None:
    """A mean of models, which writes all of them at once."""
    own = [p.detach() for p in world.model.parameters()]
    torch._foreach_lerp_(own, [torch.ones_like(p) * 0.01 for p in own], 0.1)


def _average(world: Any) -> None:
    """A moving average of models that takes the model's place."""
    mean = torch.optim.swa_utils.AveragedModel(copied(world.model))
    _each(lambda p: torch.no_grad()(p.mul_)(0.9))(world)
    mean.update_parameters(world.model)
    mean.update_parameters(world.model)
    world.model.load_state_dict(mean.module.state_dict())


def _vector(world: Any) -> None:
    with torch.no_grad():
        parameters = [p for p in world.model.parameters() if p.is_contiguous()]  # of others PyTorch makes no vector
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters) * 0.95, parameters)


def _moved(there: Callable[[nn.Module], nn.Module]) -> Callable[[Any], None]:
    def run(world: Any) -> None:
        there(world.model)
        world.model.float()

    return run


def _pickled(world: Any) -> None:
    parametrized = any(parametrize.is_parametrized(layer) for layer in world.model.modules())
    if not parametrized and type(world.model).__name__ == "Sequential":  # habits are functions without a name
        world.replace(pickle.loads(pickle.dumps(world.model)))


class Mask(nn.Module):
    """Every second row of weights is zero."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * (torch.arange(weight.shape[0], device=weight.device) % 2).view(-1, *[1] * (weight.ndim - 1))


def _layers(world: Any) -> list[Any]:
    """Convolutions with a weight of their own."""
    found = [layer for layer in world.model.modules() if isinstance(layer, CONVOLUTIONS)]
    return [each for each in found if "weight" in each._parameters and type(each.weight) is nn.Parameter]


def _prune(world: Any) -> None:
    """The weights become a new parameter of the same name. (While a mask is kept PyTorch refuses copies.)"""
    for layer in _layers(world):
        if layer.weight.is_contiguous():  # PyTorch prunes no others
            prune.l1_unstructured(layer, "weight", 0.3)
            prune.remove(layer, "weight")


def _first(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """What changes one layer."""

    def run(world: Any) -> None:
        for layer in _layers(world)[:1]:
            change(layer)

    return run


def _hooked(world: Any) -> None:
    for layer in _layers(world)[-1:]:
        world.handles.append(layer.register_forward_hook(lambda part, given, y, scale=world.value: y * scale))


def _hooked_before(world: Any) -> None:
    world.handles.append(world.model.register_forward_pre_hook(lambda part, given: (given[0] * 2, *given[1:])))


def _another_layer(world: Any) -> None:
    for name, layer in list(world.model.named_modules()):
        if type(layer).__name__ == "ReLU":
            world.model.set_submodule(name, nn.LeakyReLU(0.5))
            return


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda w: None,
    ".data.mul_": _each(lambda p: p.data.mul_(1.3)),
    ".data.clamp_": _each(lambda p: p.data.clamp_(-0.2, 0.2)),
    ".data.sub_": _each(lambda p: p.data.sub_(0.01)),
    ".data.copy_": _each(lambda p: p.data.copy_(p.data.flip(0))),
    ".data[i] =": _each(lambda p: p.data[p.shape[0] // 2].fill_(0.0)),
    ".data =": _each(lambda p: setattr(p, "data", p.data * 1.2)),
    "set_": _each(lambda p: torch.no_grad()(p.set_)((p.detach() * 0.9).contiguous())),
    "mul_": _each(lambda p: torch.no_grad()(p.mul_)(0.8)),
    "row mul_": _each(lambda p: torch.no_grad()(p[0].mul_)(2.0)),
    "numpy": _each(lambda p: p.detach().numpy().__imul__(0.9)),
    "SGD": _learn(lambda p: torch.optim.SGD(p, lr=1e-3)),
    "Adam": _learn(lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True, eps=1e-3)),
    "fused AdamW": _learn(lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True, eps=1e-3)),
    "mean": _mean,
    "average": _average,
    "vector": _vector,
    "load_state_dict": _load,
    "assign": lambda w: _load(w, assign=True),
    "swap": _swap,
    "double and back": _moved(nn.Module.double),
    "bfloat16 and back": _moved(nn.Module.bfloat16),
    "double": lambda w: w.model.double(),
    "half": lambda w: w.model.half(),
    "float": lambda w: w.model.float(),
    "channels_last": lambda w: w.model.to(memory_format=torch.channels_last) if len(w.shape) == 4 else None,
    "copy": lambda w: w.replace(copied(w.model)),
    "shallow copy": lambda w: w.replace(copy.copy(w.model)),
    "pickle": _pickled,
    "again": lambda w: w.again(),
    "prune": _prune,
    "mask": _first(lambda layer: parametrize.register_parametrization(layer, "weight", Mask())),
    "weight_norm": _first(parametrizations.weight_norm),
    "spectral_norm": _first(parametrizations.spectral_norm),
    "no bias": _first(lambda layer: setattr(layer, "bias", None)),
    "a new bias": _first(lambda layer: setattr(layer, "bias", nn.Parameter(layer.weight.new_ones(layer.out_channels)))),
    "another layer": _another_layer,
    "hook": _hooked,
    "hook before": _hooked_before,
    "no hooks": lambda w: [w.handles.pop().remove() for _ in list(w.handles)],
    "freeze": lambda w: w.model.requires_grad_(False),
    "unfreeze": lambda w: w.model.requires_grad_(True),
    "train": lambda w: w.model.train(),
    "eval": lambda w: w.model.eval(),
}  # fmt: skip
