"""nvidia.grouped: slabs of 32 channels of 16-bit tensors, read as fragments.

- ``choice``: which tiles are tried, and in which order.
- ``plan``: one launch, or sums of parts and a launch that adds them.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: slabs, regions of output pixels, and what a tile makes of them.
"""
