"""fusion: reports what became of the operations of a compiled model, graph by graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

BACKEND = "convdispatch_backend"
"""The attribute of what a call of ``torch.compile`` made that holds the Backend of its graphs."""


@dataclass(frozen=True)
class Fusion:
    """What became of a compiled model's graphs."""

    forms: dict[str, str] = field(default_factory=dict)
    """By module, graph and input shapes: the form that runs, or the reason why the graph runs operator by operator."""
    breaks: tuple[str, ...] = ()
    """Graph breaks of Dynamo: the line of the model's code, and the reason."""

    def __str__(self) -> str:
        lines = [f"form for {shapes}: {form}" for shapes, form in self.forms.items()]
        return "\n".join([*lines, *(f"graph break: {each}" for each in self.breaks)]) or "no call was compiled yet"


def fusion(model: nn.Module) -> Fusion:
    """The report on the graphs of a model that were compiled so far: of what ``convert(model, fuse=True)`` or
    ``torch.compile(model, backend="convdispatch")`` returned, or of a model that contains such modules."""
    forms: dict[str, str] = {}
    breaks: list[str] = []
    for name, module in model.named_modules():
        backend = _backend_of(module)
        if backend is None:
            continue
        for number, graph in enumerate(backend.graphs):
            where = f"{name or 'the model'}" + (f", graph {number + 1}" if number else "")
            forms |= {f"{where}, {shapes}": form for shapes, form in graph.descriptions().items()}
        breaks += backend.breaks
    return Fusion(forms, tuple(breaks))


def _backend_of(module: nn.Module) -> Any:
    """The Backend that compiled a module's calls; None if there is none."""
    state = module.__dict__.get("_compiled_state")
    if state is not None:
        return state.backend
    callback = getattr(module.__dict__.get("dynamo_ctx"), "callback", None)
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return getattr(callback, BACKEND, None)
