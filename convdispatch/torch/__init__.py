"""The front end for PyTorch: runs unchanged models by convdispatch, on the CPU, on CUDA devices, and on the device
"opencl", which PyTorch itself does not support.

``with enable(): model(x)`` replaces eager convolutions, ``torch.compile(model, backend="convdispatch")`` computes whole
graphs. A new option of ``enable`` goes to ``settings``, a new private name of PyTorch's to ``requirements``. Inside,
``import torch`` is PyTorch.

- ``captures``: a CUDA graph's capture begins once everything pending is there.
- ``compile``: operators for ``torch.compile`` and ``torch.export``, and the back end.
- ``cores``: PyTorch's threads sleep between its operators.
- ``counting``: counts which calls are ours and why others are PyTorch's.
- ``data_reads``: who reads ``.data`` of a parameter may write through it.
- ``device``: PyTorch's device "opencl".
- ``dispatch``: convolutions in PyTorch's dispatcher become cached calls.
- ``dynamo_frames``: what Dynamo must not compile by itself.
- ``eager``: one operator call at a time.
- ``explaining``: ``explain`` of a model.
- ``fake_modes``: what a capture holds of the model's tensors after it has ended.
- ``functional``: ``conv1d`` to ``conv_transpose3d`` with PyTorch's signatures.
- ``geometry``: arguments of ``aten::convolution`` as problems.
- ``graph``: graphs of ATen operators become forms, or inductor's code with our convolutions.
- ``modules``: layers that ``convert`` puts in.
- ``ranks``: processes of one training take the same decisions.
- ``requirements``: what this package needs of PyTorch.
- ``sampled``: whether a tensor still holds its values, by a sample.
- ``settings``: what holds for a call.
- ``warmup``: ``prepare`` and ``ready``.
- ``weights``: which weights are constant, and until when.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..device.garbage import collection_put_off
from .requirements import require

require()

with collection_put_off():  # imported after require(), which checks PyTorch
    from .cores import share_cores
    from .counting import counters, reset_counters
    from .dispatch.routing import disable, enable
    from .functional import (
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
    )
    from .graph.conversion import convert
    from .graph.report import Fusion, fusion
    from .warmup import prepare, ready

if TYPE_CHECKING:
    from .device.register import register_device
    from .explaining import explain

__all__ = [
    "Fusion",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convert",
    "counters",
    "disable",
    "enable",
    "explain",
    "fusion",
    "prepare",
    "ready",
    "register_device",
    "reset_counters",
    "share_cores",
]


_HOMES = {"explain": ".explaining", "register_device": ".device.register"}
"""Modules of the public names that are imported at first use: a first training step does not need them, and the device
"opencl" imports all of ``nn``."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return value
