"""Concatenations that are only read element by element and joined again: each is the first rows of the next one.

A dense block joins what it has with what a layer adds, again and again. Where the joined results are read by
element-wise operations alone, which take rows with gaps between them, all of them can be one memory, into which each
layer's part is copied once. Convolutions read without gaps: what they read is not grown.
"""

from __future__ import annotations

from ..graph import Graph, Node, Ref, Value, operands


def incremental_concats(graph: Graph) -> dict[Node, Node]:
    """For each concatenation whose result can be a part of another one's, with gaps: that other one."""
    readers: dict[Value, list[tuple[Node, Ref]]] = {}
    for node in graph.nodes:
        for ref in node.refs:
            readers.setdefault(ref.value, []).append((node, ref))
    given = {ref.value for ref in operands(graph.output) if isinstance(ref, Ref)}
    found = {}
    for node in graph.nodes:
        if node.name != "concatenate" or node.result.value in given:
            continue
        read = readers.get(node.result.value, [])
        later = [reader for reader, _ in read if reader.name == "concatenate"]
        others = [reader for reader, _ in read if reader.name != "concatenate"]
        whole = all(ref.is_whole for _, ref in read)
        if whole and len(later) == 1 and _axis(later[0]) == _axis(node) and all(o.name == "apply" for o in others):
            found[node] = later[0]
    return found


def _axis(join: Node) -> int:
    return int(join.kwargs.get("axis", 1) % len(join.result.shape))
