"""A model file as a net: arrays of every kind, forms by shapes and by values, what is fused, what is said."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra: onnx)")

from onnx import helper  # noqa: E402
from onnx_models import expected, model, node, normal, residual, saved  # noqa: E402
from paths import ROOT  # noqa: E402

from convdispatch.api import InvalidArgument  # noqa: E402
from convdispatch.device.programs import kernels  # noqa: E402
from convdispatch.onnx import folding, load  # noqa: E402
from convdispatch.tensor import Tensor  # noqa: E402


@pytest.fixture(scope="module")
def net():
    return load(residual())


def picture(mb=2, size=8, seed=9):
    return normal(mb, 3, size, size, seed=seed)


def close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=2e-5, atol=2e-5)


def test_what_comes_in_comes_out(net, queue):
    x = picture()
    (wanted,) = expected(residual(), x)
    assert type(net(x)) is np.ndarray
    close(net(x), wanted)
    close(net({"x": x})["y"], wanted)
    tensor = net(Tensor.from_numpy(x))
    assert type(tensor) is Tensor
    close(tensor.numpy(), wanted)
    import pyopencl.array as cl_array

    array = net(cl_array.to_device(queue, x))
    assert type(array) is cl_array.Array
    close(array.get(), wanted)


def test_torch_tensors_come_out_as_torch_tensors(net):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    result = net(torch.from_numpy(picture()))
    assert isinstance(result, torch.Tensor)
    close(result.numpy(), expected(residual(), picture())[0])


def test_a_file_its_bytes_and_a_model_are_the_same(net, tmp_path):
    path = saved(residual(), tmp_path / "net.onnx")
    for source in (path, str(path), path.read_bytes()):
        close(load(source)(picture()), net(picture()))


def test_convolutions_take_in_what_follows_them(net):
    names = [layer.name for layer in net.build((2, 3, 8, 8)).layers if layer.name != "reorder"]
    assert names == ["convolution", "convolution", "adaptive_avg_pool", "convolution"]


def relu6(added, rest, bounds="zero six"):
    """``h``, the clipped sum ``a``, and what follows: operator, operands and result of each node."""
    nodes = [node("Add", added, "a"), node("Clip", f"a {bounds}", "h")]
    for kind, *operands, result in map(str.split, rest):
        nodes.append(node(kind, " ".join(operands), result))
    return nodes


@pytest.mark.parametrize(
    ("nodes", "fused"),
    [
        ([node("HardSwish", "c", "y")], True),
        ([node("HardSigmoid", "c", "h", alpha=1 / 6), node("Mul", "c h", "y")], True),  # as exported to opset 13
        ([node("HardSigmoid", "c", "h", alpha=1 / 6), node("Mul", "h c", "y")], True),
        ([node("HardSigmoid", "c", "h"), node("Mul", "c h", "y")], False),  # its slope is 0.2
        ([node("HardSigmoid", "c", "h", alpha=1 / 6, beta=0.4), node("Mul", "c h", "y")], False),
        ([node("HardSigmoid", "c", "y", beta=0.3)], True),
        ([node("Sigmoid", "c", "h"), node("Mul", "c h", "y")], True),
        (relu6("c three", ["Div h six d", "Mul d c y"]), True),
        (relu6("three c", ["Mul c h m", "Div m six y"]), True),
        (relu6("c three", ["Mul h c m", "Mul sixth m y"]), True),
        (relu6("c six", ["Mul h c m", "Div m six y"]), False),
        (relu6("c three", ["Mul h c m", "Div m six y"], "zero three"), False),
        (relu6("c three", ["Mul h a m", "Div m six y"]), False),
        (relu6("c three", ["Mul h c m", "Div six m y"]), False),
        ([node("Gelu", "c", "y")], True),
        ([node("Gelu", "c", "y", approximate="tanh")], True),
        ([node("Mish", "c", "y")], True),
        ([node("Softplus", "c", "y")], True),
    ],
    ids=lambda value: "+".join(each.op_type for each in value) if isinstance(value, list) else None,
)  # fmt: skip
def test_activations_become_the_convolutions(nodes, fused):
    numbers = {"zero": 0, "three": 3, "six": 6, "sixth": 1 / 6}
    weights = {"w": normal(4, 3, 3, 3)} | {name: np.float32(value) for name, value in numbers.items()}
    proto = model([node("Conv", "x w", "c"), *nodes], {"x": [1, 3, 7, 6]}, ["y"], weights)
    net, x = load(proto), 4 * normal(1, 3, 7, 6, seed=1)
    np.testing.assert_allclose(net(x), expected(proto, x)[0], rtol=1e-4, atol=1e-5)
    names = {layer.name for layer in net.latest.layers} - {"reorder"}
    assert (names == {"convolution"}) == fused


@pytest.mark.parametrize(
    ("pads", "value", "others", "fused"),
    [
        ([0, 0, 1, 0, 0, 0, 2, 1], 0.0, False, True),
        ([0, 0, 1, 0, 0, 0, 2, 1], 0.0, True, False),  # who else reads the zeros gets them
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.5, False, False),
        ([0, 1, 1, 1, 0, 0, 1, 1], 0.0, False, False),
    ],
)
def test_zeros_around_a_picture_become_the_convolutions_pads(pads, value, others, fused):
    weights = {"w": normal(4, 3 + pads[1], 3, 3), "pads": np.array(pads), "v": np.float32(value)}
    nodes = [node("Pad", "x pads v", "p"), node("Conv", "p w", "c", strides=[2, 2], pads=[0, 1, 0, 0])]
    nodes += [node("Relu", "p", "r")] if others else []
    proto = model(nodes, {"x": [1, 3, 9, 8]}, ["c", "r"] if others else ["c"], weights)
    net, x = load(proto), normal(1, 3, 9, 8, seed=1)
    got = net({"x": x})
    for name, want in zip(got, expected(proto, x), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)
    names = {layer.name for layer in net.latest.layers} - {"reorder"}
    assert (names == {"convolution"}) == fused


def test_symbolic_sizes_have_a_form_each_and_the_oldest_goes(monkeypatch):
    """Of those beyond a net's first, within the bytes that all new programs share."""
    monkeypatch.setattr(kernels, "FIRST_FORMS", 1)  # each is compiled
    net = load(residual())
    for size in range(4, 9):
        x = picture(1, size)
        close(net(x), expected(residual(), x)[0])
        if size == 4:
            monkeypatch.setattr(kernels, "NEW_SHARE", 1)
    keys = [(((1, 3, size, size),), (False, False, False)) for size in range(4, 9)]
    assert [net._forms.get(key) is not None for key in keys] == [True, *[False] * 3, True]


def test_several_inputs_and_outputs_by_name():
    proto = model(
        [node("Add", "a b", "sum"), node("Mul", "a b", "product"), node("Shape", "a", "shape")],
        {"a": [2, "n"], "b": [2, "n"]}, ["sum", "product", "shape"],
    )  # fmt: skip
    net, (a, b) = load(proto), (normal(2, 5), normal(2, 5, seed=1))
    assert [port.name for port in net.inputs] == ["a", "b"]
    named = net({"b": b, "a": a})
    assert list(named) == ["sum", "product", "shape"]
    for got, wanted in zip(net(a, b), (a + b, a * b, [2, 5]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(named["product"], a * b)


def test_a_form_depends_on_the_values_of_what_says_shapes():
    proto = model([node("Reshape", "x shape", "y")], {"x": ["a", "b"], "shape": ([2], "int64")}, ["y"])
    net, x = load(proto), normal(4, 6)
    for shape in ([3, 8], [-1, 2], [24, 1]):
        got = net(x, np.array(shape, np.int64))
        np.testing.assert_array_equal(got, x.reshape(shape))
    assert len(net._forms) == 3


def test_what_depends_on_large_inputs_is_refused_in_words():
    nodes = [node("Cast", "x", "s", to=7), node("Reshape", "x s", "y")]
    net = load(model(nodes, {"x": ["n"]}, ["y"]))
    with pytest.raises(InvalidArgument, match=r"Reshape 'y' must know its input 's' when it is built.*x \(5000 elem"):
        net(np.zeros(5000, np.float32))


def test_all_missing_operators_are_named_at_once():
    nodes = [node("GRU", "x w r", "h", name="first", hidden_size=2), node("Relu", "h", "q"), node("NonZero", "q", "y")]
    weights = {"w": np.zeros((1, 6, 3), np.float32), "r": np.zeros((1, 6, 2), np.float32)}
    with pytest.raises(InvalidArgument, match=r"no operator here for: GRU \(first\); NonZero \(y\)"):
        load(model(nodes, {"x": [1, 1, 3]}, ["y"], weights))
    other = helper.make_node("Fancy", ["x"], ["y"], domain="com.acme")
    with pytest.raises(InvalidArgument, match=r"com.acme.Fancy \(y\)"):
        load(model([other], {"x": [1]}, ["y"], domains=["com.acme"]))


def test_functions_of_the_model_and_of_onnx_are_walked_through():
    twice = helper.make_function(
        "acme", "Twice", ["a"], ["b"], [node("Mul", "a a", "q"), node("Relu", "q", "b")], [helper.make_opsetid("", 21)]
    )
    call = helper.make_node("Twice", ["x"], ["z"], domain="acme")
    proto = model([call, node("Relu", "z", "y")], {"x": ["n"]}, ["y"], functions=[twice], domains=["acme"])
    x = normal(7)
    close(load(proto)(x), x * x)


@pytest.mark.parametrize("known", [True, False])
def test_a_known_condition_chooses_its_branch(known):
    branch = lambda kind, name: helper.make_graph(  # noqa: E731
        [node(kind, "x", name)], kind, [], [helper.make_tensor_value_info(name, 1, None)]
    )
    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg", "a"), else_branch=branch("Abs", "b"))
    x = normal(6)
    for c in (True, False):
        inputs, weights = {"x": ["n"]}, {"c": np.array(c)}
        if not known:
            inputs, weights = {"x": ["n"], "c": ([], "bool")}, {}
        net = load(model([choose], inputs, ["y"], weights))
        np.testing.assert_array_equal(net(x) if known else net(x, np.array(c)), -x if c else np.abs(x))


def test_old_habits():
    """Initialisers among the inputs, operator set 6's broadcast, softmax over all later axes, weights as constants."""
    b = normal(3, seed=1)
    constant = helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(normal(3, 4, 2, 2, seed=2)))
    nodes = [
        node("Add", "x b", "s", broadcast=1, axis=1), node("Softmax", "s", "t"), constant,
        node("Mul", "t w", "y", broadcast=1, axis=1),
    ]  # fmt: skip
    proto = model(nodes, {"x": [2, 3, 4, 2, 2], "b": [3]}, ["y"], {"b": b}, opset=6)
    x = normal(2, 3, 4, 2, 2)
    s = (x + b[:, None, None, None]).reshape(2, -1)
    e = np.exp(s - s.max(1, keepdims=True))
    wanted = (e / e.sum(1, keepdims=True)).reshape(x.shape) * normal(3, 4, 2, 2, seed=2)
    assert [port.name for port in load(proto).inputs] == ["x"]
    close(load(proto)(x), wanted)


def test_another_dtype_and_mathematics(net):
    x = picture()
    half = load(residual(), dtype="float16")
    assert half(x.astype(np.float16)).dtype == np.float16
    np.testing.assert_allclose(half(x).astype(np.float32), net(x), rtol=0.02, atol=0.02)
    assert load(residual(), dtype=np.float64)(x).dtype == np.float64
    layers = load(residual(), math="ieee").build(x.shape).layers
    assert {layer.problem.math for layer in layers if layer.problem and layer.problem.iw > 1} == {"ieee"}
    with pytest.raises(InvalidArgument, match="dtype must be float16"):
        load(residual(), dtype=np.int32)


def test_what_does_not_fit_is_said(net):
    with pytest.raises(InvalidArgument, match=r"takes x float32 \[batch, 3, height, width\], got shape \(2, 4, 8, 8\)"):
        net(normal(2, 4, 8, 8))
    with pytest.raises(InvalidArgument, match=r"takes 1 arrays \(x float32 .*\), got 2"):
        net(picture(), picture())
    with pytest.raises(InvalidArgument, match="lacks x and has no input z"):
        net({"z": picture()})
    with pytest.raises(InvalidArgument, match="'x' takes float32, got int32"):
        net(picture().astype(np.int32))
    with pytest.raises(InvalidArgument, match="'x' must be an array, got str"):
        net("picture")


def test_a_net_of_constants_and_of_views():
    proto = model(
        [node("Constant", "", "y", value_floats=[1.0, 2.0]), node("Identity", "x", "z")], {"x": [3]}, ["y", "z"]
    )
    y, z = load(proto)(normal(3))
    np.testing.assert_array_equal(y, np.float32([1, 2]))
    np.testing.assert_array_equal(z, normal(3))


def test_the_page_runs(tmp_path, monkeypatch):
    import re

    page = (ROOT / "docs" / "use" / "onnx.md").read_text(encoding="utf-8")
    scope: dict = {}
    monkeypatch.chdir(tmp_path)  # the page writes a model
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], scope)
    x, w = scope["x"], scope["w"]
    import convdispatch

    close(scope["y"], convdispatch.conv(x, w, padding=1, activation="relu"))
    close(scope["named"]["y"], scope["y"])


def test_any_operator_is_folded_where_its_operands_are_known():
    """Shapes of inputs too: what only the reference has never reaches the device."""
    nodes = [node("Shape", "x", "s"), node("NonZero", "s", "i"), node("Squeeze", "i", "f"),
             node("Cast", "f", "c", to=1), node("BitwiseNot", "b", "n"), node("Cast", "n", "m", to=1),
             node("ReduceSum", "c", "t", keepdims=0), node("Add", "x t", "u"), node("Add", "u m", "y")]  # fmt: skip
    proto = model(nodes, {"x": ["a", "b"]}, ["y"], {"b": np.array([3], np.int32)})
    x = normal(2, 4)
    close(load(proto)(x), x + 1 - 4)


def test_weights_that_are_shared_by_identity_need_no_reference(monkeypatch):
    """As PyTorch's exporter shares equal ones; onnx's reference evaluator takes long to import."""
    monkeypatch.setattr(folding, "evaluate", lambda *_: pytest.fail("the reference was asked"))
    w = normal(4, 3, 1, 1)
    net = load(model([node("Identity", "w", "v"), node("Conv", "x v", "y")], {"x": [2, 3, 5, 5]}, ["y"], {"w": w}))
    x = normal(2, 3, 5, 5)
    close(net(x), np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64"])
def test_inputs_of_another_type_are_refused_as_onnxruntime_does(dtype):
    net, x = load(residual()), normal(2, 3, 16, 16)
    with pytest.raises(InvalidArgument, match=f"the input 'x' takes float32, got {dtype}"):
        net(x.astype(dtype))
    assert net(x.tolist()).shape == (2, 10), "Python's floats have no type of their own"
    half = load(residual(), dtype="float16")
    assert half(x).dtype == half(x.astype(np.float16)).dtype == np.float16
    with pytest.raises(InvalidArgument, match="takes float32, got float64"):
        half(x.astype(np.float64))
    with pytest.raises(InvalidArgument, match="without a mask"):
        net(np.ma.masked_array(x))


def test_inputs_without_elements():
    net = load(residual())
    for _ in range(2):
        empty = net(normal(0, 3, 16, 16))
        assert empty.shape == (0, 10)
        assert empty.dtype == np.float32
    assert net(normal(1, 3, 16, 16)).shape == (1, 10)
