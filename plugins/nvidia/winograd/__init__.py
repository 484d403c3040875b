"""nvidia.winograd: Winograd's minimal filtering with its products on tensor cores.

- ``choice``: which tiles are tried, and their predicted time.
- ``solver``: what it refuses and offers, and launches that find scales, transform, multiply and transform back.
- ``tiling``: transformed tiles as a 1x1 convolution of ``packed``.
"""
