"""One node as its operator sees it: operands on the device or on the host, attributes, the operator set's version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..elementwise.tensor import Tensor

Operand = Tensor | np.ndarray | None
OPERATORS: dict[str, Callable[[BoundNode], Any]] = {}
"""The function that computes each operator of ONNX's default domain, by the operator's name."""


class Unsupported(InvalidArgument):
    """The model needs operators, dtypes or variants of operators that are not implemented."""


class NeedsValue(Exception):
    """An operator must know an operand's values before the net runs, and they depend on the net's inputs ``names``."""

    def __init__(self, names: frozenset[str], why: str) -> None:
        self.names, self.why = names, why
        super().__init__(why)


def operator(*names: str) -> Callable[[Callable[[BoundNode], Any]], Callable[[BoundNode], Any]]:
    """Register a function for operators by name; it takes a BoundNode and returns an operand, or a sequence of
    operands."""

    def enter(function: Callable[[BoundNode], Any]) -> Callable[[BoundNode], Any]:
        for name in names:
            OPERATORS[name] = function
        return function

    return enter


def standard(domain: str) -> bool:
    """Whether a domain is ONNX's own."""
    return domain in ("", "ai.onnx")


def attribute_value(attribute: Any) -> Any:
    """An attribute's value as Python has it."""
    from onnx.helper import get_attribute_value

    return get_attribute_value(attribute)


def attributes_of(node: Any, scope: Any) -> dict[str, Any]:
    """A node's attributes, those of a function's body taken from the call."""
    attributes = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            attributes[attribute.name] = attribute_value(attribute)
        elif attribute.ref_attr_name in scope.attributes:
            attributes[attribute.name] = scope.attributes[attribute.ref_attr_name]
    return attributes


class BoundNode:
    """A node of a graph with its operands."""

    def __init__(self, interpreter: Any, node: Any, scope: Any) -> None:
        self.interpreter, self.node, self.scope = interpreter, node, scope
        values_and_sources = [scope.find(name) if name else (None, frozenset()) for name in node.input]
        self.operands: list[Operand] = [value for value, _ in values_and_sources]
        self.sources: list[frozenset[str]] = [source for _, source in values_and_sources]
        """The names of the net's inputs that each operand depends on."""
        self.attributes, self.standard = attributes_of(node, scope), standard(node.domain)
        versions = ("", "ai.onnx") if self.standard else (node.domain,)
        self.opset: int = next((scope.opsets[domain] for domain in versions if domain in scope.opsets), 1)
        self.queue, self.math = interpreter.queue, interpreter.math

    @property
    def name(self) -> str:
        """How errors call the node."""
        return describe_node(self.node)

    def has(self, place: int) -> bool:
        """Whether there is an operand at ``place``."""
        return place < len(self.operands) and self.operands[place] is not None

    def raw(self, place: int) -> Any:
        """The operand wherever it is."""
        value = self.operands[place] if place < len(self.operands) else None
        if value is None:
            raise InvalidArgument(f"{self.name} needs an input at place {place}")
        return value

    def tensor(self, place: int) -> Tensor:
        """The operand on the device."""
        value = self.raw(place)
        return value if isinstance(value, Tensor) else self.upload(value)

    def upload(self, value: np.ndarray) -> Tensor:
        """A constant on the device."""
        return self.interpreter.upload(value)  # type: ignore[no-any-return]

    def shape(self, place: int = 0) -> tuple[int, ...]:
        """The operand's shape."""
        return tuple(self.raw(place).shape)

    def known(self, place: int) -> np.ndarray:
        """The operand's values now. Raises NeedsValue where they depend on the net's inputs."""
        value = self.raw(place)
        if isinstance(value, np.ndarray):
            return value
        raise NeedsValue(self.sources[place], f"{self.name} must know its input {self.node.input[place]!r}")

    def ints(self, place: int) -> list[int]:
        """The operand's values as integers."""
        return [int(value) for value in np.ravel(self.known(place))]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute; bytes as text."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def word(self, name: str, known: Sequence[str]) -> str:
        """An attribute among ``known``, of which the first is the default. Raises Unsupported for any other."""
        value = self.get(name, known[0])
        if value not in known:
            raise self.refuse(f"{name} is one of {', '.join(known)}, got {str(value)[:40]!r}")
        return str(value)

    def either(self, name: str, place: int, default: Any = None) -> Any:
        """Integers that newer operator sets take as an input, older ones as an attribute."""
        return self.ints(place) if self.has(place) else self.get(name, default)

    def axis(self, default: int = 0, ndim: int | None = None) -> int:
        """The attribute ``axis``, not negative. Raises InvalidArgument for one that the operand lacks."""
        ndim = len(self.shape()) if ndim is None else ndim
        axis = self.get("axis", default)
        if not -ndim <= axis <= ndim:
            raise InvalidArgument(f"{self.name} has the axis {axis}, its input {ndim} axes")
        return int(axis + ndim if axis < 0 else axis)

    def refuse(self, why: str) -> Unsupported:
        """An error to raise."""
        return Unsupported(f"{self.name}: {why}")


def describe_node(node: Any) -> str:
    """Operator and name of a node, or its first output where it has no name."""
    name = node.name or next((name for name in node.output if name), "")
    return f"{node.domain + '.' if node.domain else ''}{node.op_type} {name!r}"
