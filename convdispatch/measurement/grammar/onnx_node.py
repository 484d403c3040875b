"""ONNX's Conv and ConvTranspose: a NodeProto with its input shapes, a graph of one node in ONNX's text, a model file.

A ConvTranspose is the backward data of the convolution with the channels exchanged. Needs the ``onnx`` package, except
to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...api.errors import InvalidProblem
from ...api.problem import ConvProblem
from ..shapes import Entry
from .limits import Dialect

_TYPES = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"}


def _onnx() -> Any:
    try:
        import onnx
        import onnx.parser
        import onnx.shape_inference
    except ImportError:
        raise InvalidProblem("reading ONNX needs the onnx package: pip install onnx") from None
    return onnx


def read_node(node: Any, shapes: Any, dtype: str = "float32") -> ConvProblem:
    """The problem of a Conv or ConvTranspose node. ``shapes`` are its inputs' shapes, by name or in order.

    Raises InvalidProblem.
    """
    if node.op_type not in ("Conv", "ConvTranspose"):
        raise InvalidProblem(f"the node must be a Conv or ConvTranspose, got {node.op_type}")
    if isinstance(shapes, Mapping):
        input_shapes = [shapes.get(name) for name in node.input[:2]]
    else:
        input_shapes = list(shapes or ())[:2]
    if len(input_shapes) < 2 or None in input_shapes:
        raise InvalidProblem(f"node {node.name or node.output[0]!r} needs the shapes of its inputs, got {shapes!r}")
    x, w = (tuple(shape) for shape in input_shapes)
    if len(x) != len(w) or not 3 <= len(x) <= 5 or not all(isinstance(size, int) for size in x + w):
        raise InvalidProblem(
            f"node {node.name or node.output[0]!r} needs shapes of numbers and rank 3 to 5, got {x}, {w}"
        )
    attributes = {attribute.name: _onnx().helper.get_attribute_value(attribute) for attribute in node.attribute}
    transposed = node.op_type == "ConvTranspose"
    g, ndim = attributes.get("group", 1), len(x) - 2
    values: dict[str, Any] = {"mb": x[0], "g": g, "ndim": ndim, "dtype": dtype, "bias": len(node.input) > 2}
    if transposed:
        values |= {"direction": "bwd_data", "oc": x[1], "ic": w[1] * g}
    else:
        values |= {"ic": x[1], "oc": w[0]}
        if x[1] != w[1] * g:
            raise InvalidProblem(f"x has {x[1]} channels, w {w[1]} in each of {g} groups")
    per_axis = {
        "k": w[2:],
        "s": attributes.get("strides", [1] * ndim),
        "d": attributes.get("dilations", [1] * ndim),
        "pads": attributes.get("pads", [0] * 2 * ndim),
        "extra": attributes.get("output_padding", [0] * ndim),
        "shape": attributes.get("output_shape"),
    }
    mode = attributes.get("auto_pad", b"NOTSET").decode("utf-8", "replace")
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise InvalidProblem(f"auto_pad is NOTSET, SAME_UPPER, SAME_LOWER or VALID, got {mode[:40]!r}")
    for index, axis in enumerate("dhw"[3 - ndim :]):
        values |= _axis(index, axis, x[2 + index], per_axis, mode, transposed)
    return ConvProblem(**values)


def _axis(index: int, axis: str, size: int, lists: dict[str, Any], mode: str, transposed: bool) -> dict[str, int]:
    ndim = len(lists["k"])
    kernel, stride, dilation = (lists[letter][index] for letter in "ksd")
    before, after = lists["pads"][index], lists["pads"][index + ndim]
    extent, extra = dilation * (kernel - 1) + 1, lists["extra"][index]
    if transposed:
        full = (size - 1) * stride + extent + extra
        wanted = lists["shape"][index] if lists["shape"] else size * stride if mode.startswith("SAME") else None
        total = before + after if wanted is None else full - wanted
    else:
        full, wanted = 0, None
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    if mode.startswith("SAME") or wanted is not None:
        smaller, larger = total // 2, total - total // 2
        swaps = mode == "SAME_LOWER" or (transposed and mode == "NOTSET")
        before, after = (larger, smaller) if swaps else (smaller, larger)
    elif mode == "VALID":
        before = after = 0
    if transposed:
        size = full - before - after
    return dict(zip((letter + axis for letter in "iksd"), (size, kernel, stride, dilation))) | {
        f"p{axis}": before,
        f"p{axis}_r": after,
    }


_WEIGHTS = {"QLinearConv": 3, "ConvInteger": 1}
"""The index of the weights among a node's inputs, by operator."""


def _entries(graph: Any) -> list[Entry]:
    onnx = _onnx()
    shapes: dict[str, tuple] = {}
    types: dict[str, str] = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        kind = value.type.tensor_type
        shapes[value.name] = tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim
        )
        types[value.name] = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    entries = []
    for node in graph.node:
        if node.op_type in ("QLinearConv", "ConvInteger"):
            kind, out_dtype = types.get(node.input[0], "uint8"), types.get(node.output[0], "")
            plain = _onnx().helper.make_node("Conv", [node.input[0], node.input[_WEIGHTS[node.op_type]]], node.output)
            plain.attribute.extend(node.attribute)
            out_dtype = "int32" if node.op_type == "ConvInteger" else out_dtype or kind
            problem = read_node(plain, shapes, "float32").replace(dtype=kind, out_dtype=out_dtype)
            entries.append(Entry(node.name or node.output[0], problem))
        if node.op_type in ("Conv", "ConvTranspose"):
            kind = types.get(node.input[0], "float")
            if kind not in _TYPES:
                raise InvalidProblem(f"node {node.name or node.output[0]!r} is of type {kind}, not {', '.join(_TYPES)}")
            problem = read_node(node, shapes, _TYPES[kind])
            entries.append(Entry(node.name or node.output[0], problem))
    return entries


def read_line(line: str) -> list[Entry]:
    """The convolutions of a graph in ONNX's text. Raises InvalidProblem."""
    try:
        return _entries(_onnx().parser.parse_graph(line))
    except InvalidProblem:
        raise
    except Exception as error:
        # ONNX's parser raises ParseError; other text that is no graph makes the parser or its nodes raise other errors.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidProblem(f"ONNX cannot read {line[:200]!r}: {reason}") from None


def read_model(path: Path) -> list[Entry]:
    """The convolutions of a model file, shapes inferred. Raises InvalidProblem."""
    onnx = _onnx()
    try:
        model = onnx.load(str(path), load_external_data=False)
        return _entries(onnx.shape_inference.infer_shapes(model).graph)
    except InvalidProblem as error:
        raise InvalidProblem(f"{path}: {error}") from None
    except Exception as error:
        # ``onnx.load`` raises protobuf's DecodeError or onnx's own errors, which differ between versions.
        raise InvalidProblem(f"{path} is no ONNX model: {error}") from error


_DIALECT = Dialect("onnx", ("bias",), ("bias",), ("fwd", "bwd_data"), tuple(_TYPES.values()))


def write(problem: ConvProblem, name: str = "") -> str:
    """A graph of one node, as ``onnx.parser.parse_graph`` reads it. Raises InvalidArgument."""
    _DIALECT.check(problem)
    kind = next(onnx_name for onnx_name, ours in _TYPES.items() if ours == problem.dtype)
    forward = problem.direction == "fwd"

    def tensor(label: str, shape: Sequence[int]) -> str:
        return f"{kind}[{','.join(map(str, shape))}] {label}"

    def along(letter: str, side: str = "") -> list[int]:
        return [getattr(problem, letter + axis + side) for axis in problem.axes]

    attributes = {"kernel_shape": along("k"), "strides": along("s"), "dilations": along("d")}
    attributes["pads"] = along("p") + along("p", "_r")
    if not forward:
        # ``output_padding`` is the number of output elements at the end that the strided filter does not reach.
        rest = [
            getattr(problem, "i" + a)
            + getattr(problem, "p" + a)
            + getattr(problem, f"p{a}_r")
            - (getattr(problem, "o" + a) - 1) * getattr(problem, "s" + a)
            - getattr(problem, "d" + a) * (getattr(problem, "k" + a) - 1)
            - 1
            for a in problem.axes
        ]
        attributes["output_padding"] = rest
    text = ", ".join(f"{key}=[{','.join(map(str, numbers))}]" for key, numbers in attributes.items())
    source, target = ("x", "y") if forward else ("y", "x")
    inputs = [tensor(source, getattr(problem, source + "_shape")), tensor("w", problem.w_shape)]
    inputs += [tensor("b", (problem.channels_out,))] if problem.bias else []
    operation = "Conv" if forward else "ConvTranspose"
    return (
        f"{_identifier(name)} ({', '.join(inputs)}) => ({tensor(target, problem.out_shape)}) "
        f"{{ {target} = {operation} <{text}, group={problem.g}> ({source}, w{', b' if problem.bias else ''}) }}"
    )


def _identifier(name: str) -> str:
    word = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
    return word if word[:1].isalpha() else "conv" + word
