"""The header's part for plugins over matrix cores: the common matrix product, and descriptions of instructions.

Names load when first used, as the header's do.
"""

from __future__ import annotations

from .lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
