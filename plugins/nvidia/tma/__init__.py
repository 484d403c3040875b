"""nvidia.tma: tensors read in place by Hopper's copy engine.

- ``choice``: which tiles are tried, and their predicted time.
- ``maps``: tensor maps, as the driver encodes them.
- ``plan``: launches that rewrite operands, and the product, whose operands the copy engine reads.
- ``rewriting``: operands that are rewritten before the product.
- ``solver``: what it refuses, offers and predicts.
- ``tiling``: the numbers of a problem under a tile, and its tensor maps.
"""
