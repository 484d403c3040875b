"""ONNX's words: nodes with shapes, padding by rule, model files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import answer, problems

from convdispatch.api.errors import InvalidProblem
from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.grammar import read, read_file

onnx = pytest.importorskip("onnx")

P = ConvProblem.parse
RESNET = P("mb1ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3")


def test_a_node_with_shapes():
    node = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[3, 3, 3, 3])
    expected = RESNET.replace(bias=True)
    assert read(node, shapes={"x": (1, 3, 224, 224), "w": (64, 3, 7, 7)}) == expected
    assert read(node, shapes=[(1, 3, 224, 224), (64, 3, 7, 7), (64,)]) == expected
    with pytest.raises(InvalidProblem, match="needs the shapes"):
        read(node)
    with pytest.raises(InvalidProblem, match="got Relu"):
        read(onnx.helper.make_node("Relu", ["x"], ["y"]), shapes=[])


@given(
    problem=problems(plain=True), transposed=st.booleans(), pad=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"])
)
@settings(max_examples=60, deadline=None)
def test_sizes_are_those_that_onnx_infers(problem, transposed, pad):
    """Padding by rule: our output size against onnx's own shape inference."""
    x, w = (problem.y_shape, problem.w_shape) if transposed else (problem.x_shape, problem.w_shape)
    assume(problem.mb > 0)
    if pad == "VALID" and not transposed:
        assume(all(size >= d for size, d in zip(x[2:], _extents(problem))))
    node = onnx.helper.make_node(
        "ConvTranspose" if transposed else "Conv",
        ["x", "w"],
        ["y"],
        auto_pad=pad,
        group=problem.g,
        kernel_shape=list(w[2:]),
        strides=[getattr(problem, "s" + a) for a in problem.axes],
        dilations=[getattr(problem, "d" + a) for a in problem.axes],
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, x), value("w", 1, w)], [value("y", 1, [None] * len(x))])
    model = onnx.shape_inference.infer_shapes(onnx.helper.make_model(graph), strict_mode=True)
    expected = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    found, refusal = answer(InvalidProblem, lambda: read(node, shapes={"x": x, "w": w}))
    if found is None:  # a rule that asks for more output than the inputs reach has no padding
        assert transposed
        assert "padding must be 0 or more" in refusal
        return
    assert list(found.out_shape) == expected


def _extents(problem):
    return [getattr(problem, "d" + a) * (getattr(problem, "k" + a) - 1) + 1 for a in problem.axes]


def test_a_model_file(tmp_path):
    weights = onnx.numpy_helper.from_array(np.zeros((64, 3, 7, 7), np.float32), "w")
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], name="stem", strides=[2, 2], pads=[3, 3, 3, 3]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("ConvTranspose", ["b", "v"], ["y"], name="up", strides=[2, 2]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "net", [value("x", 1, (1, 3, 224, 224)), value("v", 1, (64, 8, 2, 2))], [value("y", 1, None)], [weights]
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net.onnx")
    assert [tuple(entry) for entry in read_file(tmp_path / "net.onnx")] == [
        ("stem", RESNET, 1),
        ("up", P("bwd_data_f32_mb1ic8ih224oc64kh2sh2"), 1),
    ]
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidProblem, match=r"bad\.onnx"):
        list(read_file(tmp_path / "bad.onnx"))
