"""nvidia.winograd: Winograd's minimal filtering with its products on tensor cores.

- ``choice``: which tiles are tried, and their predicted time.
- ``plan``: launches that find scales, transform, multiply and transform back.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: transformed tiles as a 1x1 convolution of ``packed``.
"""
