"""The usual tiles of depthwise layers, the most usual first: a training step needs few programs if its layers share
tiles. ``tests/support/usual_tiles.py`` chose them for drawn layers and writes this file.
"""

from __future__ import annotations

import functools

USUAL: dict[str, str] = {
    "depthwise bwd_data nchw 2": """
        1x7x2x1 1x7x1x1 1x4x2x1 1x8x2x1 1x2x1x1 1x2x2x1 1x8x1x1 1x7x2x4 1x1x2x1 1x8x2x4 1x8x1x4
    """,
    "depthwise bwd_data nchw 4": """
        1x7x2x1 1x7x1x1 1x2x2x1 1x1x2x1 1x4x2x1 1x7x2x4 1x8x2x1 1x8x1x1 1x8x1x4 1x8x2x4 1x4x1x1
    """,
    "depthwise bwd_data nhwc 2": """
        2x4x7x1 4x2x2x1 2x2x2x1 2x2x7x1 2x2x4x1 1x4x8x1 2x2x7x4 4x2x4x1 4x1x1x1 1x1x2x1 2x1x1x1 2x4x8x4
    """,
    "depthwise bwd_data nhwc 4": """
        2x4x7x1 1x2x7x1 4x1x2x1 1x4x7x1 2x2x7x4 1x1x7x1 4x2x2x1 1x1x2x1 2x4x8x4 4x1x1x1 4x1x7x1 1x4x8x1
    """,
    "depthwise bwd_weights nchw 2": """
        1x7x2x1+ 1x8x2x1 1x8x2x1+ 1x4x1x1+ 1x4x2x1+ 1x8x1x1+ 1x7x2x1 1x2x2x1+ 1x7x1x1+
    """,
    "depthwise bwd_weights nchw 4": """
        1x8x2x1+ 1x8x2x1 1x8x1x1+ 1x4x1x1+ 1x7x2x1+ 1x7x1x1+ 1x7x2x1
    """,
    "depthwise bwd_weights nhwc 2": """
        2x4x2x1+ 2x4x4x1+ 1x4x8x1+ 2x8x4x1+ 2x2x2x1+ 2x1x7x1+ 1x2x2x1+ 2x4x7x1+ 2x2x7x1+ 1x4x7x1+ 4x4x4x1+ 2x7x7x1+
    """,
    "depthwise bwd_weights nhwc 4": """
        1x4x7x1+ 1x2x4x1+ 1x4x4x1+ 1x4x8x1+ 2x7x4x1+ 1x2x2x1+ 1x8x8x1+ 1x2x7x1+ 2x8x4x1+ 2x2x4x1+ 2x4x4x1+ 4x4x4x1+
    """,
    "depthwise fwd nchw 2": """
        1x7x2x1 1x4x2x1 1x8x2x1 1x1x2x1 1x2x2x1 1x7x1x1 1x8x1x1 1x8x2x4 1x7x2x4
    """,
    "depthwise fwd nchw 4": """
        1x7x2x1 1x4x1x1 1x4x2x1 1x1x2x1 1x8x2x1 1x7x1x1 1x8x1x1 1x2x2x1 1x8x2x4 1x7x2x4 1x8x1x4
    """,
    "depthwise fwd nhwc 2": """
        2x4x8x1 4x2x2x1 2x2x4x1 1x4x8x1 2x1x2x1 2x2x7x1 8x1x1x1 2x4x4x4 2x4x7x1 4x7x2x1 2x2x2x1 4x1x1x1
    """,
    "depthwise fwd nhwc 4": """
        2x4x7x1 1x2x7x1 1x4x7x1 4x1x2x1 4x2x4x4 1x1x2x1 4x1x1x1 1x1x7x1 4x1x4x1 1x1x4x1 2x4x8x4 2x4x8x1
    """,
}


@functools.cache
def usual_tiles(kind: str) -> dict[str, int]:
    """The places of a kind's usual tiles by their names; empty for a kind without any."""
    return {name: place for place, name in enumerate(USUAL.get(kind, "").split())}
