"""nvidia.int8: quantized convolutions on tensor cores; ``product.cl.mako`` explains the kernel.

- ``choice``: which tiles are tried, and their predicted time.
- ``solver``: what it refuses and offers, and its plan: the product, and the packing of weights before it.
- ``tiling``: the numbers of a problem under a tile, a class for each engine.
"""
