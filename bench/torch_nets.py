"""The nets of convdispatch.models as PyTorch modules, so that both sides of a comparison are the same net."""

from __future__ import annotations

import torch
from torch import nn as tnn

from convdispatch import nn
from convdispatch.models.classics import Fused
from convdispatch.models.efficientnet import EfficientNetLite0, InvertedBottleneck
from convdispatch.models.googlenet import Inception
from convdispatch.models.resnet import Bottleneck

__all__ = ["to_torch"]


_PARTS = (
    ("conv1", "bn1", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool", "flatten", "fc"),
    ("stem", "inceptions", "pool", "flatten", "dropout", "fc"),
    ("features", "flatten", "classifier"),
)
"""The parts of a net, in their order."""


class _Inception(tnn.Module):
    def __init__(self, branches: list[tnn.Module]) -> None:
        super().__init__()
        self.branches = tnn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _Plus(tnn.Module):
    def __init__(self, main: tnn.Module) -> None:
        super().__init__()
        self.main = main

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.main(x)


class _Bottleneck(tnn.Module):
    def __init__(self, main: tnn.Module, shortcut: tnn.Module) -> None:
        super().__init__()
        self.main, self.shortcut = main, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.main(x) + self.shortcut(x))


def _value(tensor: object) -> torch.Tensor:
    return torch.from_numpy(tensor.numpy())


def to_torch(module: nn.Module) -> tnn.Module:
    """The same computation, with copies of the parameters."""
    kind = type(module)
    if kind is nn.Sequential:
        return tnn.Sequential(*(to_torch(part) for part in module.layers))
    if kind is Inception:
        return _Inception([to_torch(b) for b in (module.branch1, module.branch2, module.branch3, module.branch4)])
    if kind is Bottleneck:
        last = module.bn3.options.pop("activation")
        parts = [to_torch(getattr(module, f"{name}{i}")) for i in (1, 2, 3) for name in ("conv", "bn")]
        module.bn3.options["activation"] = last
        return _Bottleneck(
            tnn.Sequential(*parts), tnn.Identity() if module.downsample is None else to_torch(module.downsample)
        )
    if kind is nn.Conv2d:
        o = module.options
        oc, icg, *kernel = module.weight.shape
        sided = isinstance(o["padding"], tuple) and isinstance(o["padding"][0], tuple)
        geometry = o["stride"], 0 if sided else o["padding"], o["dilation"], o["groups"]
        made = tnn.Conv2d(icg * o["groups"], oc, kernel, *geometry, module.bias is not None)
        made.weight.data = _value(module.weight)
        if module.bias is not None:
            made.bias.data = _value(module.bias)
        after = {None: [], "relu": [tnn.ReLU(inplace=True)], "relu6": [tnn.ReLU6(inplace=True)]}[o["activation"]]
        before = [tnn.ZeroPad2d([side for pair in reversed(o["padding"]) for side in pair])] if sided else []
        return tnn.Sequential(*before, made, *after) if before or after else made
    if kind is InvertedBottleneck:
        parts = [part for part in (module.expand, module.depthwise, module.project) if part is not None]
        main = tnn.Sequential(*map(to_torch, parts))
        return _Plus(main) if module.adds_input else main
    if kind is EfficientNetLite0:
        parts = [to_torch(part) for part in (module.stem, *module.blocks, module.head)]
        return tnn.Sequential(*parts, tnn.AdaptiveAvgPool2d(1), tnn.Flatten(), to_torch(module.classifier))
    if kind is nn.Linear:
        oc, ic = module.weight.shape
        made = tnn.Linear(ic, oc)
        made.weight.data, made.bias.data = _value(module.weight), _value(module.bias)
        return tnn.Sequential(made, tnn.ReLU(inplace=True)) if module.options["activation"] else made
    if kind is nn.BatchNorm2d:
        made = tnn.BatchNorm2d(module.weight.shape[0], eps=module.options["epsilon"])
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(made, name).data = _value(getattr(module, name))
        return tnn.Sequential(made, tnn.ReLU(inplace=True)) if module.options.get("activation") else made
    simple = {
        nn.MaxPool2d: lambda: tnn.MaxPool2d(
            module.kernel, module.stride, module.padding, ceil_mode=module.options.get("ceil_mode", False)
        ),
        nn.AvgPool2d: lambda: tnn.AvgPool2d(module.kernel, module.stride, module.padding),
        nn.AdaptiveAvgPool2d: lambda: tnn.AdaptiveAvgPool2d(module.size),
        nn.LRN: lambda: tnn.LocalResponseNorm(module.size, module.alpha, module.beta, module.k),
        Fused: tnn.Identity,
        nn.Flatten: tnn.Flatten,
        nn.Dropout: lambda: tnn.Dropout(module.p),
    }
    if kind in simple:
        return simple[kind]()
    (names,) = (names for names in _PARTS if hasattr(module, names[0]))
    return tnn.Sequential(*(to_torch(getattr(module, name)) for name in names))
