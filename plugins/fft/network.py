"""Straight-line arithmetic as a graph: equal expressions share a node, and negation costs no operation."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

Value = tuple[int, int] | None
"""(sign, node), or None: an exact 0."""

Node = tuple
"""("leaf", name), ("+", a, b), ("-", a, b) with node numbers, or ("*", factor, a) with a factor above 0."""


class Network:
    """A graph of additions and multiplications by constants; leaves are named inputs, ``outputs`` are named values."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.outputs: list[tuple[str, Value]] = []
        self._node_ids: dict[Node, int] = {}

    def leaf(self, name: str) -> Value:
        """Return the value of the input named ``name``."""
        return 1, self._node(("leaf", name))

    def negate(self, a: Value) -> Value:
        """Return ``-a``."""
        return None if a is None else (-a[0], a[1])

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        if a is None or b is None:
            return b if a is None else a
        if a[1] == b[1]:
            return None if a[0] != b[0] else self.multiply(2.0, a)
        low, high = (a, b) if a[1] < b[1] else (b, a)
        return low[0], self._node(("+" if low[0] == high[0] else "-", low[1], high[1]))

    def subtract(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self.add(a, self.negate(b))

    def multiply(self, factor: float, a: Value) -> Value:
        """Return ``factor * a``."""
        if a is None or factor == 0:
            return None
        sign = a[0] if factor > 0 else -a[0]
        factor, node = abs(factor), self.nodes[a[1]]
        if factor == 1:
            return sign, a[1]
        if node[0] == "*":
            return self.multiply(sign * factor * node[1], (1, node[2]))
        return sign, self._node(("*", factor, a[1]))

    def output(self, name: str, value: Value) -> None:
        """Name a value that the code writes."""
        self.outputs.append((name, value))

    def _node(self, node: Node) -> int:
        if node not in self._node_ids:
            self._node_ids[node] = len(self.nodes)
            self.nodes.append(node)
        return self._node_ids[node]

    def transposed(self, order: Sequence[str]) -> Network:
        """The network of the transposed matrix: its outputs are this network's leaves, in ``order``, and vice versa."""
        result = Network()
        gathered: dict[int, Value] = {}

        def give(node: int, value: Value) -> None:
            gathered[node] = result.add(gathered.get(node), value)

        for name, value in self.outputs:
            if value is not None:
                leaf = result.leaf(name)
                give(value[1], leaf if value[0] > 0 else result.negate(leaf))
        values: dict[str, Value] = {}
        for index in reversed(range(len(self.nodes))):
            value = gathered.get(index)
            kind, *operands = self.nodes[index]
            if kind == "leaf":
                values[operands[0]] = value
            elif kind == "*":
                give(operands[1], result.multiply(operands[0], value))
            else:
                give(operands[0], value)
                give(operands[1], value if kind == "+" else result.negate(value))
        for name in order:
            result.output(name, values.get(name))
        return result

    @functools.cached_property
    def _uses(self) -> Counter[int]:
        """For each node that the outputs need: how many nodes and outputs read it."""
        uses: Counter[int] = Counter()
        stack = [value[1] for _, value in self.outputs if value is not None]
        while stack:
            node = stack.pop()
            uses[node] += 1
            if uses[node] == 1:
                stack += _operands(self.nodes[node])
        return uses

    @functools.cached_property
    def _inlined(self) -> frozenset[int]:
        """Products that only one addition reads and that become part of its multiply-add, at most one per addition."""
        inlined = set()
        written = {value[1] for _, value in self.outputs if value is not None}
        for node in self._uses:
            if self.nodes[node][0] in "+-":
                for operand in reversed(_operands(self.nodes[node])):
                    if self.nodes[operand][0] == "*" and self._uses[operand] == 1 and operand not in written:
                        inlined.add(operand)
                        break
        return frozenset(inlined)

    @property
    def additions(self) -> int:
        """Additions and subtractions that the outputs need."""
        return sum(self.nodes[place][0] in "+-" for place in self._uses)

    @property
    def multiplications(self) -> int:
        """Products that the outputs need and that are not part of a multiply-add."""
        return sum(self.nodes[place][0] == "*" and place not in self._inlined for place in self._uses)

    def used(self) -> tuple[str, ...]:
        """The leaves that the outputs need."""
        return tuple(node[1] for place, node in enumerate(self.nodes) if node[0] == "leaf" and place in self._uses)

    def lines(
        self,
        read: Callable[[str], str],
        write: Callable[[str, str], str],
        real: str,
        first: Iterable[str] = (),
    ) -> list[str]:
        """OpenCL statements: each node after its operands, each output early; leaves in ``first`` are read first.

        The program defines ``MULTIPLY_ADD(factor, a, b)``, with one rounding or two, for a product that is only added.
        """
        lines: list[str] = []
        emitted: set[int] = set()

        def place(node: int) -> None:
            if node in emitted:
                return
            emitted.add(node)
            for operand in _operands(self.nodes[node]):
                place(operand)
            if node not in self._inlined:
                lines.append(f"const {real} t{node} = {self._expression(node, read)};")

        for name in first:
            place(self._node_ids["leaf", name])
        for name, value in self.outputs:
            if value is None:
                lines.append(write(name, "0.0f"))
                continue
            place(value[1])
            lines.append(write(name, ("-" if value[0] < 0 else "") + f"t{value[1]}"))
        return lines

    def _expression(self, node: int, read: Callable[[str], str]) -> str:
        kind, *operands = self.nodes[node]
        if kind == "leaf":
            return read(operands[0])
        if kind == "*":
            return f"{_literal(operands[0])} * t{operands[1]}"
        a, b = operands
        if a in self._inlined:
            _, factor, x = self.nodes[a]
            return f"MULTIPLY_ADD({_literal(factor)}, t{x}, {'-' if kind == '-' else ''}t{b})"
        if b in self._inlined:
            _, factor, x = self.nodes[b]
            return f"MULTIPLY_ADD({'-' if kind == '-' else ''}{_literal(factor)}, t{x}, t{a})"
        return f"t{a} {kind} t{b}"


def _operands(node: Node) -> list[int]:
    return [] if node[0] == "leaf" else [node[2]] if node[0] == "*" else [node[1], node[2]]


def _literal(value: float) -> str:
    return f"{value:.9g}" + ("f" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else ".0f")
