"""The header's part for plugins over CUDA's libraries: devices, memory and streams that OpenCL and CUDA share.

Names load when first used, as the header's do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..device.bridge import Bridge, bridge_of
    from ..device.cuda import cuda_of
    from ..device.cuda import unavailable as cuda_unavailable
    from ..device.memory import cuda_address
    from ..device.runtime import cuda_devices
    from ..device.stream import CudaStream
    from ..device.stream import address_of as stream_address

__all__ = [
    "Bridge",
    "CudaStream",
    "bridge_of",
    "cuda_address",
    "cuda_devices",
    "cuda_of",
    "cuda_unavailable",
    "stream_address",
]

_HOME = {
    "Bridge": ("..device.bridge", "Bridge"),
    "CudaStream": ("..device.stream", "CudaStream"),
    "stream_address": ("..device.stream", "address_of"),
    "bridge_of": ("..device.bridge", "bridge_of"),
    "cuda_address": ("..device.memory", "cuda_address"),
    "cuda_devices": ("..device.runtime", "cuda_devices"),
    "cuda_of": ("..device.cuda", "cuda_of"),
    "cuda_unavailable": ("..device.cuda", "unavailable"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOME[name]
    value = globals()[name] = getattr(importlib.import_module(module, __package__), there)
    return value
