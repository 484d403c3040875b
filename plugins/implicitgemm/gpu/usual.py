"""The usual tiles of depthwise layers, the most usual first: a training step needs few programs if its layers share
tiles. ``tests/support/usual_tiles.py`` chose them for drawn layers and writes this file.
"""

from __future__ import annotations

import functools

USUAL: dict[str, str] = {}


@functools.cache
def usual_tiles(kind: str) -> dict[str, int]:
    """The places of a kind's usual tiles by their names; empty for a kind without any."""
    return {name: place for place, name in enumerate(USUAL.get(kind, "").split())}
