"""What ``fuzz_torch`` does to a model's weights, or to the model, between two calls."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

__all__ = ["REMAKES", "WRITES"]


def _each(write: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    def run(program: Any) -> None:
        for p in program.model.parameters():
            write(p)

    return run


def _learn(optimizer: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Any], None]:
    def run(program: Any) -> None:
        steps = optimizer(program.model.parameters())
        if any(p.requires_grad for p in program.model.parameters()):
            program.model(program.data()).square().mean().backward()
            nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
            steps.step()
        steps.zero_grad()

    return run


def _load(program: Any, assign: bool = False) -> None:
    state = {n: v * 1.1 if v.is_floating_point() else v for n, v in program.model.state_dict().items()}
    program.model.load_state_dict(state, assign=assign)
    if assign and program.kind != "fused":  # layers that shared weights do no more
        program.pristine.load_state_dict({n: v.clone() for n, v in state.items()}, assign=True)


def _new(p: torch.Tensor) -> None:
    p.data = p.data * 1.2


@torch.no_grad()
def _filters(p: torch.Tensor) -> None:
    """One row after another, through ``.data``: filters are ablated that way."""
    p.data[p.shape[0] // 2] = 0.0


@torch.no_grad()
def _set(p: torch.Tensor) -> None:
    p.set_((p * 0.9).contiguous())  # type: ignore[call-overload]


def _swap(program: Any) -> None:
    for p in list(program.model.parameters()):
        other = nn.Parameter(p.detach() * 0.9, requires_grad=p.requires_grad)
        try:
            torch.utils.swap_tensors(p, other)
        except RuntimeError as error:  # PyTorch's own, where a recorder's fake tensors refer to the parameter
            if "weakref" not in str(error):
                raise
            p.data = other.data


def _mean(program: Any) -> None:
    """A mean of models, which writes all of them at once."""
    own = [p.detach() for p in program.model.parameters()]
    torch._foreach_lerp_(own, [torch.ones_like(p) * 0.01 for p in own], 0.1)


def _vector(program: Any) -> None:
    with torch.no_grad():
        parameters = [p for p in program.model.parameters() if p.is_contiguous()]  # of others PyTorch makes no vector
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters) * 0.95, parameters)


def _moved(there: Callable[[nn.Module], nn.Module]) -> Callable[[Any], None]:
    def run(program: Any) -> None:
        there(program.model)
        program.model.float()

    return run


def _pickled(model: nn.Module) -> Any:
    if any(parametrize.is_parametrized(layer) for layer in model.modules()):
        return model  # PyTorch refuses
    return pickle.loads(pickle.dumps(model))


def _replace(made: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The model goes, and what was made of it stands in its memory, as likely as not."""

    def run(program: Any) -> None:
        program.model = made(program.model)

    return run


class Mask(nn.Module):
    """Every second row of weights is zero."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """As it says."""
        return weight * (torch.arange(weight.shape[0], device=weight.device) % 2).view(-1, *[1] * (weight.ndim - 1))


def _prune(program: Any) -> None:
    """The weights become a new parameter of the same name. (While a mask is kept PyTorch refuses copies.)"""
    models = [program.model] if program.kind == "fused" else [program.model, program.pristine]
    for layer in (layer for model in models for layer in model.modules()):
        own = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and "weight" in layer._parameters
        if own and layer.weight.is_contiguous():  # PyTorch prunes no others
            prune.l1_unstructured(layer, "weight", 0.3)
            prune.remove(layer, "weight")


def _pair(change: Callable[[nn.Module], Any]) -> Callable[[Any], None]:
    """A layer gets another form of its weights, in the model and in its twin."""

    def run(program: Any) -> None:
        if program.kind == "fused":
            return
        for model in (program.model, program.pristine):
            for layer in model.modules():
                if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and type(layer.weight) is nn.Parameter:
                    if "weight" in layer._parameters:
                        change(layer)
                    break

    return run


WRITES: dict[str, Callable[[Any], None]] = {
    "nothing": lambda p: None,
    ".data.mul_": _each(lambda p: p.data.mul_(1.3)),
    ".data.clamp_": _each(lambda p: p.data.clamp_(-0.2, 0.2)),
    ".data.sub_": _each(lambda p: p.data.sub_(0.01)),
    ".data.copy_": _each(lambda p: p.data.copy_(p.data.flip(0))),
    ".data[i] =": _each(_filters),
    ".data =": _each(_new),
    "set_": _each(_set),
    "mul_": _each(lambda p: torch.no_grad()(p.mul_)(0.8)),
    "numpy": _each(lambda p: p.detach().numpy().__imul__(0.9)),
    "SGD": _learn(lambda p: torch.optim.SGD(p, lr=1e-3)),
    "Adam": _learn(lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True)),
    "fused AdamW": _learn(lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True)),
    "mean": _mean,
    "vector": _vector,
    "load_state_dict": _load,
    "assign": lambda p: _load(p, assign=True),
    "swap": _swap,
    "double and back": _moved(nn.Module.double),
    "bfloat16 and back": _moved(nn.Module.bfloat16),
    "channels_last": lambda p: p.model.to(memory_format=torch.channels_last) if len(p.pristine.shape) == 4 else None,
    "copy": _replace(copy.deepcopy),
    "pickle": _replace(_pickled),
    "prune": _prune,
    "mask": _pair(lambda layer: parametrize.register_parametrization(layer, "weight", Mask())),
    "weight_norm": _pair(parametrizations.weight_norm),
    "freeze": lambda p: p.model.requires_grad_(False),
    "unfreeze": lambda p: p.model.requires_grad_(True),
    "train": lambda p: p.set_mode(True),
    "eval": lambda p: p.set_mode(False),
}
REMAKES = {
    ".data =", "set_", "assign", "swap", "double and back", "bfloat16 and back", "channels_last", "copy", "pickle",
    "prune", "mask", "weight_norm", "freeze", "unfreeze",
}  # fmt: skip
"""After these, recorders are made anew: they keep the tensors and the gradients that they saw."""
