"""PyTorch's door: unchanged models on these engines, on the CPU, on CUDA devices, and on a device of OpenCL's alone.

``with enable(): model(x)`` is enough. ``routing`` sits in PyTorch's dispatcher, ``engine`` turns an operator's
arguments into kept calls, ``host`` and ``streams`` run them on PyTorch's own memory; ``operators``, ``functional``,
``modules`` are for ``torch.compile`` and ``torch.export``. A new option of ``enable`` goes to ``settings``, a new
private name of PyTorch's to ``requirements``. Inside, ``import torch`` is PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .requirements import require

require()

from .cores import share_cores  # noqa: E402
from .counting import counters, reset_counters  # noqa: E402
from .dispatch.routing import disable, enable  # noqa: E402
from .explaining import explain, report  # noqa: E402
from .functional import (  # noqa: E402
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from .fusion.conversion import Fusion, convert, fusion  # noqa: E402
from .warmup import prepare  # noqa: E402 (PyTorch is asked for first)

if TYPE_CHECKING:
    from .device.register import register_device

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
    "register_device",
    "report",
    "reset_counters",
    "share_cores",
]


def __getattr__(name: str) -> Any:
    """``register_device``, when first asked for: its device's tensors import all of ``nn``."""
    if name != "register_device":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .device.register import register_device

    return register_device
