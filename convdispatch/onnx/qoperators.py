"""Converts onnxruntime's quantized operators (QOperator format, domain ``com.microsoft``) to standard ONNX operators.

    QLinearAdd(a, sa, za, b, sb, zb, sy, zy)  =  QuantizeLinear(Add(DequantizeLinear(a, sa, za), ...), sy, zy)

So all quantized files are one form, and an inference form folds them alike. That is how the operators are specified;
where onnxruntime multiplies by a quotient of scales instead, a value beside a tie may fall on its other side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .call import Unsupported, describe_node

_DOMAIN = "com.microsoft"
_OF_ONE = {
    "QLinearSigmoid": "Sigmoid", "QLinearLeakyRelu": "LeakyRelu", "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool", "QLinearSoftmax": "Softmax",
}  # fmt: skip
_OF_TWO = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_OWN = ("QuantizeLinear", "DequantizeLinear")
"""The standard ONNX operators that also exist in another domain."""


def in_onnxs_words(model: Any) -> Any:
    """The model, or a copy of it in which onnxruntime's quantized operators are ONNX's.

    Raises Unsupported for forms of them that are not here.
    """
    supported = {*_OF_ONE, *_OF_TWO, *_OWN, "QLinearConcat", "QGemm"}
    if not any(node.domain == _DOMAIN and node.op_type in supported for node in model.graph.node):
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    nodes = [new_node for node in model.graph.node for new_node in _Rewriter(copy.graph, node).nodes(supported)]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


class _Rewriter:
    """One node, and the nodes in its place."""

    def __init__(self, graph: Any, node: Any) -> None:
        self.graph, self.node, self.given = graph, node, list(node.input)
        self.attributes = {each.name: each for each in node.attribute}

    def nodes(self, known: set[str]) -> Iterator[Any]:
        kind = self.node.op_type
        if self.node.domain != _DOMAIN or kind not in known:
            yield self.node
        elif kind in _OWN:
            yield self._made(kind, self.given, self.node.output[0])
        elif kind == "QGemm":
            yield from self._gemm()
        elif kind == "QLinearConcat":
            parts = [self.given[index : index + 3] for index in range(2, len(self.given), 3)]
            yield from self._around("Concat", parts, self.given[:2])
        elif kind in _OF_TWO:
            yield from self._around(_OF_TWO[kind], [self.given[:3], self.given[3:6]], self.given[6:])
        else:
            yield from self._around(_OF_ONE[kind], [self.given[:3]], self.given[3:])

    def _around(self, kind: str, operands: list[list[str]], result: list[str]) -> Iterator[Any]:
        """An operator of numbers between dequantizations and a quantization."""
        self._check()
        numbers = [f"{self.node.output[0]}.number{i}" for i in range(len(operands) + 1)]
        for operand, number in zip(operands, numbers, strict=False):
            yield self._made("DequantizeLinear", operand, number)
        attributes = [each for name, each in self.attributes.items() if name not in ("channels_last", "opset")]
        yield self._made(kind, numbers[:-1], numbers[-1], attributes)
        yield self._made("QuantizeLinear", [numbers[-1], *self._ends(result, operands[0])], self.node.output[0])

    def _gemm(self) -> Iterator[Any]:
        """QGemm: a, sa, za, b, sb, zb, the bias in units of sa sb, and perhaps y's scale and zero point."""
        self._check()
        inputs, name = self.given + [""] * (9 - len(self.given)), self.node.output[0]
        from onnx import helper

        across = "transB" in self.attributes and self.attributes["transB"].i
        yield self._made("DequantizeLinear", inputs[:3], f"{name}.a")
        axis = [helper.make_attribute("axis", 0 if across else 1)]
        yield self._made("DequantizeLinear", inputs[3:6], f"{name}.b", axis)
        operands = [f"{name}.a", f"{name}.b"]
        if inputs[6]:
            yield self._made("Mul", [inputs[1], inputs[4]], f"{name}.scale")
            bias = [inputs[6], f"{name}.scale"]
            yield self._made("DequantizeLinear", bias, f"{name}.bias", [helper.make_attribute("axis", 0)])
            operands.append(f"{name}.bias")
        product_name = name if not inputs[7] else f"{name}.number"
        yield self._made("Gemm", operands, product_name, list(self.attributes.values()))
        if inputs[7]:
            yield self._made("QuantizeLinear", [product_name, *self._ends(inputs[7:], inputs[:3])], name)

    def _check(self) -> None:
        node_name = describe_node(self.node)
        if "channels_last" in self.attributes and self.attributes["channels_last"].i:
            raise Unsupported(
                f"{node_name}: has channels last, which is not here: export the model with channels first"
            )
        if self.node.op_type == "QGemm" and "alpha" in self.attributes and self.attributes["alpha"].f != 1.0:
            raise Unsupported(f"{node_name}: alpha is 1 here, got {self.attributes['alpha'].f}")
        if self.node.op_type == "QLinearSoftmax" and self.attributes["opset"].i < 13:
            raise Unsupported(
                f"{node_name}: is that of operator set {self.attributes['opset'].i}; 13 and later are here"
            )

    def _ends(self, result: list[str], operand: list[str]) -> list[str]:
        """y's scale and zero point; where that is left out it is 0 of the operand's type."""
        if len(result) > 1 and result[1]:
            return result
        zero = next((each for each in self.graph.initializer if len(operand) > 2 and each.name == operand[2]), None)
        if zero is None:
            raise Unsupported(
                f"{describe_node(self.node)}: has no zero points that the file holds, so that y's type is not known"
            )
        from onnx import helper, numpy_helper

        name = f"{self.node.output[0]}.zero"
        zero_point = np.zeros((), helper.tensor_dtype_to_np_dtype(zero.data_type))
        self.graph.initializer.append(numpy_helper.from_array(zero_point, name))
        return [result[0], name]

    def _made(self, kind: str, given: list[str], name: str, attributes: Sequence[Any] = ()) -> Any:
        from onnx import helper

        node = helper.make_node(kind, given, [name], name=self.node.name)
        node.attribute.extend(attributes)
        return node
