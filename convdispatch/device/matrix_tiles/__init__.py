"""The convolution on matrix cores: one product, written over the description of a tile instruction.

A vendor's plugin describes its instruction (``instruction``) and renders ``product`` with it; both are in the header,
``convdispatch.api.matrix``. The text of an instruction goes into the vendor's plugin; text that every vendor needs goes
here.
- ``configured``: converts tiles to a configuration's values; parts, waves and arrays of tiles for cost models.

- ``geometry``: a problem over channels-last planes, stacked or folded where that suits few channels.
- ``instruction``: the description of a tile instruction, which says what each lane holds of each operand.
- ``product``: the product of any problem, over planes that an earlier launch has packed.
- ``scales``: powers of two that bring operands into float16's range.
- ``solver``: the solver of a vendor that describes instructions alone.
"""

from __future__ import annotations

__all__ = ["MATRIX_TILES"]

MATRIX_TILES = __name__
"""The package of kernel text that solvers of several vendors use."""
