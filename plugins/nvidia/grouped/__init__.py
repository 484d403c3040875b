"""nvidia.grouped: convolutions of 16-bit tensors over slabs of 32 channels.

- ``choice``: which tiles are tried, and their predicted time.
- ``solver``: what it refuses and offers; its plans: one launch, or sums of parts and a launch that adds them.
- ``tiling``: slabs, regions of output pixels, and the numbers of a problem under a tile.
"""
