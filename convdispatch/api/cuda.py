"""The header's part for plugins over CUDA's libraries: devices, memory and streams that OpenCL and CUDA share.

Names load when first used, as the header's do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..device.cuda.bridge import Bridge, bridge_of
    from ..device.cuda.stream import CudaStream
    from ..device.cuda.stream import address_of as stream_address
    from ..device.cuda_driver import cuda_of
    from ..device.cuda_driver import unavailable as cuda_unavailable
    from ..device.memory.allocator import cuda_address
    from ..device.runtime import cuda_devices

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
    "Bridge": ("..device.cuda.bridge", "Bridge"),
    "CudaStream": ("..device.cuda.stream", "CudaStream"),
    "stream_address": ("..device.cuda.stream", "address_of"),
    "bridge_of": ("..device.cuda.bridge", "bridge_of"),
    "cuda_address": ("..device.memory.allocator", "cuda_address"),
    "cuda_devices": ("..device.runtime", "cuda_devices"),
    "cuda_of": ("..device.cuda_driver", "cuda_of"),
    "cuda_unavailable": ("..device.cuda_driver", "unavailable"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOME[name]
    value = globals()[name] = getattr(importlib.import_module(module, __package__), there)
    return value
