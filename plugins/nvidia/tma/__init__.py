"""nvidia.tma: tensors read in place by Hopper's copy engine.

- ``choice``: which tiles are tried, and in which order.
- ``maps``: tensor maps, as the driver encodes them.
- ``plan``: what is written anew, and the product that the copy engine feeds.
- ``rewriting``: operands that are written anew before the product.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: the numbers of a problem under a tile, and its tensor maps.
"""
