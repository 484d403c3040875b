"""nvidia.wgmma and nvidia.mma: tensor cores on planes of 16-bit numbers, packed channels last.

- ``choice``: which tiles are tried, and in which order.
- ``plan``: scales, packing, the product and the sum of its parts.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: tiles, packed tensors, and the numbers of a problem under a tile.
"""
