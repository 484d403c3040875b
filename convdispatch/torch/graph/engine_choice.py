"""Which engine computes an inference graph on a CPU: a form of ours, or inductor with our convolutions in it.

Forms win where convolutions are most of the work. Where matrix products and attention are, neither wins always, so both
are built and timed on the call's own inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = ["convolution_share", "faster"]

MIN_CONVOLUTION_SHARE = 0.8
"""Share of a graph's multiply-adds in convolutions from which on a form is taken without a race. Measured, share and a
form's speed in multiples of inductor's: TinyNet-A 1.00 and 2.0, MambaOut-F 0.16 and 0.98, XCiT-N 0.10 and 0.48; the
exception is Visformer-T, 0.95 and 0.93, whose products are 1x1 convolutions."""
RUNS = 5
"""Timed calls of each engine, in turns; the least counts."""


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


def faster(candidates: Sequence[Callable[[Sequence[torch.Tensor]], Any]], inputs: Sequence[torch.Tensor]) -> int:
    """The position of the candidate whose call is shortest; each is called once before."""
    for run in candidates:
        run(inputs)
    least = [float("inf")] * len(candidates)
    for _ in range(RUNS):
        for place, run in enumerate(candidates):
            begin = time.perf_counter()
            run(inputs)
            least[place] = min(least[place], time.perf_counter() - begin)
    return least.index(min(least))
