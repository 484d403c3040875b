"""Damaged, hostile and huge files: one sentence each, before memory is taken, nothing read outside the folder."""

import contextlib
import tracemalloc

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import expected, model, node, normal, residual, saved  # noqa: E402

from convdispatch.api import InvalidArgument  # noqa: E402
from convdispatch.onnx import load  # noqa: E402


def run(source):
    net = load(source)
    net(*(np.zeros([s if isinstance(s, int) else 2 for s in port.shape], port.dtype) for port in net.inputs))


def refused(source, match):
    """Loading, or the first run, raises one sentence; no more than some megabytes were taken for it."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match=match) as caught:
            run(source)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


def test_what_is_no_model(tmp_path):
    refused(tmp_path / "none.onnx", "is no file: expected an ONNX model")
    refused(tmp_path, "is no file")
    text = tmp_path / "text.onnx"
    text.write_text("import os\n" * 99)
    refused(text, "is no ONNX model|holds no graph")
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    refused(empty, "holds no graph")


@pytest.mark.parametrize("at", range(0, 100, 7))
def test_a_cut_file_is_refused_in_words_or_runs(tmp_path, at):
    data = residual().SerializeToString()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(data[: len(data) * at // 100])
    with pytest.raises(InvalidArgument):
        load(cut)(normal(1, 3, 5, 5))


@pytest.mark.parametrize("seed", range(30))
def test_a_file_with_wrong_bytes_never_fails_otherwise(seed):
    """Bytes of the graph, not of the weights, are changed: whatever comes of it is a result or a sentence."""
    from convdispatch.api import ConvDispatchError

    random = np.random.default_rng(seed)
    proto = model([node("Relu", "x", "r"), node("Concat", "r c", "t", axis=0), node("Reshape", "t s", "y")],
                  {"x": [4]}, ["y"], {"c": normal(2), "s": np.array([2, 3])})  # fmt: skip
    data = bytearray(proto.SerializeToString())
    for place in random.integers(0, len(data), 3):
        data[place] = random.integers(0, 256)
    with contextlib.suppress(ConvDispatchError):
        load(bytes(data))(normal(4))


def test_sizes_that_are_not_there():
    liar = TensorProto(name="w", dims=[1 << 40], data_type=TensorProto.FLOAT, raw_data=b"1234")
    proto = model([node("Mul", "x w", "y")], {"x": [2]}, ["y"])
    proto.graph.initializer.append(liar)
    refused(proto, r"initialiser 'w' of shape \(1099511627776,\) needs 4398046511104 bytes, 4 are there")
    del proto.graph.initializer[:]
    proto.graph.initializer.append(TensorProto(name="w", dims=[-3], data_type=TensorProto.FLOAT))
    refused(proto, "sizes of 0 or more")
    del proto.graph.initializer[:]
    proto.graph.initializer.append(TensorProto(name="w", dims=[3], data_type=TensorProto.FLOAT, float_data=[1.0]))
    refused(proto, "needs 3 values, 1 are there")
    del proto.graph.initializer[:]
    proto.graph.initializer.append(TensorProto(name="w", dims=[3], data_type=99))
    refused(proto, "unknown type 99")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", "huge", "w"), node("Mul", "x w", "y")],
        [node("Expand", "one huge", "w"), node("Mul", "x w", "y")],
        [node("Tile", "one huge", "w"), node("Mul", "x w", "y")],
        [node("Range", "zero far one_step", "r"), node("Cast", "r", "w", to=1), node("Mul", "x w", "y")],
        [node("Add", "column row", "w"), node("Mul", "x w", "y")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_constants_that_would_fill_the_memory(nodes):
    weights = {
        "huge": np.array([1 << 40]),
        "one": np.float32([1]),
        "zero": np.array(0),
        "far": np.array(1 << 40),
        "one_step": np.array(1),
        "column": np.zeros((1 << 18, 1), np.float32),
        "row": np.zeros((1, 1 << 18), np.float32),
    }
    refused(model(nodes, {"x": [1]}, ["y"], weights), "would make a constant of shape .*: refused")


def test_tensors_that_would_fill_the_device():
    weights = {"shape": np.array([1 << 21, 1 << 22])}
    refused(
        model([node("Expand", "x shape", "e"), node("Neg", "e", "y")], {"x": [1]}, ["y"], weights),
        "Expand 'e' makes a tensor of shape",
    )


@pytest.fixture
def apart(tmp_path):
    """A model whose weights lie in a file of their own."""
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "net.onnx"
    onnx.save(residual(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def place(path, **changes):
    """The model with its first external tensor's entries changed."""
    proto = onnx.load(path, load_external_data=False)
    entries = proto.graph.initializer[0].external_data
    for key, text in changes.items():
        found = [entry for entry in entries if entry.key == key]
        (found[0] if found else entries.add(key=key)).value = text
    return saved(proto, path)


def test_weights_in_a_file_of_their_own(apart):
    x = normal(1, 3, 6, 6)
    np.testing.assert_allclose(load(apart)(x), expected(residual(), x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "", "sub/../../secret.bin", "link.bin"])
def test_weights_outside_the_folder(apart, location):
    secret = apart.parent.parent / "secret.bin"
    secret.write_bytes(bytes(10_000))
    (apart.parent / "link.bin").symlink_to(secret)
    (apart.parent / "sub").mkdir()
    refused(place(apart, location=location), "outside the model's folder: refused")


def test_weights_beyond_their_file(apart):
    refused(place(apart, offset=str(1 << 50)), "from 1125899906842624 on of")
    refused(place(apart, offset="-4"), "from -4 on of")
    refused(place(apart, offset="0", length=str(1 << 50)), "needs 864 bytes")
    refused(place(apart, offset="x"), "no number")
    refused(place(apart, offset="0", location="missing.bin"), "which is no file")
    proto = onnx.load(apart, load_external_data=False)
    refused(proto, "load the model by its path")


def test_graphs_that_make_no_sense():
    refused(
        model([node("Relu", "b", "a"), node("Relu", "a", "b")], {"x": [1]}, ["b"]), "reads 'b' before anything makes it"
    )
    refused(model([node("Relu", "x", "y")], {"x": [1]}, ["z"]), "reads 'z' before anything makes it")
    refused(model([node("Conv", "x w", "y")], {"x": [1, 3, 4, 4]}, ["y"], {"w": normal(2, 4, 3, 3)}), "Conv 'y'")
    refused(model([node("Relu", "x", "y")], {"x": [1]}, ["y"], opset=9999), "operator set 9999")


def test_functions_that_call_themselves_or_explode():
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]

    def function(name, *nodes):
        return helper.make_function("acme", name, ["a"], ["b"], list(nodes), imports)

    def call(name, x, y):
        return helper.make_node(name, [x], [y], domain="acme")

    endless = function("F", call("F", "a", "b"))
    refused(
        model([call("F", "x", "y")], {"x": [1]}, ["y"], functions=[endless], domains=["acme"]), "deep in each other"
    )
    steps = [function("F0", node("Relu", "a", "b"))]
    for level in range(1, 20):
        nodes = [call(f"F{level - 1}", "a" if i == 0 else f"t{i}", "b" if i == 9 else f"t{i + 1}") for i in range(10)]
        steps.append(function(f"F{level}", *nodes))
    bomb = model([call("F19", "x", "y")], {"x": [1]}, ["y"], functions=steps, domains=["acme"])
    refused(bomb, "more than .* nodes")


def test_numbers_outside_an_axis_touch_no_memory():
    """Indices that the net computes are kept inside; known ones are refused."""
    proto = model([node("Cast", "x", "i", to=7), node("Gather", "t i", "y")], {"x": [3]}, ["y"], {"t": normal(4, 2)})
    got = load(proto)(np.float32([0, 1e6, -1e6]))
    np.testing.assert_array_equal(got, normal(4, 2)[[0, 3, 0]])
    proto = model([node("Gather", "x i", "y")], {"x": [4]}, ["y"], {"i": np.array([9])})
    refused(proto, r"Gather 'y': takes elements 9 to 9 of 4")


def test_arrays_of_the_file_are_not_shared_with_the_callers():
    w = normal(3)
    proto = model([node("Add", "x w", "y")], {"x": [3]}, ["y"])
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    net = load(proto)
    first = net(np.zeros(3, np.float32))
    first[:] = 7
    np.testing.assert_array_equal(net(np.zeros(3, np.float32)), w)


@pytest.mark.parametrize(
    ("nodes", "known", "match"),
    [
        (
            [node("Conv", "x w", "y", auto_pad="SAME")],
            {"w": normal(1, 1, 3, 3)},
            "auto_pad is one of NOTSET, SAME_UPPER",
        ),
        ([node("Conv", "x w", "y", auto_pad="\0")], {"w": normal(1, 1, 3, 3)}, "auto_pad is one of"),
        ([node("ConvTranspose", "x w", "y", auto_pad="same_upper")], {"w": normal(1, 1, 3, 3)}, "auto_pad is one of"),
        ([node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad="FULL")], {}, "auto_pad is one of"),
        ([node("Gelu", "x", "y", approximate="fast")], {}, "approximate is one of none, tanh"),
        ([node("DepthToSpace", "x", "y", blocksize=1, mode="CDR")], {}, "mode is one of DCR, CRD"),
        (
            [helper.make_node("Resize", ["x", "", "s"], ["y"], nearest_mode="up")],
            {"s": np.float32([1, 1, 2, 2])},
            "nearest_mode is one of",
        ),
        (
            [helper.make_node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="half")],
            {"s": np.float32([1, 1, 2, 2])},
            "coordinate_transformation_mode is one of",
        ),
        *(
            ([helper.make_node("Resize", ["x", "", "s"], ["y"])], {"s": np.float32([1, 1, scale, 2])}, match)
            for scale, match in zip(
                (1e30, 1e8, np.nan, 0, -1, np.inf),
                ["places, got"] * 2 + ["a scale is a number above 0"] * 4,
            )
        ),
    ],
)
def test_words_and_scales_that_the_standard_has_not(nodes, known, match):
    refused(model(nodes, {"x": [1, 1, 4, 4]}, ["y"], known), match)


@pytest.mark.parametrize("location", ["a\0b", "x" * 5000, "../" * 50 + "etc/passwd"])
def test_external_data_at_a_place_that_is_none(tmp_path, location):
    tensor = TensorProto(name="w", dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    proto = model([node("Mul", "x w", "y")], {"x": [2]}, ["y"])
    proto.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    refused(tmp_path / "m.onnx", "which is no place|outside the model's folder|File name too long")


def test_an_operator_whose_name_is_no_text():
    data = model([node("Relu", "x", "y")], {"x": [2]}, ["y"]).SerializeToString().replace(b"Relu", b"Rel\xf5")
    refused(data, "which is no UTF-8|is no ONNX model")
