"""Nets in ONNX with seeded weights, and what onnxruntime's own tool makes of them in 8 bits."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A net, layer by layer; methods answer the name of what they make."""

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        self.random, self.shape = np.random.default_rng(seed), shape
        self.nodes: list = []
        self.weights: list = []
        self.channels = {"x": shape[1]}

    def constant(self, array) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, kind, *inputs, channels=None, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        self.channels[name] = self.channels[inputs[0]] if channels is None else channels
        return name

    def after(self, x, activation) -> str:
        if activation is None:
            return x
        if activation == "relu6":
            return self.op("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))
        if activation == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op(activation, x)

    def conv(self, x, oc, kernel=3, stride=1, groups=1, dilation=1, activation="Relu") -> str:
        ic, pad = self.channels[x], (kernel - 1) * dilation // 2
        w = self.random.standard_normal((oc, ic // groups, kernel, kernel)) * np.sqrt(2 / (ic // groups * kernel**2))
        w *= self.random.uniform(0.5, 1.5, (oc, 1, 1, 1))
        inputs = [self.constant(w.astype(np.float32)), self.constant((self.random.standard_normal(oc) / 8).astype("f"))]
        y = self.op(
            "Conv", x, *inputs, channels=oc, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
            group=groups, dilations=[dilation] * 2,
        )  # fmt: skip
        return self.after(y, activation)

    def linear(self, x, features, activation=None) -> str:
        k = self.channels[x]
        w = (self.random.standard_normal((features, k)) * np.sqrt(2 / k)).astype(np.float32)
        bias = (self.random.standard_normal(features) / 8).astype(np.float32)
        y = self.op("Gemm", x, self.constant(w), self.constant(bias), channels=features, transB=1)
        return self.after(y, activation)

    def pool(self, x, kernel, stride, pad=0, kind="MaxPool") -> str:
        return self.op(kind, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def norm(self, x, size, pixels, alpha=0.5, beta=0.75, k=1.0) -> str:
        """A local response norm of pictures of pixels² pixels, as PyTorch's exporter writes it."""
        mb, channels = self.shape[0], self.channels[x]

        def shaped(y, *shape):
            return self.op("Reshape", y, self.constant(np.int64(shape)))

        pads = np.zeros(10, np.int64)
        pads[2], pads[7] = size // 2, (size - 1) // 2
        y = self.op("Pad", shaped(self.op("Mul", x, x), mb, 1, channels, pixels, pixels), self.constant(pads))
        y = self.op("AveragePool", y, kernel_shape=[size, 1, 1], strides=[1, 1, 1])
        y = self.op("Mul", shaped(y, mb, channels, pixels, pixels), self.constant(np.float32(alpha)))
        y = self.op("Pow", self.op("Add", y, self.constant(np.float32(k))), self.constant(np.float32(beta)))
        return self.op("Div", x, y, channels=channels)

    def add(self, x, y) -> str:
        return self.op("Add", x, y)

    def concat(self, *parts) -> str:
        return self.op("Concat", *parts, channels=sum(self.channels[part] for part in parts), axis=1)

    def logits(self, x, classes=100):
        """The whole model."""
        y = self.linear(self.op("Flatten", self.op("GlobalAveragePool", x)), classes)
        return self.model(y)

    def model(self, y):
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", self.shape), (y, None))]
        graph = helper.make_graph(self.nodes, "net", values[:1], values[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def basic_residual(seed, shape):
    net = Net(seed, shape)
    x = net.pool(net.conv("x", 16, 7, 2), 3, 2, 1)
    for width, stride in ((16, 1), (32, 2)):
        y = net.conv(net.conv(x, width, 3, stride), width, activation=None)
        x = net.op("Relu", net.add(y, x if stride == 1 else net.conv(x, width, 1, 2, activation=None)))
    return net.logits(x)


def bottleneck(seed, shape, groups=1):
    net = Net(seed, shape)
    x = net.pool(net.conv("x", 16, 7, 2), 3, 2, 1)
    for width, stride in ((16, 1), (32, 2)):
        y = net.conv(net.conv(net.conv(x, width, 1), width, 3, stride, groups), 4 * width, 1, activation=None)
        x = net.op("Relu", net.add(y, net.conv(x, 4 * width, 1, stride, activation=None)))
    return net.logits(x)


def inverted(seed, shape, activation="relu6"):
    net = Net(seed, shape)
    x = net.conv("x", 24, 3, 2, activation=activation)
    for width, stride, kernel in ((24, 1, 3), (32, 2, 5)):
        y = net.conv(x, 96, 1, activation=activation)
        y = net.conv(net.conv(y, 96, kernel, stride, 96, activation=activation), width, 1, activation=None)
        x = net.add(y, x) if stride == 1 else y
    return net.logits(net.conv(x, 128, 1, activation=activation))


def plain(seed, shape):
    net, x = Net(seed, shape), "x"
    for width in (16, 32, 64):
        x = net.pool(net.conv(net.conv(x, width), width), 2, 2)
    net.channels[x] *= shape[2] * shape[3] // 64
    return net.model(net.linear(net.linear(net.op("Flatten", x), 256, "Relu"), 100))


def inception(seed, shape):
    net = Net(seed, shape)
    x = net.pool(net.conv("x", 24, 7, 2), 3, 2, 1)
    for width in (16, 24):
        parts = [net.conv(x, width, 1), net.conv(net.conv(x, width, 1), 2 * width), net.conv(net.conv(x, 16, 1), 16, 5)]
        x = net.concat(*parts, net.conv(net.pool(x, 3, 1, 1), 16, 1))
    return net.logits(x)


def fire(seed, shape):
    net = Net(seed, shape)
    x = net.conv("x", 32, 3, 2)
    for width in (16, 32):
        s = net.conv(net.pool(x, 3, 2), width, 1)
        x = net.concat(net.conv(s, 2 * width, 1), net.conv(s, 2 * width))
    return net.logits(x)


def dense(seed, shape):
    net = Net(seed, shape)
    x = net.conv("x", 32, 3, 2)
    for _ in range(2):
        for _ in range(2):
            x = net.concat(x, net.conv(net.conv(x, 48, 1), 16))
        x = net.pool(net.conv(x, 32, 1), 2, 2, kind="AveragePool")
    return net.logits(x)


def gated(seed, shape):
    return inverted(seed, shape, "silu")


def dilated(seed, shape):
    net = Net(seed, shape)
    x = net.conv("x", 24)
    for dilation in (1, 2, 4):
        x = net.op("Relu", net.add(net.conv(x, 24, dilation=dilation, activation=None), x))
    return net.logits(x)


def normalized(seed, shape, size=5):
    net, pixels = Net(seed, shape), shape[2] // 2
    x = net.norm(net.conv("x", 24, 7, 2), size, pixels)
    x = net.pool(net.norm(net.conv(net.conv(x, 24, 1), 40), 3, pixels, beta=1.5), 3, 2)
    return net.logits(net.conv(x, 32, 1, activation=None))


def leaky(seed, shape):
    net = Net(seed, shape)
    x = net.conv("x", 16, 3, 2, activation="LeakyRelu")
    x = net.conv(x, 32, 3, 2, activation="HardSwish")
    return net.logits(net.conv(x, 64, 1, activation="Tanh"))


def pictures(seed: int, shape) -> np.ndarray:
    """Patches of one colour, and noise."""
    random = np.random.default_rng(seed)
    patches = random.standard_normal((*shape[:2], shape[2] // 8 + 1, shape[3] // 8 + 1)).repeat(8, 2).repeat(8, 3)
    return (patches[:, :, : shape[2], : shape[3]] + random.standard_normal(shape) / 2).astype(np.float32)


def saturates() -> bool:
    """Whether onnxruntime's sums of two products of bytes are cut to 16 bits here: x86 processors without VNNI."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx2" in flags and "vnni" not in flags


def quantize(model, shape, path, **options) -> None:
    """Write the model in 8 bits, calibrated on two batches of pictures; weights have 7 where onnxruntime would cut."""
    import onnx
    from onnxruntime import quantization as tool

    class Reader(tool.CalibrationDataReader):
        left = iter([{"x": pictures(seed, shape)} for seed in (1, 2)])

        def get_next(self):
            return next(self.left, None)

    onnx.save(model, f"{path}.float")
    given = {"per_channel": True, "activation_type": tool.QuantType.QUInt8, "weight_type": tool.QuantType.QInt8}
    given["reduce_range"] = saturates()
    logging.disable(logging.WARNING)
    try:
        tool.quantize_static(
            f"{path}.float", path, Reader(), **{"quant_format": tool.QuantFormat.QDQ} | given | options
        )
    finally:
        logging.disable(logging.NOTSET)


def as_onnxruntime(path: str, seeds: range, shape) -> tuple[list[str], list[str]]:
    """The file's top-1 on every picture is onnxruntime's, and its logits are within one step of their scale at 99.9 %;
    no layer leaves the integers. Returns the names of layers, and the operators of the file in ONNX's words."""
    import onnxruntime
    from onnx import numpy_helper

    from convdispatch.onnx import load

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    net, apart = load(path), []
    graph = net.model.graph
    last = next(each for each in graph.node if each.output[0] == graph.output[0].name)
    step = next(numpy_helper.to_array(each) for each in graph.initializer if each.name == last.input[1])
    for seed in seeds:
        x = pictures(seed, shape)
        have, want = net(x), session.run(None, {"x": x})[0]
        assert have.argmax() == want.argmax()
        apart.append(np.abs(have - want) / step)
    assert np.mean(np.concatenate(apart) < 1.001) >= 0.999
    names = [layer.name for layer in net.latest.layers]
    assert not {"convolution", "matmul"} & set(names)
    return names, [each.op_type for each in graph.node]
