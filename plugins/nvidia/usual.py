"""The usual tiles of each kind of problem, the most usual first: a training step needs few programs if its layers
share tiles. ``tests/support/usual_tiles.py`` chose them for drawn layers and writes this file.
"""

from __future__ import annotations

import functools

USUAL: dict[str, str] = {
    "mma bfloat2 nchw": """
        weights:64x64x2x2x32x3+ data:128x32x4x1x32x3 data:64x32x2x1x32x3+ data:32x32x1x1x32x3 data:128x32x4x1x32x3+
        data:64x64x2x2x32x3 weights:64x64x2x2x32x3 data:64x16x4x1x32x3+ data:64x64x2x2x32x3+ stacked:64x32x2x1x32x2
        data:64x32x2x1x32x3 weights:64x128x2x4x32x3+ stacked:64x64x2x2x32x3 data:32x32x1x1x32x3+
        data:128x64x2x2x32x2 data:64x16x4x1x32x3
    """,
    "mma bfloat2 nhwc": """
        weights:64x64x2x2x32x3+ data:128x32x4x1x32x3 data:64x32x2x1x32x3+ data:32x32x1x1x32x3 data:64x64x2x2x32x3
        data:128x32x4x1x32x3+ weights:64x64x2x2x32x3 data:64x16x4x1x32x3+ data:64x64x2x2x32x3+ data:64x32x2x1x32x3
        weights:64x128x2x4x32x3+ data:128x128x2x4x32x2 data:32x32x1x1x32x3+ data:64x16x4x1x32x3 data:128x64x2x2x32x3
        data:128x64x2x2x32x3+
    """,
    "mma half1 nchw": """
        weights:64x64x2x2x32x3+ data:64x32x2x1x32x3+ data:128x64x2x2x32x3 data:64x32x2x1x32x3 data:128x64x2x2x32x3+
        weights:64x64x2x2x32x3 weights:128x128x2x4x32x3+ data:64x16x4x1x32x3+ stacked:32x32x1x1x32x3
        stacked:128x64x2x2x32x3 data:128x32x4x1x32x3 data:32x32x1x1x32x3 data:64x64x2x2x32x3+ data:128x32x4x1x32x3+
        weights:64x128x2x4x32x3+ data:32x32x1x1x32x3+
    """,
    "mma half1 nhwc": """
        weights:64x64x2x2x32x3+ data:64x32x2x1x32x3 data:64x32x2x1x32x3+ data:128x64x2x2x32x3 weights:64x64x2x2x32x3
        data:128x64x2x2x32x3+ weights:128x128x2x4x32x3+ data:64x16x4x1x32x3+ data:128x32x4x1x32x3
        data:32x32x1x1x32x3 data:64x64x2x2x32x3+ data:64x64x2x2x32x3 data:64x16x4x1x32x3 weights:64x128x2x4x32x3+
        data:32x32x1x1x32x3+ data:128x32x4x1x32x3+
    """,
    "mma native nchw": """
        weights:64x64x2x2x32x3+ data:128x64x2x2x32x3 data:64x32x2x1x32x3+ data:64x32x2x1x32x3 data:128x64x2x2x32x3+
        data:64x16x4x1x32x3+ weights:128x128x2x4x32x3+ weights:64x64x2x2x32x3 data:32x32x1x1x32x3
        stacked:64x32x2x1x32x3 data:128x32x4x1x32x3 stacked:128x64x2x2x32x3 data:64x64x2x2x32x3+
        weights:64x128x2x4x32x3+ data:32x32x1x1x32x3+ data:64x64x2x2x32x3
    """,
    "mma native nhwc": """
        weights:64x64x2x2x32x3+ data:64x32x2x1x32x3 data:32x32x1x1x32x3+ data:128x64x2x2x32x3 data:64x64x2x2x32x3
        weights:128x128x2x4x32x3+ data:64x64x2x2x32x3+ weights:64x64x2x2x32x3 data:64x16x4x1x32x3+
        data:64x16x4x1x32x3 data:128x64x2x2x32x3+ data:128x32x4x1x32x3 data:32x32x1x1x32x3 data:64x32x2x1x32x3+
        weights:64x128x2x4x32x3+ data:128x128x2x4x32x3
    """,
    "tma bwd_data 2": """
        64x64x64x7x1x64x1x0 64x64x64x7x1x64x1x0+ 192x64x64x6x1x64x1x0 256x128x64x4x1x64x1x0 256x128x32x8x1x64x1x0
        192x64x32x13x1x64x1x0 128x64x64x7x1x64x1x0 128x192x32x10x1x64x1x0 192x64x64x6x1x64x1x0+ 64x64x32x14x1x64x1x0
        256x64x32x10x1x64x1x0 192x192x32x8x1x64x1x0 128x64x64x3x2x64x1x0 192x64x32x6x2x64x1x0 128x128x64x6x1x64x1x0+
        128x128x64x6x1x64x1x0 64x64x32x14x1x64x1x0+ 128x256x32x9x1x64x1x0 192x192x64x4x1x64x1x0
        128x128x32x13x1x64x1x0 256x64x64x5x1x64x1x0 64x192x32x13x1x64x1x0 128x128x32x6x2x64x1x0
        128x64x64x7x1x64x1x0+
    """,
    "tma bwd_data 4": """
        64x32x32x7x1x64x1x0 192x32x32x7x1x64x1x0 64x32x32x7x1x64x1x0+ 192x160x32x4x1x64x1x0 128x64x32x7x1x64x1x0
        128x128x32x6x1x64x1x0 64x64x32x7x1x64x1x0 256x128x16x8x1x64x1x0 128x64x32x7x1x64x1x0+ 192x96x32x5x1x64x1x0
        192x32x32x7x1x64x1x0+ 192x64x32x6x1x64x1x0 64x160x32x7x1x64x1x0 64x32x16x14x1x64x1x0+ 128x96x32x7x1x64x1x0+
        256x32x32x5x1x64x1x0 256x96x16x9x1x64x1x0 128x96x32x7x1x64x1x0 256x128x32x4x1x64x1x0 256x64x32x5x1x64x1x0
        64x96x32x7x1x64x1x0 256x64x32x5x1x64x1x0+ 256x128x32x4x1x64x1x0+ 256x32x16x11x1x64x1x0
    """,
    "tma bwd_weights 2": """
        64x64x64x7x1x64x1x0+ 64x64x64x7x1x64x1x0 64x192x64x6x1x64x1x0+ 128x192x64x5x1x64x1x0+ 64x96x64x7x1x32x1x0+
        64x256x64x5x1x64x1x0+ 128x64x64x7x1x64x1x0 64x32x64x7x1x32x1x0+ 192x96x64x5x1x32x1x0+ 64x32x64x7x1x32x1x0
        256x96x64x4x1x32x1x0+ 128x128x64x6x1x64x1x0 192x128x64x5x1x64x1x0 64x256x64x5x1x64x1x0 128x224x64x4x1x32x1x0
        64x128x64x7x1x64x1x0 64x224x64x6x1x32x1x0+ 64x64x64x7x1x32x1x0 128x64x64x7x1x32x1x0+ 128x224x64x4x1x32x1x0+
        64x128x64x7x1x64x1x0+ 128x128x64x6x1x64x1x0+ 192x96x64x5x1x32x1x0 64x160x64x7x1x32x1x0
    """,
    "tma fwd 2": """
        64x32x64x7x1x64x1x0+ 64x32x64x7x1x64x1x0 192x32x64x7x1x64x1x0 192x128x64x5x1x64x1x0 128x64x64x7x1x64x1x0+
        192x64x32x13x1x64x1x0 64x64x32x14x1x64x1x0 64x32x32x14x1x64x1x0 128x96x32x14x1x64x1x32 64x96x64x7x1x64x1x0+
        256x32x32x11x1x64x1x0 256x96x64x4x1x64x1x0 128x96x64x7x1x64x1x0 256x32x64x5x1x64x1x0 192x160x32x9x1x64x1x0
        128x128x32x13x1x64x1x0 128x160x64x6x1x64x1x0 256x64x64x5x1x64x1x0 64x96x32x14x1x64x1x0 64x128x64x7x1x64x1x0
        256x128x64x4x1x64x1x0 192x64x32x6x2x64x1x0 128x32x64x7x1x64x1x0 64x32x32x14x1x64x1x0+
    """,
    "tma fwd 4": """
        64x32x32x7x1x64x1x0 64x32x32x7x1x64x1x0+ 192x32x32x7x1x64x1x0 128x128x32x6x1x64x1x0t 64x96x32x7x1x64x1x0+
        128x96x32x7x1x64x1x0 64x64x32x7x1x64x1x0 64x96x32x7x1x64x1x0 256x64x32x5x1x64x1x0 128x160x32x5x1x64x1x0
        192x32x16x14x1x64x1x16 256x96x32x4x1x64x1x0 256x32x32x5x1x64x1x0 256x128x16x8x1x64x1x0 64x64x32x7x1x64x1x0+
        192x128x32x5x1x64x1x0 128x32x32x7x1x64x1x0+ 128x64x32x7x1x64x1x0 64x32x16x14x1x64x1x0 192x64x32x6x1x64x1x0
        128x32x32x7x1x64x1x0 64x32x16x14x1x64x1x0+ 256x128x32x4x1x64x1x0 128x224x16x9x1x64x1x0
    """,
    "wgmma bfloat2 nchw": """
        weights:64x256x1x2x32x5+ weights:64x64x1x1x32x6+ data:64x32x1x1x32x6 weights:128x192x2x1x32x4+
        data:64x32x1x1x64x4+ data:128x128x2x1x32x5 data:64x64x1x1x32x6 weights:64x128x1x1x32x5+ data:64x64x1x1x64x4+
        data:64x16x1x1x64x4 weights:64x64x1x1x32x6 data:64x16x1x1x64x4+ data:128x144x2x1x32x5 data:64x128x1x1x64x4
        data:64x32x1x1x64x4 data:64x128x1x1x64x4+ data:64x48x1x1x64x4 data:64x160x1x1x64x4 data:64x8x1x1x32x6+
        weights:64x192x1x1x32x5+ data:128x112x2x1x32x5 data:64x96x1x1x64x4+ data:64x40x1x1x64x4
        weights:64x256x1x2x32x5 data:128x136x2x1x32x5 data:64x152x1x1x64x4 data:64x32x1x1x32x6+
        weights:64x192x1x1x32x5 data:128x88x2x1x32x5 stacked:128x128x2x1x32x5 data:64x48x1x1x64x4+
        data:128x192x2x1x32x4 data:128x168x2x1x32x5 data:64x104x1x1x64x4 data:64x24x1x1x64x4+ data:64x136x1x1x64x4+
        data:128x96x2x1x32x5 data:64x24x1x1x32x6 data:128x176x2x1x32x4 weights:128x192x2x1x32x4 data:64x88x1x1x64x4+
        data:128x8x2x1x64x4+ stacked:64x64x1x1x32x4 data:64x160x1x1x64x4+ data:128x120x2x1x32x5 data:64x40x1x1x64x4+
        data:128x64x2x1x64x4 data:128x80x2x1x32x5 data:192x104x3x1x32x4 data:64x152x1x1x64x4+ data:128x184x2x1x32x4
        data:64x144x1x1x64x4 data:64x80x1x1x64x4 data:64x64x1x1x32x6+ stacked:64x128x1x1x64x4 stacked:64x64x1x1x64x4
        data:64x24x1x1x64x3 data:192x64x3x1x32x5 data:64x8x1x1x64x4 data:64x104x1x1x64x4+ data:64x112x1x1x64x4+
        data:64x56x1x1x32x6 data:128x192x2x1x32x4+ data:64x16x1x1x32x6+
    """,
    "wgmma bfloat2 nhwc": """
        weights:64x256x1x2x32x5+ weights:64x64x1x1x32x6+ data:64x32x1x1x64x4 weights:128x192x2x1x32x4+
        data:64x32x1x1x64x4+ data:64x128x1x1x64x4 data:64x16x1x1x64x4 weights:64x128x1x1x32x5+ data:64x64x1x1x64x4
        data:64x64x1x1x64x4+ weights:64x64x1x1x32x6 data:64x16x1x1x64x4+ data:64x144x1x1x64x4 data:192x64x3x1x32x5
        data:64x160x1x1x64x4 data:64x24x1x1x32x6 data:64x8x1x1x32x6+ data:128x112x2x1x32x5 weights:64x192x1x1x32x5+
        data:64x48x1x1x64x4 data:128x120x2x1x32x5 data:64x128x1x1x64x4+ data:64x40x1x1x64x4 data:64x136x1x1x64x4
        data:64x96x1x1x64x4+ weights:64x256x1x2x32x5 data:64x24x1x1x32x6+ weights:64x192x1x1x32x5
        data:128x192x2x1x32x4 data:128x64x2x1x32x5 data:128x176x2x1x32x4 data:64x104x1x1x64x4 data:128x88x2x1x32x5
        data:64x152x1x1x64x4 data:64x112x1x1x64x4+ data:64x32x1x1x64x3 data:64x48x1x1x64x4+ data:64x80x1x1x64x4
        data:128x8x2x1x64x4+ data:64x104x1x1x64x4+ data:128x24x2x1x64x4+ weights:128x192x2x1x32x4
        data:128x168x2x1x32x5 data:64x64x1x1x32x6 data:128x96x2x1x32x5 data:192x48x3x1x32x5 data:64x40x1x1x64x4+
        data:128x56x2x1x32x5 data:64x8x1x1x64x4 data:128x104x2x1x32x5 data:64x160x1x1x64x4+ data:128x72x2x1x64x4
        data:192x80x3x1x32x4 data:64x144x1x1x64x4+ data:64x88x1x1x64x4+ data:64x16x1x1x32x6 data:128x144x2x1x32x5
        data:64x96x1x1x64x4 data:64x152x1x1x64x4+ data:64x32x1x1x32x6+ data:64x24x1x1x64x3 data:64x64x1x1x32x6+
        data:128x184x2x1x32x4 data:64x136x1x1x64x4+
    """,
    "wgmma half1 nchw": """
        weights:64x192x1x1x32x6+ data:64x64x1x1x64x4 data:64x64x1x1x64x4+ data:64x16x1x1x64x4+ data:128x16x2x1x64x4
        weights:64x64x1x1x32x6+ weights:128x256x2x1x32x6+ weights:64x128x1x1x32x6 data:128x64x2x1x64x4
        stacked:64x64x1x1x64x4 data:256x128x4x1x64x4 weights:64x256x1x1x32x6+ data:64x32x1x1x64x4
        data:64x8x1x1x32x6+ data:64x32x1x1x64x4+ data:64x24x1x1x64x4 data:128x96x2x1x64x4 data:128x80x2x1x64x4
        data:128x48x2x1x64x4+ data:64x8x1x1x64x4 data:64x64x1x1x32x6 weights:64x192x1x1x32x6 data:256x112x4x1x64x4
        data:128x48x2x1x64x4 data:192x128x3x1x64x4+ stacked:64x64x1x1x32x5 data:128x32x2x1x64x4 data:64x40x1x1x64x4+
        data:128x88x2x1x64x4 weights:64x64x1x1x32x6 weights:128x256x2x1x32x6 data:192x120x3x1x64x4
        data:64x40x1x1x64x4 data:256x104x4x1x64x4+ data:128x32x2x1x64x4+ data:64x16x1x1x32x6 data:256x8x4x1x32x6+
        data:128x72x2x1x64x4 weights:128x192x2x1x32x6+ stacked:256x128x4x1x64x4 data:128x80x2x1x64x4+
        data:64x24x1x1x64x4+ data:128x200x2x1x64x4 data:192x128x3x1x64x4 data:64x72x1x1x64x4+ stacked:64x24x1x1x64x4
        data:64x8x1x1x64x4+ weights:64x128x1x2x32x6+ data:128x64x2x1x64x4+ data:128x240x2x1x64x4
        data:128x208x2x1x32x6 data:192x16x3x1x64x4+ stacked:128x64x2x1x64x4 data:128x96x2x1x64x4+
        data:128x216x2x1x64x4 data:64x112x1x1x64x4+ data:64x32x1x1x32x6 data:128x256x2x1x64x4 data:128x248x2x1x64x4
        data:128x224x2x1x64x4 data:128x232x2x1x64x4 data:128x56x2x1x64x4 data:64x64x1x1x32x5
        weights:128x192x2x1x32x6
    """,
    "wgmma half1 nhwc": """
        weights:64x192x1x1x32x6+ data:64x64x1x1x64x4 data:64x64x1x1x64x4+ data:64x16x1x1x64x4 data:64x16x1x1x64x4+
        weights:64x64x1x1x32x6+ weights:128x256x2x1x32x6+ weights:64x128x1x1x32x6 data:256x128x4x1x64x4
        data:128x64x2x1x64x4 data:64x32x1x1x64x4 weights:64x256x1x1x32x6+ data:64x24x1x1x64x4 data:64x32x1x1x64x4+
        data:64x8x1x1x32x6+ data:256x128x4x1x32x5 data:128x80x2x1x64x4 data:192x16x3x1x64x4 data:256x112x4x1x64x4
        data:128x48x2x1x64x4 data:64x40x1x1x64x4 data:128x96x2x1x64x4 weights:64x192x1x1x32x6 data:64x72x1x1x64x4+
        data:64x8x1x1x64x4 data:192x128x3x1x64x4 data:64x64x1x1x32x6 data:128x32x2x1x64x4 data:128x48x2x1x64x4+
        data:192x128x3x1x64x4+ weights:64x64x1x1x32x6 weights:128x256x2x1x32x6 data:128x144x2x1x64x4
        data:64x40x1x1x64x4+ data:128x88x2x1x64x4 data:128x32x2x1x64x4+ data:256x8x4x1x32x6+ data:192x104x3x1x32x4
        data:128x208x2x1x32x6 weights:128x192x2x1x32x6+ data:128x64x2x1x64x4+ data:128x152x2x1x64x4
        data:128x80x2x1x64x4+ data:64x24x1x1x64x4+ data:192x120x3x1x64x4 data:128x224x2x1x64x4
        weights:64x128x1x2x32x6+ data:128x72x2x1x64x4 data:64x16x1x1x32x6 data:64x8x1x1x64x4+ data:64x96x1x1x32x5
        data:128x248x2x1x64x4 data:128x216x2x1x64x4 data:128x240x2x1x64x4 data:128x96x2x1x64x4+ data:64x56x1x1x64x4+
        data:192x112x3x1x64x4 data:192x104x3x1x64x4+ data:128x56x2x1x64x4 data:256x120x4x1x32x6
        data:256x112x4x1x32x5 data:128x256x2x1x64x4 data:64x112x1x1x64x4+ weights:128x192x2x1x32x6
    """,
    "wgmma native nchw": """
        weights:64x64x1x1x32x6+ weights:64x256x1x1x32x6+ data:64x64x1x1x32x6 data:64x64x1x1x64x4+
        data:64x16x1x1x64x4+ data:64x16x1x1x32x6 weights:128x256x2x1x32x5+ data:256x128x4x1x64x4
        weights:64x64x1x1x32x6 data:64x32x1x1x64x4 data:128x64x2x1x64x4 data:64x32x1x1x64x4+ data:64x64x1x1x64x4
        data:64x8x1x1x32x6+ data:128x16x2x1x64x4 data:192x128x3x1x64x4 data:64x24x1x1x64x4+ stacked:64x64x1x1x64x4
        data:256x112x4x1x64x4 weights:64x192x1x1x32x6 data:128x48x2x1x64x4+ data:64x24x1x1x64x4
        weights:64x128x1x2x32x6+ data:128x96x2x1x64x4 stacked:256x128x4x1x64x4 data:256x80x4x1x64x4
        data:128x48x2x1x64x4 data:64x32x1x1x32x6 data:256x120x4x1x64x4 data:64x8x1x1x64x4 data:128x32x2x1x64x4
        data:128x80x2x1x64x4+ data:64x8x1x1x64x4+ data:64x56x1x1x64x4+ data:256x104x4x1x64x4
        weights:64x192x1x1x32x6+ weights:128x192x2x1x32x6+ data:128x144x2x1x32x6 data:256x88x4x1x64x4
        data:128x64x2x1x64x4+ data:64x24x1x1x32x6+ weights:128x192x2x1x32x6 data:64x40x1x1x32x6
        weights:64x256x1x1x32x6 weights:128x256x2x1x32x6 stacked:64x32x1x1x32x6 data:192x8x3x1x32x6+
        data:128x32x2x1x64x4+ data:128x224x2x1x64x4 data:192x16x3x1x64x4+ data:64x72x1x1x64x4 data:128x256x2x1x64x4
        data:128x96x2x1x64x4+ stacked:256x64x4x1x32x6 data:128x80x2x1x64x4 data:128x248x2x1x64x4
        stacked:192x112x3x1x32x6 data:128x40x2x1x64x4+ data:192x128x3x1x32x6 data:64x48x1x1x32x6
        data:128x72x2x1x64x4+ data:128x40x2x1x64x4 data:128x240x2x1x64x4 data:192x104x3x1x32x6
    """,
    "wgmma native nhwc": """
        weights:64x64x1x1x32x6+ weights:64x256x1x1x32x6+ data:64x64x1x1x64x4 data:64x64x1x1x64x4+
        data:64x16x1x1x32x6 data:64x16x1x1x64x4+ weights:128x256x2x1x32x5+ weights:64x64x1x1x32x6
        data:256x128x4x1x64x4 data:64x32x1x1x64x4 data:128x64x2x1x64x4 data:64x32x1x1x64x4+ data:64x8x1x1x32x6+
        data:128x16x2x1x64x4 data:256x96x4x1x64x4 weights:128x192x2x1x32x6+ data:64x24x1x1x32x6 data:64x64x1x1x32x6
        data:192x128x3x1x64x4 weights:64x192x1x1x32x6+ data:256x112x4x1x64x4 data:128x64x2x1x64x4+
        data:64x40x1x1x64x4 data:64x24x1x1x64x4+ weights:64x192x1x1x32x6 data:128x80x2x1x64x4 data:128x48x2x1x64x4
        weights:64x128x1x2x32x6+ data:64x8x1x1x64x4+ data:256x128x4x1x32x5 data:128x32x2x1x64x4
        data:128x144x2x1x32x6 data:128x48x2x1x64x4+ data:64x24x1x1x32x6+ data:64x32x1x1x64x3 weights:64x64x1x1x64x4+
        data:64x8x1x1x64x4 weights:128x192x2x1x32x6 data:128x136x2x1x64x4 data:128x32x2x1x64x4+ data:64x24x1x1x64x4
        data:192x128x3x1x64x4+ data:256x88x4x1x64x4 data:64x56x1x1x64x4 data:192x72x3x1x64x4 weights:64x256x1x1x32x6
        weights:128x256x2x1x32x6 data:256x104x4x1x64x4 data:128x152x2x1x64x4 data:64x96x1x1x64x4
        data:192x64x3x1x32x6 data:192x16x3x1x64x4+ data:192x8x3x1x32x6+ data:128x256x2x1x64x4 data:192x120x3x1x64x4
        data:64x40x1x1x64x4+ data:192x112x3x1x32x4 data:64x48x1x1x64x3 data:64x112x1x1x64x4+ data:128x80x2x1x64x4+
        data:64x16x1x1x64x4 data:128x128x2x1x32x4 data:192x112x3x1x64x4 data:128x56x2x1x64x4
    """,
}


@functools.cache
def usual_tiles(kind: str) -> dict[str, int]:
    """The places of a kind's usual tiles by their names; empty for a kind without any."""
    return {name: place for place, name in enumerate(USUAL.get(kind, "").split())}
