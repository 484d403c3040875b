"""nvidia.winograd: Winograd's minimal filtering with its products on tensor cores.

- ``choice``: which tiles are tried, and in which order.
- ``plan``: scales, transforms, products and the way back.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: transformed tiles as a 1x1 convolution of ``packed``.
"""
