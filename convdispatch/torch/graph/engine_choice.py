"""Chooses the engine that computes an inference graph on a CPU: a recorded form of convdispatch, or PyTorch's inductor.

Forms win where convolutions are most of the work. Where matrix products and attention are, neither wins always: both
are built and timed on the call's own inputs, and the decision store keeps the verdict, so that the next process builds
the winner alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ...calls.framework.fallback import cpu_device
from ...device.cache.keys import key_of
from ...device.runtime import device_info
from ...selection.decision_store import key

if TYPE_CHECKING:
    from ...inference.form_benchmark import Verdict

MIN_CONVOLUTION_SHARE = 0.97
"""A graph whose convolutions do at least this share of its multiply-adds runs as a form without a race. Measured
shares, and a form's speed in multiples of inductor's: TinyNet-A 1.00 and 2.0, Visformer-T 0.95 and 0.65, MambaOut-F
0.16 and 1.2, XCiT-N 0.10 and 1.26, FocalNet-T 0.03 and 0.68."""
RUNS = 4
"""The number of timed samples of each engine in each of a race's two series; the shortest time counts."""
ENGINES = ("form", "inductor")


def may_lose(graph: fx.GraphModule) -> bool:
    """Whether a form of a graph may be slower than inductor's code: convolutions are not nearly all of the work, or
    there are layer norms, which forms do not fuse with what surrounds them (ConvNeXt-Atto 0.89, share 1.00)."""
    norms = any(str(node.target) == "aten.native_layer_norm.default" for node in graph.graph.nodes)
    return norms or convolution_share(graph) < MIN_CONVOLUTION_SHARE


def convolution_share(graph: fx.GraphModule) -> float:
    """The share of a graph's multiply-adds that its convolutions do; 1 where there are none at all."""
    from torch.utils.flop_counter import flop_registry

    convolutions = others = 0
    for node in graph.graph.nodes:
        count = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if node.op != "call_function" or count is None or "val" not in node.meta:
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
        operations = count(*args, **kwargs, out_val=node.meta["val"])
        if "convolution" in str(node.target):
            convolutions += operations
        else:
            others += operations
    return convolutions / (convolutions + others) if convolutions + others else 1.0


def faster(candidates: Sequence[Callable[[Sequence[torch.Tensor]], Any]], inputs: Sequence[torch.Tensor]) -> Verdict:
    """The verdict of two series of timed calls, after two untimed calls of each candidate; the first candidate wins
    ties."""
    from ...inference.form_benchmark import SAMPLE_S, verdict_of  # all of ``inference``: a race's first need of it

    calls = []
    for run in candidates:
        run(inputs)
        calls.append(max(1, round(SAMPLE_S / max(_seconds(run, inputs, 1), 1e-5))))
    return verdict_of([_series(candidates, inputs, calls) for _ in range(2)], favourite=0)


def _series(
    candidates: Sequence[Callable[..., Any]], inputs: Sequence[torch.Tensor], calls: Sequence[int]
) -> list[list[float]]:
    """The seconds of a call of each candidate, measured in turns over some calls that follow each other: the first
    finds the other candidate's data in the caches."""
    samples: list[list[float]] = [[] for _ in candidates]
    for _ in range(RUNS):
        for run, times, count in zip(candidates, samples, calls, strict=True):
            times.append(_seconds(run, inputs, count))
    return samples


def _seconds(run: Callable[..., Any], inputs: Sequence[torch.Tensor], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        run(inputs)
    return (time.perf_counter() - begin) / count


class Race:
    """The choice of an engine for one graph with static sizes, whose nodes have metadata of their results."""

    def __init__(self, graph: fx.GraphModule) -> None:
        from ...inference import choice_cache

        nodes = (f"{node.name} {node.target} {node.args} {node.kwargs} {_kinds(node)}" for node in graph.graph.nodes)
        what = "engine", choice_cache.LOWERING, torch.__version__, str(torch.get_num_threads()), *nodes
        self._key = key(device_info(cpu_device()), key_of(*what))
        self._known = choice_cache.load(self._key, ENGINES)
        self.winner = self._known.layout if self._known is not None and self._known.is_final else None
        """The engine that won an earlier race; None where engines are to be timed."""

    def fastest(self, candidates: Mapping[str, Callable[..., Any]], inputs: Sequence[torch.Tensor]) -> Any:
        """The fastest candidate of a mapping by engine; its name is written to the decision store."""
        from ...inference import choice_cache

        verdict = faster(list(candidates.values()), inputs)
        name, winner = list(candidates.items())[verdict.best]
        choice_cache.store(self._key, name, verdict, self._known)
        return winner


def _kinds(node: fx.Node) -> Any:
    """Shapes, strides and types of a node's results."""
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return [(*x.shape, *x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x for x in values]
