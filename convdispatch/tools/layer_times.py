"""The times of a model's layers, each with onnxruntime's time for the same nodes of the file.

Both libraries fuse, so neither's steps are the file's nodes: a step here names the nodes that it computes, and a step
of onnxruntime's profile is named after a node or its result. Steps that share a node form one row; what is only a view
here belongs to what reads it. What onnxruntime does for no node, such as reorders between its layouts, is a row of its
own.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..selection.text_table import Column, Table

_ADDED = re.compile(r"(_nchwc|_nhwc|_bn|_mul|_token_\d+)$")
"""The suffixes that onnxruntime's optimisation passes append to the names of nodes."""


@dataclass(frozen=True)
class Step:
    """One step that a library ran: operator or solver, milliseconds, and the results of the file's nodes that it
    computed."""

    what: str
    ms: float
    nodes: frozenset[str]
    flops: float = 0.0


@dataclass
class Row:
    """Steps of both libraries that compute the same nodes."""

    nodes: list[str] = field(default_factory=list)
    ours: list[Step] = field(default_factory=list)
    theirs: list[Step] = field(default_factory=list)

    @property
    def ms(self) -> tuple[float, float]:
        """The sums of the milliseconds of this package's steps, and of the other library's."""
        return sum(step.ms for step in self.ours), sum(step.ms for step in self.theirs)


def onnxruntime_steps(path: Path | str, graph: Any, feeds: Mapping[str, Any], threads: int, runs: int) -> list[Step]:
    """The least milliseconds of each node that onnxruntime runs for a file, by its own profile."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.enable_profiling = 3, threads, True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(max(1, runs)):
            session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    least_ms: dict[str, tuple[str, float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name, ms = event["name"].removesuffix("_kernel_time"), event["dur"] * 1e-3
            earlier = least_ms.get(name)
            least_ms[name] = (event["args"]["op_name"], ms if earlier is None else min(ms, earlier[1]))
    nodes = covered(graph, {name: operator for name, (operator, _) in least_ms.items()})
    return [Step(operator, ms, nodes[name]) for name, (operator, ms) in least_ms.items()]


def covered(graph: Any, steps: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """For each step (its name and operator) the results of the graph's nodes that it computes: the node it is named
    after, and what is fused into it back to the node that has its operator."""
    makers = {name: node for node in graph.node for name in node.output if name}
    named = {node.name: node.output[0] for node in graph.node if node.name}
    named |= {f"{node.op_type}_{index}": node.output[0] for index, node in enumerate(graph.node) if not node.name}
    ends = {name: _named_result(name, makers, named) for name in steps}
    step_ends = {end for end in ends.values() if end is not None}
    nodes = {}
    for name, operator in steps.items():
        end = ends[name]
        path = None if end is None else _nodes_back_to(end, operator.removeprefix("Fused"), makers, step_ends - {end})
        nodes[name] = frozenset(() if end is None else path or (end,))
    return nodes


def _named_result(name: str, makers: Mapping[str, Any], named: Mapping[str, str]) -> str | None:
    """The node's result after which a step is named; None for a step that is of no node."""
    name = name.removeprefix("fused ")
    while True:
        if name in makers or name in named:
            return name if name in makers else named[name]
        shorter = _ADDED.sub("", name)
        if shorter == name:
            return None
        name = shorter


def _nodes_back_to(end: str, operator: str, makers: Mapping[str, Any], ends: set[str]) -> list[str] | None:
    """Results from ``end`` back to a node with the operator ``what``, none of them another step's end; the shortest."""
    paths = [[end]]
    for _ in range(8):
        for path in paths:
            if makers[path[-1]].op_type == operator:
                return path
        paths = [
            [*path, name] for path in paths for name in makers[path[-1]].input if name in makers and name not in ends
        ]
    return None


def rows(graph: Any, ours: Iterable[Step], theirs: Iterable[Step]) -> list[Row]:
    """Steps that share nodes together, in the order in which they run here; then what is the other library's alone."""
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).extend(output for output in node.output if output)
    rows_so_far: list[Row] = []
    owner: dict[str, Row] = {}
    alone: dict[str, Row] = {}
    for step in ours:
        _row_of_step(rows_so_far, owner, [owner[name] for name in step.nodes if name in owner], step).ours.append(step)
    for step in theirs:
        shared = [owner[name] for name in step.nodes if name in owner] or _rows_of_readers(step.nodes, readers, owner)
        if not shared:
            shared = [alone[step.what]] if step.what in alone else []
            alone[step.what] = _row_of_step(rows_so_far, owner, shared, step)
            alone[step.what].theirs.append(step)
        else:
            _row_of_step(rows_so_far, owner, shared, step).theirs.append(step)
    return rows_so_far


def _row_of_step(rows_so_far: list[Row], owner: dict[str, Row], shared_rows: Sequence[Row], step: Step) -> Row:
    """The row of a step: the first row with which it shares nodes, merged with the other such rows, or a new row."""
    indices = sorted({next(i for i, row in enumerate(rows_so_far) if row is shared) for shared in shared_rows})
    if not indices:
        rows_so_far.append(Row())
    row = rows_so_far[indices[0] if indices else -1]
    for index in reversed(indices[1:]):
        merged = rows_so_far.pop(index)
        row.ours, row.theirs = row.ours + merged.ours, row.theirs + merged.theirs
        row.nodes += [name for name in merged.nodes if name not in row.nodes]
    row.nodes += [name for name in sorted(step.nodes) if name not in row.nodes]
    owner.update(dict.fromkeys(row.nodes, row))
    return row


def _rows_of_readers(nodes: Iterable[str], readers: Mapping[str, list[str]], owner: Mapping[str, Row]) -> list[Row]:
    """The row of the nearest node that reads ``nodes`` and has one."""
    todo = list(nodes)
    for _ in range(8):
        todo = [reader for name in todo for reader in readers.get(name, ())]
        rows = [owner[name] for name in todo if name in owner]
        if rows:
            return rows[:1]
    return []


def table(graph: Any, found: Sequence[Row], peer: str) -> Iterator[Any]:
    """The rows as a table, with their sum; nodes are the file's operators and the last one's result."""
    makers = {name: node for node in graph.node for name in node.output if name}
    order = {name: index for index, node in enumerate(graph.node) for name in node.output}
    shown = Table(
        Column("layer", "name"),
        Column("result", "name", rank=2),
        Column("here", "name"),
        Column("µs"),
        Column("GFLOP/s", rank=3),
        Column(peer, "name", rank=1),
        Column("µs"),
        Column("ratio"),
    )
    for row in found:
        nodes = sorted(row.nodes, key=lambda name: order.get(name, 0))
        our_ms, their_ms = row.ms
        flops = sum(step.flops for step in row.ours)
        shown.add_row(
            _names_with_counts(makers[name].op_type for name in nodes if name in makers),
            nodes[-1] if nodes else "",
            _names_with_counts(step.what for step in row.ours),
            f"{our_ms * 1e3:.0f}" if row.ours else "",
            f"{flops / our_ms * 1e-6:.0f}" if flops and our_ms > 0 else "",
            _names_with_counts(step.what for step in row.theirs),
            f"{their_ms * 1e3:.0f}" if row.theirs else "",
            f"{their_ms / our_ms:.2f}" if row.ours and row.theirs and our_ms > 0 else "",
        )
    sums = [math.fsum(ms for row in found if not math.isnan(ms := row.ms[side])) for side in (0, 1)]
    shown.add_row("sum", "", "", f"{sums[0] * 1e3:.0f}", "", "", f"{sums[1] * 1e3:.0f}", f"{sums[1] / sums[0]:.2f}")
    yield "Each layer beside the other library's, least µs as each library times its own steps in the running net:"
    yield shown


def _names_with_counts(names: Iterable[str]) -> str:
    count: dict[str, int] = {}
    for name in names:
        count[name] = count.get(name, 0) + 1
    return " + ".join(name if n == 1 else f"{n} {name}" for name, n in count.items())
