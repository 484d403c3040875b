"""``amx.vectors`` and ``amx.vector_weights``: the same kernels by AVX512-BF16 vectors instead of matrix registers.

They accept only bfloat16, which is one plane: ``vdpbf16ps`` has twice the rate of float32's multiply-adds, which is
less than the three products that two planes need.
"""

from __future__ import annotations

from .convolve import Costs, Tiles, TilesKernel
from .dots import NO_TILES, product
from .weights import Costs as WeightsCosts
from .weights import Weights, WeightsKernel


class VectorsKernel(TilesKernel):
    """Forward and data gradient in blocks of 8 pixels by 32 channels of AVX512-BF16 vectors."""

    name = "amx.vectors"
    vectors = True
    costs = Costs(
        42e3,
        36e3,
        0.2,
        38.0,
        2.75e6,
        (21.0, 33.0, 18.0),
        60.0,
        (19.0, 117.0, 200.0),
        rounded=(4.0, 0.0, 9.0),
        narrow=0.7,
    )
    timed = 1.6, 1.6

    def products(self) -> str:
        weights = {"row": 64, "tile": 1024, "step": self.step_w}
        a, b, narrow = (weights, {"tile": 64}, (16, 2)) if self.across else ({}, weights, (self.tall, 1))
        text = NO_TILES + product("tile", a, b, self.tall, 2) + product("narrow_tile", a, b, *narrow)
        if not self.rounded:
            return text
        rounded = product("rounded_tile", a, b, self.tall, 2, rounded=True)
        return text + rounded + product("narrow_rounded_tile", a, b, *narrow, rounded=True)


class VectorWeightsKernel(WeightsKernel):
    """Weight gradient in blocks of 8 source by 32 target channels of AVX512-BF16 vectors."""

    forward = VectorsKernel
    max_near_steps = 8
    costs = WeightsCosts(30.3e3, 42e3, 5.6e3, 19.0, 13.0, 2e6, (27.0, 23.0, 12.0), (22.0, 17.0, 15.0), 98.0, 0.7)
    timed = 2.1, 2.1

    def products(self, x: dict[str, int], dy: dict[str, int], kinds: list[tuple[str, tuple[int, int], bool]]) -> str:
        return NO_TILES + "".join(product(name, x, dy, 16 * rows, columns, add) for name, (rows, columns), add in kinds)


class Vectors(Tiles):
    """Forward and data gradient of bfloat16 on a CPU with AVX512-BF16."""

    kernel = VectorsKernel


class VectorWeights(Weights):
    """The weights' gradient of bfloat16 on a CPU with AVX512-BF16."""

    kernel = VectorWeightsKernel
