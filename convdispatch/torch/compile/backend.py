"""``torch.compile(model, backend="convdispatch")``: chooses what computes each graph that Dynamo captured.

A graph that learns, and one whose sizes are symbols on a GPU, is inductor's, with our convolutions in it. All other
graphs go through AOTAutograd to ``graph/forms``, which makes for each set of shapes an inference form of ours, or has
inductor compile the graph with its weights frozen. Where there is no compiler, graphs run operator by operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...api.errors import InvalidArgument
from ...api.policy import PROMISES, promising
from ..captures import device_type, watch_captures
from ..dynamo_frames import skip_our_frames
from ..graph import inductor
from ..graph.forms import ENGINES, GraphForms
from ..graph.learning import channels_last
from ..graph.learning.small_kernels import join_counters
from ..graph.learning.training_norms import fuse_training_norms
from ..graph.report import BACKEND
from ..graph.specialised import let_go_of_capture
from ..graph.upsampling import whole_upsampling

_NO_MESSAGE = "Expected Tensor with single nonzero value, but got zero"
"""PyTorch's message of an assertion on tensor values that was written without a message."""


class Backend:
    """The back end of one model: Dynamo calls it with each graph, and it references what was compiled for the
    graphs."""

    def __init__(self, mode: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        """``mode`` and ``options`` are ``torch.compile``'s; the options "engine", "batch_invariant" and
        "strict_nan" (``policy``'s) are this package's, the others are inductor's.

        Raises InvalidArgument for an engine that there is not, InvalidPolicy for another kind of value.
        """
        skip_our_frames()
        inductor_options = dict(options or {})
        self.engine, self.mode = inductor_options.pop("engine", None), mode
        self.promises = {name: inductor_options.pop(name, None) for name in PROMISES}
        with promising(self.promises):  # checks the kinds of the values
            pass
        if self.engine is not None and self.engine not in ENGINES:
            raise InvalidArgument(f"options['engine'] must be one of {', '.join(ENGINES)}, got {self.engine!r}")
        self.patches = inductor.options_of(mode, inductor_options)
        self.graphs: list[GraphForms | Compiled] = []
        self.breaks: list[str] = []
        """The points at which Dynamo ended a graph before the model's code ended: source file, line, and Dynamo's
        reason."""

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the callable that computes a graph captured by Dynamo, for flat inputs."""
        if not any(value is not None for value in self.promises.values()):
            return self._compiled(graph, inputs)
        with promising(self.promises):
            compiled = self._compiled(graph, inputs)

        def under_policy(*given: Any) -> Any:
            with promising(self.promises):
                return compiled(*given)

        return under_policy

    def _compiled(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        keep_assertions(graph)
        self._note_break(graph)
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        device = next((each.device.type for each in tensors), "cpu")
        on_stream = device == device_type()
        if on_stream:
            watch_captures()
        learns = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        symbols = len(tensors) < len(inputs)
        by_inductor = learns or (symbols and on_stream)
        by_inductor = by_inductor and self.engine != "operators" and inductor.available(device)
        if learns and by_inductor and on_stream:
            join_counters(graph)
            if channels_last.pays(device):
                channels_last.lay_channels_last(graph)
        if learns:
            fuse_training_norms(graph)
        if by_inductor:
            self.graphs.append(Compiled(tensors, learns))
            return let_go_of_capture(inductor.compiled(graph, inputs, self), graph)
        by_operator = inductor.operator_by_operator_compiler
        # Buffers that a graph with gradients writes are written inside of it: checkpoint() ends a second forward pass
        # as soon as all tensors for the backward pass are there, so what AOTAutograd writes after it would be lost.
        traced = aot_autograd(
            fw_compiler=by_operator,
            bw_compiler=by_operator,
            inference_compiler=self._inference,
            keep_inference_input_mutations=learns,
        )
        with whole_upsampling():
            return let_go_of_capture(traced(graph, inputs), graph)

    def _note_break(self, graph: fx.GraphModule) -> None:
        """Record the line of the model's code at which Dynamo had to end this graph, and the reason, for ``fusion``."""
        reason = getattr(graph, "compile_subgraph_reason", None)
        if reason is None or not reason.graph_break:
            return
        line = f"{reason.user_stack[-1].filename}:{reason.user_stack[-1].lineno}: " if reason.user_stack else ""
        graph_break = line + reason.reason.strip().splitlines()[0]
        if graph_break not in self.breaks:
            self.breaks.append(graph_break)

    def free(self) -> None:
        """Free the forms of all graphs: Dynamo caches the graphs' code even after the model is gone."""
        for graph in self.graphs:
            if isinstance(graph, GraphForms):
                graph.free()

    def _inference(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        static = [] if metadata is None else list(metadata.static_input_indices)
        graph_forms = GraphForms(graph, static, self)
        self.graphs.append(graph_forms)
        return graph_forms


class Compiled:
    """A graph that inductor compiled as a whole, with our convolutions, as an entry of the report ``fusion``."""

    def __init__(self, inputs: Sequence[torch.Tensor], learns: bool) -> None:
        self._shapes = " ".join("x".join(map(str, x.shape)) for x in inputs if not isinstance(x, torch.nn.Parameter))
        self._words = "with gradients" if learns else "sizes are symbols"

    def descriptions(self) -> dict[str, str]:
        """What the report ``fusion`` shows of this graph, in the format of ``GraphForms.descriptions``."""
        return {self._shapes: f"by inductor, convolutions ours ({self._words})"}


def convdispatch(
    graph: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The back end that ``torch.compile`` finds by name; ``mode`` and ``options`` are ``torch.compile``'s.

    All graphs of one call of ``torch.compile`` share a Backend. It is an attribute of the caller, which that call made
    and to which the compiled module leads, so that ``fusion`` finds it there.
    """
    caller = sys._getframe(1).f_locals.get("self")
    backend = getattr(caller, BACKEND, None)
    if backend is None:
        backend = Backend(mode, options)
        if isinstance(caller, getattr(torch, "_TorchCompileWrapper", ())):
            setattr(caller, BACKEND, backend)
    return backend(graph, inputs)  # type: ignore[no-any-return]


def keep_assertions(graph: fx.GraphModule) -> None:
    """Give assertions on values a message: AOTAutograd drops those without one as dead code."""
    for node in graph.graph.nodes:
        if node.target is torch._assert_async and len(node.args) == 1 and not node.kwargs:
            node.args = (*node.args, _NO_MESSAGE)
    graph.recompile()
