"""The header's part for plugins over CUDA's libraries: devices, memory and streams that OpenCL and CUDA share.

Names load when first used, as the header's do.
"""

from __future__ import annotations

from .lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
