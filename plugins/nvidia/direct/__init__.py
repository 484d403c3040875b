"""nvidia.direct: 1x1 kernels as products of matrices that are in memory already, split in registers.

- ``choice``: which tiles are tried, and in which order.
- ``plan``: the product and the sum of its parts, as launches.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: the operands as matrices, and what a tile makes of them.
"""
