"""nvidia.int8: quantized convolutions on tensor cores; ``product.cl.mako`` explains the kernel.

- ``choice``: which tiles are tried, and their predicted time.
- ``plan``: the product, and the packing of weights before it.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: the numbers of a problem under a tile, a class for each engine.
"""
