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

__all__ = ["convdispatch"]


def convdispatch(
    graph: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The back end; ``mode`` and ``options`` are ``torch.compile``'s."""
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=_plain, bw_compiler=_plain, inference_compiler=_inference)(graph, inputs)


def _plain(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return _boxed(graph)


def _boxed(graph: fx.GraphModule) -> Callable[..., Any]:
    from torch._functorch.aot_autograd import make_boxed_func

    return make_boxed_func(graph.forward)


def _inference(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    static = [] if metadata is None else list(metadata.static_input_indices)
    return GraphForms(graph, static, _boxed(graph))
