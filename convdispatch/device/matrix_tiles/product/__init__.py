"""The product on matrix cores of planes of 16-bit numbers, packed channels last, for any tile instruction.

- ``form``: what is compiled into programs that pack and multiply, and the numbers of a geometry, which are arguments.
- ``plan``: scales, packing, the product and the sum of its parts.
- ``tiling``: tiles, packed tensors, and the numbers of a problem under a tile.
"""
