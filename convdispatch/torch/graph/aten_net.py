"""A graph of ATen operators as a convdispatch network: each operator is computed by its counterpart in this package.

What has no counterpart raises Missing, with the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...api.activations import ACTIVATIONS, Torch
from ...elementwise.tensor import Tensor
from ...nn import functional
from ..compile.fused_operator import named_activation
from . import aten_formulas, aten_norms, aten_shapes  # noqa: F401 (their operators enter the table)
from .operator_table import MOVING, OF_SIZES, OPERATORS, PLACES, operator
from .prologue import Prologue
from .quantized import BYTES, DEQUANTIZING, QUANTIZING, Known, Missing, dequantize, quantize


class AtenNet:
    """Computes a graph on convdispatch tensors: the network that ``inference.build`` records.

    It takes ``feeds(given)`` of ``given(inputs)``: the inputs, and what PyTorch makes of integers among them before. It
    returns the tensors that are computed, as a tuple; ``results`` makes the graph's results of them. ``check`` comes
    first.
    """

    training = False

    def __init__(self, traced: torch.fx.GraphModule, queue: Any, math: str) -> None:
        """``traced`` has static sizes, and its weights are attributes."""
        self.graph, self.root, self.queue, self.math = traced.graph, traced, queue, math
        self._results = list(traced.graph.output_node().args[0])
        """The graph's results: nodes, or values that are no tensors."""
        self._prologue = Prologue(traced.graph)
        self._computed: dict[torch.fx.Node, int] = {}
        """The index of each computed node among the results of a call."""
        self._orders: list[tuple[int, ...] | None] = []
        """For each computed result: its axes in memory order where that differs from their own order, as in channels
        last."""
        self._constants: dict[Any, torch.Tensor] = {}
        self._moved: dict[int, tuple[torch.Tensor, Tensor]] = {}
        self.integers = Known()

    def check(self, dtype: torch.dtype) -> None:
        """Compute the constants. Raises Missing for an operator, a type or a result that is not supported."""
        self._dtype = dtype
        index_nodes: set[torch.fx.Node] = set()
        for node in self.graph.nodes:
            if node.op == "get_attr":
                self._constants[node] = getattr(self.root, str(node.target))
            if node.op != "call_function":
                continue
            name = str(node.target)
            parts = node.all_input_nodes
            if name in OF_SIZES and len(parts) == 1:
                of = parts[0].meta["val"]
                operand = torch.empty(of.shape, dtype=of.dtype)
                self._constants[node] = node.target(operand, *node.args[1:], **node.kwargs)  # type: ignore[operator]
                continue
            if self._prologue.takes(node, self._constants):
                continue
            is_constant = all(each in self._constants for each in parts) and not _draws(node)
            if is_constant and name != "<built-in function getitem>":  # also constants that depend on sizes alone
                with torch.no_grad():
                    self._constants[node] = node.target(*_mapped(node.args, self._constants.get), **node.kwargs)
                self.integers.note(node, self._constants)
                continue
            if name not in OPERATORS:
                raise Missing(f"{name} has no counterpart here")
            result = node.meta.get("val")
            result = result[0] if isinstance(result, tuple | list) else result
            if name in QUANTIZING and isinstance(result, torch.Tensor) and result.dtype in BYTES:
                continue
            if not index_nodes.isdisjoint(parts) and name not in MOVING:
                raise Missing(f"{name} takes places that are computed")
            if _makes_places(node) or (name in MOVING and not index_nodes.isdisjoint(parts)):
                index_nodes.add(node)
            elif not isinstance(result, torch.Tensor) or result.dtype != dtype:
                raise Missing(f"{name} makes something else than {dtype}")
            for part in parts:
                if part in self._constants and name not in DEQUANTIZING:
                    self._constants[part] = _of_its_type(self._constants[part], dtype, name)
        self._prologue.finish(self.root, self._constants, dtype)
        requested = (a for a in self._results if isinstance(a, torch.fx.Node) and a.op != "placeholder")
        computed = dict.fromkeys(
            each for each in requested if each not in self._prologue and each not in self._constants
        )
        self._computed = {node: place for place, node in enumerate(computed)}
        if not self._computed:
            raise Missing("the graph returns no tensor that a form computes")
        if len(set(map(_viewed, self._computed))) < len(self._computed):
            raise Missing("results share memory")
        for node in self._prologue.feeds:
            if node.meta["val"].dtype != dtype and node.meta["val"].ndim:
                raise Missing(f"an input of {node.meta['val'].dtype} beside numbers of {dtype}")
        self._orders = [_order_of(each.meta["val"]) for each in self._computed]

    def lies_otherwise(self) -> bool:
        """Whether a result's memory order may differ from its axes' order; fake tensors may have other strides than
        real ones."""
        return any(order is not None for order in self._orders)

    def lie_as(self, results: Sequence[Any]) -> None:
        """Give results the memory order of ``results``, which the graph itself computed."""
        for node, result in zip(self._results, results, strict=True):
            if node in self._computed:
                self._orders[self._computed[node]] = _order_of(result)

    def given(self, inputs: Sequence[torch.Tensor]) -> dict[torch.fx.Node, torch.Tensor]:
        """The inputs of a call, and what PyTorch computes of its integers and masks, by node."""
        return self._prologue(inputs)

    def feeds(self, given: dict[torch.fx.Node, torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of ``given`` that the net takes as inputs, in its computing type: a scalar of another type is
        converted."""
        fed = (given[node] for node in self._prologue.feeds)
        return [x if x.ndim or x.dtype == self._dtype else x.to(self._dtype) for x in fed]

    def __call__(self, *tensors: Tensor) -> Any:
        value_of: dict[Any, Any] = dict(zip(self._prologue.feeds, tensors, strict=True))

        def value(node: Any) -> Any:
            return self._constants[node] if node in self._constants else value_of[node]

        for node in self.graph.nodes:
            if node.op == "output":
                laid = zip(self._computed, self._orders, strict=True)
                return tuple(
                    value_of[each] if order is None else value_of[each].transpose(*order) for each, order in laid
                )
            if node.op != "placeholder" and node not in self._constants and node not in self._prologue:
                operation = OPERATORS[str(node.target)]
                value_of[node] = operation(self, *_mapped(node.args, value), **_mapped(node.kwargs, value))
        raise AssertionError("a graph ends with its output")

    def results(self, computed: Sequence[Any], given: dict[torch.fx.Node, torch.Tensor]) -> list[Any]:
        """The graph's results, from computed and given tensors; a result that is an input is that same tensor."""
        value_of = dict(given)
        for node, each, order in zip(self._computed, computed, self._orders, strict=True):
            value_of[node] = each if order is None else each.permute(*map(order.index, range(len(order))))
        constants = self._constants
        return [
            (value_of[each] if each in value_of else constants[each].clone())
            if isinstance(each, torch.fx.Node)
            else each
            for each in self._results
        ]

    def put(self, constant: Any) -> Any:
        """A constant as a tensor on the device, copied once; tensors of ours and values that are no tensors are
        returned as is."""
        if not isinstance(constant, torch.Tensor):
            return constant
        if id(constant) not in self._moved:
            array = constant.detach().contiguous().numpy()
            self._moved[id(constant)] = constant, Tensor.from_numpy(array, self.queue)
        return self._moved[id(constant)][1]


def _of_its_type(constant: torch.Tensor, dtype: torch.dtype, operator: str) -> torch.Tensor:
    """A constant as an operand of an operator that computes in ``dtype``: a scalar does not decide a result's type.
    Raises Missing for an array of another floating type, since PyTorch refuses such weights."""
    if not isinstance(constant, torch.Tensor) or not constant.is_floating_point() or constant.dtype == dtype:
        return constant
    if constant.ndim or dtype not in (torch.float32, torch.float64):  # PyTorch computes 16-bit types in float32
        raise Missing(f"{operator} takes numbers of {constant.dtype} with those of {dtype}")
    return constant.to(dtype)


def _order_of(x: torch.Tensor) -> tuple[int, ...] | None:
    """A tensor's axes from the outermost to the innermost in memory; None if that is their own order, or if there are
    gaps."""
    if x.is_contiguous() or not x.is_floating_point():
        return None
    order = sorted(range(x.ndim), key=lambda axis: -x.stride(axis))
    return tuple(order) if x.permute(order).is_contiguous() else None


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The node of which a node is a view, or the node itself."""
    while node.op == "call_function" and node.all_input_nodes:
        view = node.all_input_nodes[0] if str(node.target) == "<built-in function getitem>" else node
        schema = getattr(view.target, "_schema", None)
        alias = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if alias is None or alias.is_write:
            break
        node = view.all_input_nodes[0]
    return node


def _draws(node: Any) -> bool:
    """Whether a node draws random numbers, so that it is no constant; draws that nothing uses are not computed."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _makes_places(node: torch.fx.Node) -> bool:
    """Whether a node's result is indices; of an operator with two results, the second is."""
    if str(node.target) == "<built-in function getitem>":
        return node.args[1] == 1 and str(node.args[0].target) in PLACES  # type: ignore[union-attr]
    return str(node.target) in PLACES and not isinstance(node.meta["val"], tuple | list)


def _mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(structure, torch.fx.Node):
        return change(structure)
    if isinstance(structure, list | tuple):
        return tuple(_mapped(each, change) for each in structure)
    if isinstance(structure, dict):
        return {key: _mapped(each, change) for key, each in structure.items()}
    return structure


@operator("convdispatch.fused_convolution.default")
def _fused(net: AtenNet, x: Any, w: Any, bias: Any, residual: Any, activation: Any, *rest: Any) -> Tensor:
    if residual is not None and not isinstance(residual, Tensor):
        raise Missing("a constant is added")
    geometry = dict(zip(("stride", "padding", "dilation", "groups"), rest, strict=True))
    y = functional.convolution(x, net.put(w), net.put(bias), **geometry, math=net.math)
    if residual is not None:
        y = y + residual
    return y if activation is None else functional.activate(y, activation)


@operator("convdispatch.convolution.default", "aten.convolution.default")
def _convolution(
    net: AtenNet,
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    g: int,
) -> Tensor:
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": g, "math": net.math}
    if transposed:
        return functional.transposed_convolution(x, net.put(w), net.put(bias), output_padding=extra, **geometry)
    quantized_result = net.integers.convolution(net, x, w, bias, geometry)
    if quantized_result is not None:
        return quantized_result
    return functional.convolution(x, net.put(w), net.put(bias), **geometry)


@operator("aten.addmm.default")
def _addmm(net: AtenNet, bias: Any, x: Any, w: Any) -> Tensor:
    if not isinstance(bias, torch.Tensor) or bias.ndim != 1:
        raise Missing("a matrix product of two computed tensors")
    return _mm(net, x, w, bias)


@operator("aten.mm.default")
def _mm(net: AtenNet, x: Any, w: Any, bias: Any = None) -> Tensor:
    if not isinstance(w, torch.Tensor):
        raise Missing("a matrix product of two computed tensors")
    return net.integers.product(net, x, w, bias) or functional.linear(x, net.put(w.t().contiguous()), net.put(bias))


@operator("aten.linear.default")
def _linear(net: AtenNet, x: Any, w: Any, bias: Any = None) -> Tensor:
    if len(x.shape) != 2 or not isinstance(w, torch.Tensor):
        raise Missing("a linear map of more than two axes")
    return net.integers.product(net, x, w, bias) or functional.linear(x, net.put(w), net.put(bias))


@operator("aten._native_batch_norm_legit_no_training.default")
def _batch_norm(net: AtenNet, x: Any, w: Any, b: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    parameters = (torch.ones_like(mean) if w is None else w, torch.zeros_like(mean) if b is None else b, mean, variance)
    return (functional.batch_norm(x, *map(net.put, parameters), training=False, epsilon=eps),)


@operator("aten.native_batch_norm.default")
def _native(net: AtenNet, x: Any, w: Any, b: Any, mean: Any, variance: Any, training: bool, *rest: float) -> Any:
    if training:
        return aten_norms.of_the_batch(net, x, w, b, mean, variance, *rest)
    return _batch_norm(net, x, w, b, mean, variance, *rest)


@operator("<built-in function getitem>")
def _item(net: AtenNet, values: Any, number: int) -> Any:
    if number >= len(values):
        raise Missing("more than an operator's first result")
    return values[number]


@operator("aten.mean.dim")
def _mean(net: AtenNet, x: Any, axes: Any, keepdim: bool = False) -> Tensor:
    axes = tuple(sorted(axis % x.ndim for axis in axes)) if axes else tuple(range(x.ndim))
    if axes == (2, 3) and x.ndim == 4:
        y = functional.adaptive_avg_pool(x, 1)
        return y if keepdim else functional.view(y, x.shape[:2])
    return functional.mean(x, axes, keepdims=keepdim)


def _activation(name: str, table_entry: Torch) -> Callable[..., Tensor]:
    """An operation for an activation of the table: its parameters come first, then arguments of which we support one
    value."""

    def operation(net: AtenNet, x: Any, *given: Any, **named: Any) -> Tensor:
        values = {**dict(zip([*table_entry.attributes, *table_entry.only], given)), **named}
        text = named_activation(name, values)
        if text is None:
            raise Missing(f"{table_entry.function} with {values}")
        return functional.activate(x, text)

    return operation


OPERATORS |= dict.fromkeys(QUANTIZING, quantize) | dict.fromkeys(DEQUANTIZING, dequantize)
OPERATORS["aten._adaptive_avg_pool2d.default"] = lambda net, x, size: functional.adaptive_avg_pool(
    x, (size[0], size[-1])
)
OPERATORS["aten._softmax.default"] = lambda net, x, axis, half_to_float: functional.softmax(x, axis)
for _name, _each in ACTIVATIONS.items():
    if _each.torch is not None and _name != "gelu":  # gelu has a second formula
        OPERATORS[f"aten.{_each.torch.function}.default"] = _activation(_name, _each.torch)
