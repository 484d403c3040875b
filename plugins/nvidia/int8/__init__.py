"""nvidia.int8: quantized convolutions on tensor cores; see ``product.cl.mako``.

- ``choice``: which tiles are tried, and in which order.
- ``plan``: the product, and the packing of weights before it.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: the numbers of a problem under a tile, a class for each engine.
"""
