"""Large weights go from the file to where they stay: nothing else has their bytes, and values are the same."""

import io

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import model, node, normal  # noqa: E402

import convdispatch as cd  # noqa: E402
from convdispatch.api import InvalidArgument  # noqa: E402
from convdispatch.onnx import load  # noqa: E402
from convdispatch.onnx.reading import _parse, read, to_array  # noqa: E402


def convolution(**weights):
    return model([node("Conv", "x w", "y")], {"x": (1, 32, 8, 8)}, ["y"], weights)


def values(proto_or_bytes):
    proto, storage = read(proto_or_bytes)
    return proto, {each.name: to_array(each, storage) for each in proto.graph.initializer}


def field(number, content):
    """A field of bytes on the wire; lengths here are shorter than 2**21."""
    length = len(content)
    varint = bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
    return bytes([number << 3 | 2]) + varint + content


def test_a_message_has_no_bytes_of_large_weights_and_devices_none_of_their_own(monkeypatch, tmp_path):
    w, x = normal(64, 32, 3, 3, seed=1), normal(1, 32, 8, 8, seed=2)
    path = tmp_path / "net.onnx"
    path.write_bytes(convolution(w=w).SerializeToString())
    proto, found = _parse(io.BytesIO(path.read_bytes()), path.stat().st_size, "net")
    assert proto.ByteSize() < 1024
    assert [each.nbytes for each in found.values()] == [w.nbytes]
    copies = []
    kept = cd.Tensor.from_numpy
    monkeypatch.setattr(cd.Tensor, "from_numpy", lambda array, *args: copies.append(array.nbytes) or kept(array, *args))
    net = load(path)
    want = load(convolution(w=w))(x)
    copies.clear()
    np.testing.assert_array_equal(net(x), want)
    if cd.runtime.device_info(net.queue.device).type == "cpu":
        assert w.nbytes not in copies


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT16", "INT64", "BOOL", "INT4"])
def test_values_of_each_type_are_those_of_the_onnx_package(kind):
    number = getattr(TensorProto, kind)
    numbers = np.random.default_rng(3).integers(0, 2, (3, 5001))  # near misses: an odd number of elements, half bytes
    w = helper.make_tensor("w", number, numbers.shape, numbers.ravel())
    raw = numpy_helper.from_array(numpy_helper.to_array(w), "w")
    graph = helper.make_graph([node("Identity", "w", "y")], "g", [], [helper.make_empty_tensor_value_info("y")], [raw])
    _, found = values(helper.make_model(graph).SerializeToString())
    assert found["w"].dtype == numpy_helper.to_array(raw).dtype
    np.testing.assert_array_equal(found["w"], numpy_helper.to_array(raw))


def test_several_weights_and_those_that_stay():
    """A short one, one without bytes of its own, and a number of fields' orders."""
    given = {"a": normal(40, 30), "short": normal(4), "b": normal(33, 77), "scalar": np.float32(3).reshape(())}
    proto, found = values(convolution(**given).SerializeToString())
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)
    assert [each.HasField("raw_data") for each in proto.graph.initializer] == [False, True, False, True]
    listed = helper.make_tensor("w", TensorProto.FLOAT, (2000,), np.arange(2000.0))
    plain = convolution(a=given["a"])
    plain.graph.initializer.append(listed)
    _, found = values(plain.SerializeToString())
    np.testing.assert_array_equal(found["w"], np.arange(2000, dtype=np.float32))


def test_fields_in_any_order_and_graphs_in_parts():
    a, b = normal(1200, seed=4), normal(1300, seed=5)
    rest = convolution().SerializeToString()

    def tensor(name, array):
        shape, kind = bytes([0x08, len(array) & 127 | 128, len(array) >> 7]), bytes([0x10, 1])
        return field(5, field(9, array.tobytes()) + shape + kind + field(8, name))

    _, found = values(field(7, tensor(b"a", a)) + rest + field(7, tensor(b"b", b)))
    np.testing.assert_array_equal(found["a"], a)
    np.testing.assert_array_equal(found["b"], b)


def test_two_weights_of_one_name_are_the_last_as_ever():
    proto = convolution(w=normal(2000, seed=6))
    proto.graph.initializer.append(numpy_helper.from_array(normal(2000, seed=7), "w"))
    np.testing.assert_array_equal(values(proto.SerializeToString())[1]["w"], normal(2000, seed=7))
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(normal(20, seed=7), "w"))
    with pytest.raises(InvalidArgument, match="needs 2000 values, 0 are there"):
        read(proto.SerializeToString())


def test_a_nodes_own_tensor_of_a_weights_name_is_another():
    proto = convolution(w=normal(2000, seed=8))
    other = helper.make_tensor("w", TensorProto.FLOAT, (3,), [1.0, 2.0, 3.0])
    del other.float_data[2:]
    proto.graph.node.append(node("Constant", "", "z", value=other))
    with pytest.raises(InvalidArgument, match="needs 3 values, 2 are there"):
        read(proto.SerializeToString())


@pytest.mark.parametrize("change", [-1, 1, -4096])
def test_a_length_that_is_not_the_shapes_is_refused(change):
    proto = convolution(w=normal(4000, seed=9))
    raw = proto.graph.initializer[0].raw_data
    proto.graph.initializer[0].raw_data = raw[:change] if change < 0 else raw + b"\0"
    with pytest.raises(InvalidArgument, match=f"needs 16000 bytes, {16000 + change} are there"):
        read(proto.SerializeToString())


@pytest.mark.parametrize("end", [1, 5, 100, 5000, 15990])
def test_a_file_that_ends_early_is_none(end):
    data = convolution(w=normal(4000, seed=9)).SerializeToString()
    with pytest.raises(InvalidArgument):
        read(data[:end])


@pytest.mark.parametrize(
    "message",
    [
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a graph of 2**63 bytes
        b"\x3a" + b"\xff" * 11,  # a length without an end
        b"\x3b\x3c",  # a group, which no version of the format has
        b"\x3a\x05\x2a\xff\xff\xff\x7f",  # a weight that is longer than its graph
        b"\x09\0\0\0",  # eight bytes, of which three are there
    ],
)
def test_what_is_no_message_takes_no_memory(message):
    with pytest.raises(InvalidArgument, match=r"is no ONNX model: a (field|number)"):
        read(message)
