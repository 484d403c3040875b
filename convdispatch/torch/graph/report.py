"""fusion: reports what became of the operations of a converted model, graph by graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class Fusion:
    """What became of a converted model's graphs."""

    forms: dict[str, str] = field(default_factory=dict)
    """By module, graph and input shapes: the form that runs, or the reason why the graph runs operator by operator."""
    breaks: tuple[str, ...] = ()
    """Graph breaks of Dynamo: the line of the model's code, and the reason."""

    def __str__(self) -> str:
        lines = [f"form for {shapes}: {form}" for shapes, form in self.forms.items()]
        return "\n".join([*lines, *(f"graph break: {each}" for each in self.breaks)]) or "no call was compiled yet"


def fusion(model: nn.Module) -> Fusion:
    """The report on what ``convert(model, fuse=True)`` compiled so far, of its result or of a model that contains
    it."""
    forms: dict[str, str] = {}
    breaks: list[str] = []
    for name, module in model.named_modules():
        state = module.__dict__.get("_compiled_state")
        if state is None:
            continue
        backend = state.backend
        for number, graph in enumerate(backend.graphs):
            where = f"{name or 'the model'}" + (f", graph {number + 1}" if number else "")
            forms |= {f"{where}, {shapes}": form for shapes, form in graph.descriptions().items()}
        breaks += backend.breaks
    return Fusion(forms, tuple(breaks))
