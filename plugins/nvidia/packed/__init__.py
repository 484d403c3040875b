"""nvidia.wgmma and nvidia.mma: tensor cores on planes of 16-bit numbers, packed in NHWC.

- ``choice``: which tiles are tried, and their predicted time.
- ``plan``: the product of ``convdispatch.api.matrix`` with this plugin's instructions.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: the numbers of a problem under a tile of these instructions.
"""
