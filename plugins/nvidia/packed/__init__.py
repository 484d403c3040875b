"""nvidia.wgmma and nvidia.mma: tensor cores on planes of 16-bit numbers, packed channels last.

- ``choice``: which tiles are tried, and in which order.
- ``plan``: the shared product with this plugin's instructions.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: a problem under a tile of these instructions.
"""
