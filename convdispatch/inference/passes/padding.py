"""Zeros round a picture as the padding of the convolution that reads it, so that nobody copies the picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...elementwise.tensor import Tensor
from ..graph import Graph, Node, Ref


def take_in_zeros(graph: Graph) -> Graph:
    """Let convolutions read what was padded by zeros, and pad it themselves; the graph is changed in place and
    returned."""
    zeros: dict[Node, dict[int, tuple[int, int]] | None] = {}
    for node in graph.nodes:
        x, padding = node.kwargs.get("x"), node.kwargs.get("padding", 0)
        if node.name != "convolution" or not isinstance(x, Ref) or not x.is_whole or isinstance(padding, str):
            continue
        maker = x.value.node
        if maker is None or maker.name != "sampled":
            continue
        if maker not in zeros:
            zeros[maker] = zeros_of(maker)
        first = 2 if node.kwargs.get("layout", "nchw") == "nchw" else 1
        axes = range(first, first + len(x.shape) - 2)
        added = zeros[maker]
        if added is None or not added.keys() <= set(axes):
            continue
        own = [padding] * len(axes) if isinstance(padding, int) else padding
        pairs = [(each, each) if isinstance(each, int) else tuple(each) for each in own]
        extra = [added.get(axis, (0, 0)) for axis in axes]
        node.kwargs["padding"] = [(a + c, b + d) for (a, b), (c, d) in zip(pairs, extra, strict=True)]
        node.kwargs["x"] = maker.kwargs["x"]
    graph.prune()
    return graph


def zeros_of(node: Node) -> dict[int, tuple[int, int]] | None:
    """The zeros before and after each axis that a ``sampled`` operation adds; None if it does anything else."""
    arguments: dict[str, Any] = node.kwargs
    x, indices, weights = arguments["x"], arguments["operands"][::2], arguments["operands"][1::2]
    if arguments["fill"] != 0 or any(weight is not None for weight in weights):
        return None
    added = {}
    for axis, index in zip(arguments["axes"], indices, strict=True):
        if not isinstance(index, Tensor) or not isinstance(x, Ref):
            return None
        table, size = index.numpy().reshape(-1), x.shape[axis]
        before = int(np.argmax(table >= 0))
        expected = np.full(len(table), -1)
        expected[before : before + size] = np.arange(min(size, max(0, len(table) - before)))
        after = len(table) - before - size
        if after < 0 or not np.array_equal(table, expected):
            return None
        added[axis] = before, after
    return added
