"""The last pass over a quantized net: element-wise formulas read and write integers themselves.

What is left of dequantizations before formulas and of quantizations behind them becomes part of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...elementwise import apply
from ...elementwise.codegen.expression import parse
from ...nn.quantized import DEQUANTIZED, quantized_formula
from ..graph import Graph, Node, Ref
from .integer_nodes import DEQUANTIZE, QUANTIZE, alone, form_of, integers_of, maker_of
from .pointwise import element_formula


def merge_integers(graph: Graph) -> Graph:
    """Put dequantizations before and quantizations behind element-wise formulas into them."""
    for node in list(graph.nodes):
        formula = _formula(node) if node.name != QUANTIZE else None
        if formula is not None:
            _read_integers(node, *formula)
    for node in list(graph.nodes):
        if node.name != QUANTIZE:
            continue
        x = node.kwargs["x"]
        producer = maker_of(x, "apply", "activate", DEQUANTIZE)
        formula = None if producer is None or not (x.is_whole or producer.name == DEQUANTIZE) else _formula(producer)
        if producer is None or formula is None or (producer.name != DEQUANTIZE and not alone(graph, producer)):
            continue
        text, operands = formula
        if producer.name == DEQUANTIZE:
            operands = {"x": replace(operands["x"], shape=x.shape)}
        *statements, result = text.split(";")
        form = form_of(node)
        text = "; ".join([*statements, f"number_ = {result.strip()}", quantized_formula("number_", *form)])
        node.function, node.kwargs = apply, {"expression": text, "dtype": np.dtype(form[2]), **operands}
        node.sources = producer.sources + node.sources
        graph.prune()
    graph.prune()
    return graph


def _formula(node: Node) -> tuple[str, dict[str, Any]] | None:
    """An element-wise operation that makes numbers: its text and operands."""
    arguments = node.kwargs
    if node.args or not isinstance(node.result, Ref) or node.result.value.dtype != np.float32:
        return None
    if node.name == DEQUANTIZE:
        return DEQUANTIZED.format("x", arguments["scale"], arguments["zero_point"]), {"x": arguments["x"]}
    formula = element_formula(node)
    return None if formula is None or parse(formula[0]).result is None else formula


def _read_integers(node: Node, text: str, operand_by_name: dict[str, Any]) -> None:
    """Read integers where a formula reads numbers that were made of them."""
    if node.name == DEQUANTIZE:
        return
    statements, operands = [], {}
    for name, operand in operand_by_name.items():
        maker = maker_of(operand, DEQUANTIZE)
        if maker is None:
            operands[name] = operand
            continue
        statements.append(
            f"{name} = {DEQUANTIZED.format(f'{name}_i', maker.kwargs['scale'], maker.kwargs['zero_point'])}"
        )
        operands[f"{name}_i"] = integers_of(operand)
    if statements:
        node.function = apply
        node.kwargs = {"expression": "; ".join([*statements, text]), "dtype": np.dtype(np.float32), **operands}
