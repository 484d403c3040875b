"""PyTorch's door: unchanged models on these engines, on the CPU, on CUDA devices, and on a device of OpenCL's alone.

``with enable(): model(x)`` is enough. ``routing`` sits in PyTorch's dispatcher, ``engine`` turns an operator's
arguments into kept calls, ``host`` and ``streams`` run them on PyTorch's own memory; ``operators``, ``functional``,
``modules`` are for ``torch.compile`` and ``torch.export``. A new option of ``enable`` goes to ``settings``, a new
private name of PyTorch's to ``requirements``. Inside, ``import torch`` is PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..device.garbage import collection_put_off
from .requirements import require

require()

with collection_put_off():  # PyTorch is asked for first
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
    from .explaining import explain, report

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
    "report",
    "reset_counters",
    "share_cores",
]


_HOMES = {"explain": ".explaining", "report": ".explaining", "register_device": ".device.register"}
"""Of what a first step does without; a device's tensors import all of ``nn``."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return value
