"""nvidia.direct: 1x1 kernels as products of matrices that are read in place and split in registers.

- ``choice``: which tiles are tried, and their predicted time.
- ``solver``: what it refuses and offers; its plan: what of a problem is compiled into the product's program, the
  numbers that are its arguments, and the sum of parts.
- ``tiling``: the operands as matrices, and the numbers of a problem under a tile.
"""
