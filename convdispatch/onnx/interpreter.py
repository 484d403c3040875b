"""Walks a graph's nodes in order, with tensors that are traced and arrays that are known, and returns its outputs.

A node all of whose operands are known is folded on the host; others go to their operator. What has no operator here but
is a function, of the model or of ONNX itself, is walked through in its place. ``If`` takes the branch that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from ..api.errors import ConvDispatchError, InvalidArgument
from ..api.fault_text import words
from ..device.opencl.platforms import device_info
from ..device.tracing import naming
from ..elementwise.tensor import Tensor
from . import folding
from .call import OPERATORS, BoundNode, NeedsValue, Operand, Unsupported, attribute_value, standard
from .reading import ALIGNED, onnx_package, to_array

MOST_NODES = 200_000
"""The most nodes of a graph, those of its functions and subgraphs included."""
MOST_DEPTH = 48
"""The deepest nesting of functions and subgraphs."""
_ALWAYS_FOLDED = frozenset({"Constant"})
_HOST = frozenset({"Shape", "Size"})
"""The operators whose result is known from a tensor's shape, before the tensor has values."""
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


class Scope:
    """Values by name, what each depends on, and the scope around."""

    def __init__(self, opsets: Mapping[str, int], outer: Scope | None = None, attributes: Any = None) -> None:
        self.values: dict[str, Operand] = {}
        self.sources: dict[str, frozenset[str]] = {}
        self.makers: dict[str, Any] = {}
        """The node that produced each value, by name, for operators that depend on their predecessor."""
        self.opsets, self.outer = opsets, outer
        self.attributes: dict[str, Any] = attributes or {}
        self.depth: int = 0 if outer is None else outer.depth + 1

    def find(self, name: str) -> tuple[Operand, frozenset[str]]:
        """A value and the net's inputs that it depends on. Raises InvalidArgument for a name that nothing made."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name], scope.sources.get(name, frozenset())
            scope = scope.outer
        raise InvalidArgument(f"the graph reads {name!r} before anything makes it")


def _count(
    nodes: Iterable[Any], functions: Mapping[Any, Any], count_by_function: dict[Any, int], depth: int = 0
) -> int:
    """Nodes with the model's functions written out, each function counted once; refused before one is walked."""
    if depth > MOST_DEPTH:
        raise InvalidArgument(f"functions or graphs lie more than {MOST_DEPTH} deep in each other: refused")
    total = 0
    for node in nodes:
        key = (node.domain, node.op_type, getattr(node, "overload", ""))
        if key in functions and key not in count_by_function:
            count_by_function[key] = _count(functions[key].node, functions, count_by_function, depth + 1)
        total += 1 + count_by_function.get(key, 0)
        if total > MOST_NODES:
            raise InvalidArgument(f"the model has more than {MOST_NODES} nodes, functions walked through: refused")
    return total


class Interpreter:
    """One pass over a model; ``run`` computes the outputs.

    ``memory`` keeps what was uploaded and folded of the model's own values for the next pass.
    """

    def __init__(self, model: Any, queue: Any, math: str, memory: dict[Any, Any]) -> None:
        self.queue, self.math, self._memory = queue, math, memory
        self._mine: dict[Any, Any] = {}
        self._lasting: set[int] = memory.setdefault("lasting", set())
        """The ``id`` of each array that is the same in every pass: initialisers, and constants folded from them."""
        self._functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
        self._nodes, self._most = 0, queue.device.global_mem_size
        self.made: dict[int, tuple[str, Sequence[Operand], Mapping[str, Any]]] = {}
        """The standard ONNX operator that produced a tensor, by the tensor's ``id``, with operands and attributes; see
        ``elementwise``."""
        self._seen: list[Tensor] = []
        _count(model.graph.node, self._functions, {})

    def upload(self, value: np.ndarray) -> Tensor:
        """A constant on the device, once; the model's own stay for the next pass."""
        memory = self._memory if id(value) in self._lasting else self._mine
        key = ("upload", id(value))
        if key not in memory:
            native = value.astype(value.dtype.newbyteorder("="), copy=False)
            # A processor reads the model's own arrays, which nobody writes, where they are.
            shared = memory is self._memory and native.flags.carray and native.ctypes.data % ALIGNED == 0
            shared = shared and native.dtype.kind in "fiu" and device_info(self.queue.device).type == "cpu"
            # The array is cached with its tensor, so that no other array gets its ``id``, which is the key.
            memory[key] = ((Tensor.from_dlpack if shared else Tensor.from_numpy)(native, self.queue), value)
        return memory[key][0]  # type: ignore[no-any-return]

    def derive(self, what: tuple[Any, ...], source: np.ndarray, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an array that is computed from another constant, cached."""
        lasting = id(source) in self._lasting
        memory, key = (self._memory if lasting else self._mine), ("derived", id(source), *what)
        if key not in memory:
            memory[key] = (make(), source)
            if lasting:
                self._lasting.add(id(memory[key][0]))
        return memory[key][0]  # type: ignore[no-any-return]

    def run(self, nodes: Iterable[Any], scope: Scope) -> None:
        """Walk ``nodes``, which leave their results in ``scope``."""
        if scope.depth > MOST_DEPTH:
            raise InvalidArgument(f"functions or graphs lie more than {MOST_DEPTH} deep in each other: refused")
        for node in nodes:
            self._nodes += 1
            if self._nodes > MOST_NODES:
                raise InvalidArgument(f"the model has more than {MOST_NODES} nodes, functions walked through: refused")
            self._node(node, scope)

    def _node(self, node: Any, scope: Scope) -> None:
        call = BoundNode(self, node, scope)
        if node.op_type == "If" and call.standard:
            self._branch(call)
            return
        with naming(next((name for name in node.output if name), "")):
            results = self._results(call)
        if len(results) < len([name for name in node.output if name]):
            raise Unsupported(f"{call.name} has {len(node.output)} outputs, of which {len(results)} are here")
        if call.standard and results and isinstance(results[0], Tensor):
            self.made[id(results[0])] = node.op_type, call.operands, call.attributes
            # The tensor stays referenced, so that no other tensor gets its ``id``.
            self._seen.append(results[0])
        depends = frozenset().union(*call.sources)
        for name, value in zip(node.output, results, strict=False):
            if isinstance(value, Tensor) and value.nbytes > self._most:
                raise InvalidArgument(
                    f"{call.name} makes a tensor of shape {value.shape}, {value.nbytes} bytes: "
                    f"the device has {self._most}"
                )
            if name:
                scope.values[name], scope.sources[name], scope.makers[name] = value, depends, (node, scope)

    def _results(self, call: BoundNode) -> Sequence[Operand]:
        node, is_standard = call.node, call.standard
        if is_standard and node.op_type in _HOST and call.operands:
            return [_shape_of(node.op_type, call.operands[0], call.attributes)]
        all_known = all(not isinstance(value, Tensor) for value in call.operands)
        if is_standard and all_known and node.op_type not in _RANDOM:
            try:
                return self._fold(call)
            except folding.Unfoldable:
                pass
        function = self._functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is None and is_standard and node.op_type in OPERATORS:
            try:
                results = OPERATORS[node.op_type](call)
            except (NeedsValue, Unsupported):
                raise
            except InvalidArgument as error:
                if str(error).startswith(call.name):
                    raise
                raise InvalidArgument(f"{call.name}: {error}") from error
            except ConvDispatchError:
                raise
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise InvalidArgument(f"{call.name} is none that can be computed: {words(error)}") from error
            return results if isinstance(results, list | tuple) else (results,)
        if function is None and is_standard:
            function = body_of(node, call.opset, call.operands)
        if function is None:
            raise Unsupported(f"{call.name} has no operator here")
        return self._function(function, call)

    # --- operators whose results are known on the host ---------------------------------------------------------------

    def _fold(self, call: BoundNode) -> Sequence[Operand]:
        node, scope, operands = call.node, call.scope, call.operands
        lasting = scope.depth == 0 and all(value is None or id(value) in self._lasting for value in operands)
        key = ("fold", id(node))
        if lasting and key in self._memory:
            return self._memory[key][0]  # type: ignore[no-any-return]
        plain = folding.value_of(node) if node.op_type == "Constant" else None
        # PyTorch's exporter shares equal weights by Identity, and the reference evaluator takes long to import.
        if node.op_type == "Identity" and isinstance(operands[0], np.ndarray):
            plain = operands[0]
        # ONNX's reference evaluator has this DequantizeLinear only from operator set 19 on.
        if node.op_type == "DequantizeLinear":
            plain = folding.dequantized(operands, call.attributes)
        if plain is None:
            values = {name: value for name, value in zip(node.input, operands, strict=True) if name}
            results = folding.evaluate(_resolved(call), values, {"": call.opset}, call.name)  # type: ignore[arg-type]
        else:
            results = [plain]
        if lasting:
            self._memory[key] = (results, node)
            self._lasting.update(id(value) for value in results)
        return results  # type: ignore[return-value]

    # --- subgraphs of control flow -----------------------------------------------------------------------------------

    def _branch(self, call: BoundNode) -> None:
        node, scope, condition = call.node, call.scope, call.operands[0]
        if isinstance(condition, Tensor):
            raise NeedsValue(call.sources[0], f"{call.name} must know its condition")
        graph = call.attributes["then_branch" if bool(np.ravel(condition)[0]) else "else_branch"]
        branch_scope = Scope(scope.opsets, scope, scope.attributes)
        for tensor in graph.initializer:
            branch_scope.values[tensor.name] = to_array(tensor)
        self.run(graph.node, branch_scope)
        for name, branch_output in zip(node.output, graph.output, strict=False):
            scope.values[name], scope.sources[name] = branch_scope.find(branch_output.name)

    def _function(self, function: Any, call: BoundNode) -> Sequence[Operand]:
        opsets = _opsets(function) or dict(call.scope.opsets)
        defaults = {a.name: attribute_value(a) for a in function.attribute_proto}
        function_scope = Scope(opsets, None, {**defaults, **call.attributes})
        function_scope.depth = call.scope.depth + 1
        operands, sources = chain(call.operands, repeat(None)), chain(call.sources, repeat(frozenset[str]()))
        for name, value, source in zip(function.input, operands, sources):
            function_scope.values[name], function_scope.sources[name] = value, source
        self.run(function.node, function_scope)
        return [function_scope.find(name)[0] for name in function.output]


def body_of(node: Any, opset: int, operands: Sequence[Operand] | None = None) -> Any:
    """The function by which ONNX itself defines an operator, or None."""
    onnx = onnx_package()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = []
    for value in operands or ():
        kind = onnx.TypeProto()
        if value is not None:
            kind.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            for size in value.shape:
                kind.tensor_type.shape.dim.add().dim_value = size
        types.append(kind.SerializeToString())
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    try:
        text = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=opset), node.SerializeToString(), types
        )
    except Exception:  # The node's types do not suit the function builder of its operator schema.
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function if function.node else None


def _shape_of(kind: str, value: Any, attributes: Mapping[str, Any]) -> np.ndarray:
    shape = tuple(value.shape)
    if kind == "Size":
        return np.array(np.prod(shape, dtype=np.int64), np.int64)
    return np.array(shape[slice(attributes.get("start", 0), attributes.get("end"))], np.int64)


def _opsets(function: Any) -> dict[str, int]:
    """The versions of the operator sets that a function's body is written in."""
    return {"" if standard(o.domain) else o.domain: o.version for o in function.opset_import}


def _resolved(call: BoundNode) -> Any:
    """The node with the attributes that a function's call gives."""
    if not any(attribute.ref_attr_name for attribute in call.node.attribute):
        return call.node
    onnx, copy = onnx_package(), call.node.__class__()
    copy.CopyFrom(call.node)
    del copy.attribute[:]
    copy.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in call.attributes.items())
    return copy


def check_operators(model: Any, opsets: Mapping[str, int]) -> None:
    """Raise Unsupported with the names of all nodes whose operators are not implemented."""
    functions = {(f.domain, f.name): f for f in model.functions}
    missing: dict[str, list[str]] = {}
    seen_functions: set[tuple[str, str]] = set()

    constant_names = {tensor.name for tensor in model.graph.initializer} | {""}
    """Values that the interpreter knows of any input's shape: what is made of them is folded, by whatever operator."""

    def look(nodes: Iterable[Any], versions: Mapping[str, int], depth: int = 0) -> None:
        if depth > MOST_DEPTH:
            raise InvalidArgument(f"functions or graphs lie more than {MOST_DEPTH} deep in each other: refused")
        for node in nodes:
            is_standard = standard(node.domain)
            key = (node.domain, node.op_type)
            if (
                depth == 0
                and is_standard
                and (node.op_type in _HOST or (node.op_type not in _RANDOM and constant_names.issuperset(node.input)))
            ):
                constant_names.update(node.output)
                continue
            if key in functions:
                if key not in seen_functions:
                    seen_functions.add(key)
                    function = functions[key]
                    look(function.node, _opsets(function), depth + 1)
            elif not is_standard or not _has(node, versions.get("", 1)):
                missing.setdefault(f"{node.domain + '.' if not is_standard else ''}{node.op_type}", []).append(
                    node.name or next((name for name in node.output if name), "")
                )
            for attribute in node.attribute:
                if node.op_type == "If":
                    look(attribute.g.node, versions, depth + 1)

    look(model.graph.node, opsets)
    if missing:
        listed = "; ".join(f"{kind} ({_few(names)})" for kind, names in sorted(missing.items()))
        raise Unsupported(f"there is no operator here for: {listed}")


def _has(node: Any, opset: int) -> bool:
    if node.op_type in OPERATORS or node.op_type in _HOST | _ALWAYS_FOLDED | {"If"}:
        return True
    onnx = onnx_package()
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    if not node.input and node.op_type not in _RANDOM:
        return True  # A node without inputs is a constant.
    if node.op_type in ("ConstantOfShape", "Range", "EyeLike"):
        # The results of these operators have shapes that the interpreter knows.
        return True
    body = schema.function_body if schema.has_function else body_of(node, opset) if not node.input else None
    if schema.has_context_dependent_function and body is None:
        # The operator's function body depends on types, which the interpreter knows.
        return True
    return body is not None and all(_has(body_node, opset) for body_node in body.node)


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
