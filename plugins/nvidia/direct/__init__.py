"""nvidia.direct: 1x1 kernels as products of matrices that are read in place and split in registers.

- ``choice``: which tiles are tried, and their predicted time.
- ``form``: what of a problem is compiled into the product's program, and the numbers that are its arguments.
- ``solver``: what it refuses and offers, and its plan: the launches of the product and of the sum of its parts.
- ``tiling``: the operands as matrices, and the numbers of a problem under a tile.
"""
