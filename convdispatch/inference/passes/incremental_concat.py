"""Concatenations that are only read element by element and joined again: each is the first rows of the next one.

A dense block joins what it has with what a layer adds, again and again. Where the joined results are read by
element-wise operations alone, which take rows with gaps between them, all of them can be one memory, into which each
layer's part is copied once. Convolutions read without gaps: what they read is not grown.
"""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Node, Ref, Value, operands


def nest_concats(graph: Graph) -> Graph:
    """Let each concatenation whose first parts are all parts of an earlier one read that one's result instead; the
    graph is changed in place and returned."""
    results: dict[tuple[Any, ...], Ref] = {}
    for node in graph.nodes:
        if node.name != "concatenate" or not all(isinstance(part, Ref) for part in node.kwargs["tensors"]):
            continue
        parts, axis = tuple(node.kwargs["tensors"]), _axis(node)
        for count in range(len(parts) - 1, 1, -1):
            if (axis, parts[:count]) in results:
                node.kwargs["tensors"] = [results[axis, parts[:count]], *parts[count:]]
                break
        results[axis, parts] = node.result
    return graph


def incremental_concats(graph: Graph) -> dict[Node, Node]:
    """For each concatenation whose result can be a part of another one's, with gaps: that other one."""
    readers: dict[Value, list[tuple[Node, Ref]]] = {}
    for node in graph.nodes:
        for ref in node.refs:
            readers.setdefault(ref.value, []).append((node, ref))
    outputs = {ref.value for ref in operands(graph.output) if isinstance(ref, Ref)}
    later_concat = {}
    for node in graph.nodes:
        if node.name != "concatenate" or node.result.value in outputs:
            continue
        read = readers.get(node.result.value, [])
        later = [reader for reader, _ in read if reader.name == "concatenate"]
        other_readers = [reader for reader, _ in read if reader.name != "concatenate"]
        all_whole = all(ref.is_whole for _, ref in read)
        if (
            all_whole
            and len(later) == 1
            and _axis(later[0]) == _axis(node)
            and all(o.name == "apply" for o in other_readers)
        ):
            later_concat[node] = later[0]
    return later_concat


def _axis(join: Node) -> int:
    return int(join.kwargs.get("axis", 1) % len(join.result.shape))
