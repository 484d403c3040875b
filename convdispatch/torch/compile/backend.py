"""``torch.compile(model, backend="convdispatch")``: what becomes of a graph that Dynamo captured.

AOTAutograd makes forward and backward graphs of ATen operators. On a CPU a graph without gradients runs as inference
forms (``graph/forms``); all others run operator by operator with our convolutions (``graph/operators``), compiled by
inductor where a compiler is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..graph.forms import GraphForms

__all__ = ["Backend", "convdispatch"]


class Backend:
    """The back end of one model: a callable as Dynamo takes it, which knows what it made."""

    def __init__(self, mode: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.mode, self.options = mode, dict(options or {})
        self.graphs: list[GraphForms] = []
        self.breaks: list[str] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What computes a graph that Dynamo captured, for flat inputs."""
        from torch._dynamo.backends.common import aot_autograd

        keep_assertions(graph)
        return aot_autograd(fw_compiler=_plain, bw_compiler=_plain, inference_compiler=self._inference)(graph, inputs)

    def _inference(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        static = [] if metadata is None else list(metadata.static_input_indices)
        made = GraphForms(graph, static, _boxed(graph))
        self.graphs.append(made)
        return made


def convdispatch(
    graph: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The back end that ``torch.compile`` finds by name; ``mode`` and ``options`` are ``torch.compile``'s."""
    return Backend(mode, options)(graph, inputs)


def _plain(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return _boxed(graph)


def _boxed(graph: fx.GraphModule) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(graph.forward)


def keep_assertions(graph: fx.GraphModule) -> None:
    """Give assertions on values a message: AOTAutograd drops those without one as dead code."""
    for node in graph.graph.nodes:
        if node.target is torch._assert_async and len(node.args) == 1 and not node.kwargs:
            node.args = (*node.args, "Expected Tensor with single nonzero value, but got zero")
    graph.recompile()
