"""Chains of element-wise operations as one formula: what one computes alone for the next never reaches memory.

Formulas, activations, sums and batch norms at inference are all formulas over tensors; two that follow each other,
where nobody else reads what is between and both have one shape or few elements, are put together as statements of one
kernel.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...api.activations import formula_of
from ...elementwise import apply
from ...elementwise.codegen.expression import parse
from ...elementwise.tensor import Tensor
from ..graph import Graph, Node, Ref

_MOST_OPERANDS = 12
"""The most tensors that one fused kernel reads."""
_MOST_STATEMENTS = 48
_FEW_ELEMENTS = 4096
"""A result of up to so many elements computes a smaller operand's formula again for each: a launch takes longer."""


class _Pointwise(NamedTuple):
    """Statements (name, expression) and a last expression, over operands by name."""

    statements: list[tuple[str, ast.expr]]
    result: ast.expr
    operands: dict[str, Any]


def merge(graph: Graph) -> Graph:
    """Put element-wise neighbours together; the graph is changed in place and returned."""
    uses, read = graph.uses(), _Reader()
    for node in list(graph.nodes):
        formula = read(node)
        if formula is None:
            continue
        parts = {
            name: producer
            for name, operand in formula.operands.items()
            if (producer := _producer(operand, node, uses)) is not None and read(producer) is not None
        }
        merged = _together(formula, {name: read(producer) for name, producer in parts.items()})
        if merged is None:
            continue
        producers = list({id(part): part for part in parts.values()}.values())
        sources = tuple(name for part in (*producers, node) for name in part.sources)
        value, fused = node.result.value, Node(apply, (), {"expression": _text(merged), **merged.operands})
        fused.sources = sources
        value.node, fused.result = fused, node.result
        graph.nodes[graph.nodes.index(node)] = fused
        for producer in producers:
            graph.nodes.remove(producer)
            _count(uses, producer, -1)
        _count(uses, node, -1)
        _count(uses, fused, 1)
    return graph


def _count(uses: dict[Any, int], node: Node, by: int) -> None:
    for ref in node.refs:
        uses[ref.value] = uses.get(ref.value, 0) + by


def _producer(operand: Any, node: Node, uses: dict[Any, int]) -> Node | None:
    """The element-wise node whose whole result the operand is and nobody but ``node`` reads."""
    if not isinstance(operand, Ref) or not operand.is_whole:
        return None
    if operand.shape != node.result.shape and math.prod(node.result.shape) > _FEW_ELEMENTS:
        return None
    value = operand.value
    if value.node is None or uses.get(value) != sum(ref.value is value for ref in node.refs):
        return None
    return value.node if value.dtype == node.result.value.dtype else None


class _Reader:
    """Nodes as formulas, each read once."""

    def __init__(self) -> None:
        self._known: dict[Node, _Pointwise | None] = {}

    def __call__(self, node: Node) -> _Pointwise | None:
        if node not in self._known:
            self._known[node] = _read(node)
        return self._known[node]


def _read(node: Node) -> _Pointwise | None:
    """An element-wise node of one floating-point result as a formula, else None."""
    if not isinstance(node.result, Ref) or not node.result.is_whole or node.args:
        return None
    text_and_operands = element_formula(node)
    text_and_operands = _batch_norm(node.kwargs) if node.name == "batch_norm" else text_and_operands
    if text_and_operands is None or (node.name == "apply" and node.kwargs.get("dtype") is not None):
        return None
    text, operands = text_and_operands
    dtype = node.result.value.dtype
    floating = dtype.kind == "f" or dtype.name == "bfloat16"
    tensors = [value for value in operands.values() if isinstance(value, Ref | Tensor)]
    same = all((t.value.dtype if isinstance(t, Ref) else t.dtype) == dtype for t in tensors)
    formula = parse(text)
    if not floating or not same or formula.result is None or set(formula.assigned) & operands.keys():
        return None
    return _Pointwise(list(formula.statements), formula.result, operands)


def element_formula(node: Node) -> tuple[str, dict[str, Any]] | None:
    """The text and the operands of a formula or an activation; None for any other node."""
    arguments = node.kwargs
    if node.name == "apply" and isinstance(arguments.get("expression"), str) and arguments.get("out") is None:
        return arguments["expression"], {n: v for n, v in arguments.items() if n not in ("expression", "out", "dtype")}
    if node.name == "activate":
        return formula_of(arguments["activation"]), {"x": arguments["x"]}
    return None


def _batch_norm(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """A batch norm of constants as ``x * factor + shift``, worked out in float64."""
    vectors = [arguments[name] for name in ("scale", "shift", "running_mean", "running_variance")]
    if arguments.get("training") or not all(isinstance(vector, Tensor) for vector in vectors):
        return None
    x, channels_last = arguments["x"], arguments.get("layout", "nchw") == "nhwc"
    scale, shift, mean, variance = (vector.numpy().astype(np.float64) for vector in vectors)
    factor = scale / np.sqrt(variance + arguments.get("epsilon", 1e-5))
    axis = len(x.shape) - 1 if channels_last else 1
    wide = tuple(-1 if a == axis else 1 for a in range(len(x.shape)))
    queue, dtype = vectors[0].queue, vectors[0].dtype
    a, b = (Tensor.from_numpy(v.reshape(wide).astype(dtype), queue) for v in (factor, shift - mean * factor))
    text, operands = "x * a + b", {"x": x, "a": a, "b": b}
    if arguments.get("residual") is not None:
        text, operands["r"] = text + " + r", arguments["residual"]
    if arguments.get("activation") == "relu":
        text = f"v = {text}; where(v < 0, 0, v)"
    return text, operands


def _together(last_formula: _Pointwise, parts: dict[str, _Pointwise | None]) -> _Pointwise | None:
    """Return one formula for a node and the nodes that it reads; None if there is nothing to fuse, or too much."""
    if not parts:
        return None
    names, operands, statements = (f"t{i}" for i in itertools.count()), {}, []
    name_by_value: dict[Any, str] = {}

    def operand(value: Any) -> ast.expr:
        """The name of an operand in the whole formula; the same view has one name, a number stands as it is."""
        if isinstance(value, int | float):
            return ast.parse(repr(int(value) if isinstance(value, int) else float(value)), mode="eval").body
        key = value if isinstance(value, Ref) else id(value)
        if key not in name_by_value:
            name_by_value[key] = f"a{len(operands)}"
            operands[name_by_value[key]] = value
        return ast.Name(name_by_value[key], ast.Load())

    def place(part: _Pointwise, given: dict[str, ast.expr]) -> ast.expr:
        """Append a part's statements; its result as an expression."""
        renamed = dict(given)
        for target, value in part.statements:
            name = next(names)
            statements.append((name, _renamed(value, renamed)))
            renamed[target] = ast.Name(name, ast.Load())
        return _renamed(part.result, renamed)

    outer_names: dict[str, ast.expr] = {}
    for name, value in last_formula.operands.items():
        part = parts.get(name)
        if part is None:
            outer_names[name] = operand(value)
            continue
        result = place(
            part, {operand_name: operand(operand_value) for operand_name, operand_value in part.operands.items()}
        )
        statements.append((next(names), result))
        outer_names[name] = ast.Name(statements[-1][0], ast.Load())
    result = place(last_formula, outer_names)
    if len(operands) > _MOST_OPERANDS or len(statements) > _MOST_STATEMENTS:
        return None
    return _Pointwise(statements, result, operands)


class _Names(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(node.func, [self.visit(argument) for argument in node.args], node.keywords)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)


def _renamed(value: ast.expr, values: dict[str, ast.expr]) -> ast.expr:
    return _Names(values).visit(ast.parse(ast.unparse(value), mode="eval").body)  # type: ignore[no-any-return]


def _text(formula: _Pointwise) -> str:
    return "; ".join(_lines(formula))


def _lines(formula: _Pointwise) -> Iterator[str]:
    for target, value in formula.statements:
        yield f"{target} = {ast.unparse(value)}"
    yield ast.unparse(formula.result)
