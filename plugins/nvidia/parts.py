"""Text of ``parts.cl.mako``: work groups of one launch that add the parts of a sum."""

from __future__ import annotations

import hashlib
from typing import Any

from convdispatch.api import kernel_text

MOST_PARTS = 255
"""That a state counts."""
STATE = 8
"""Bytes of a tile's state."""


def parts_text(tiling: Any, split: int, blocks: int) -> str:
    """For tiles of ``blocks`` blocks; ``tiling``, by its repr, tells the states of this kernel from others."""
    magic = int.from_bytes(hashlib.blake2b(repr(tiling).encode(), digest_size=6).digest(), "big")
    return kernel_text(__package__, "parts.cl.mako", magic=magic, split=split, blocks=blocks)
