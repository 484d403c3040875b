"""amx: convolutions on the matrix registers of Intel's processors, from OpenCL C with inline assembly.

    y[pixel, n] = sum over (tap, c) of x[pixel * step + origin + tap * spread, c] w[n, c, tap]

Each element is split into one, two or three bfloat16 numbers (``planes_of``), which the processor multiplies in tiles
of 16x16 sums at sixteen times the rate of its vectors. A band of the source is in the cache as planes of such numbers,
in rows that share their padding zeros with the next row (``geometry``), so that a tap is an offset and nothing is
lowered. All instructions are in ``instructions``.

- ``banded``: what both kernels share: bands of rows, and how configurations are rated.
- ``convolve``: ``amx.tiles``: forward and data gradient.
- ``dots``: generates functions that multiply by AVX512-BF16.
- ``geometry``: rows of positions in which a tap is one offset.
- ``instructions``: generates functions that multiply in AMX tiles.
- ``probe``: a test run that a device must pass once.
- ``vectors``: ``amx.vectors`` and ``amx.vector_weights``.
- ``weights``: ``amx.weights``: the weights' gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from convdispatch.api import EPILOGUE, Declared, Solver, hookimpl
from convdispatch.api.cpu import unserved

__all__ = ["convdispatch_solvers"]

NEEDED = {False: ("amx_tile", "amx_bf16"), True: ("avx512_bf16",)}
"""Instructions that kernels need, by Linux' names: those by matrix registers, and those by vectors."""


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """This plugin's solvers; on a processor without the instructions each refuses every problem with a reason."""

    def declare(module: str, make: str, name: str, vectors: bool, fuses: Iterable[str]) -> Declared:
        serves = functools.partial(unserved, NEEDED[vectors])
        # Weight-gradient kernels multiply the padding zeros between rows of dy with x: Inf and NaN of x spread.
        spreads = make in ("Weights", "VectorWeights")
        dtypes = ("bfloat16",) if vectors else ("float32", "float16", "bfloat16")
        return Declared(f"{__name__}.{module}", make, name=name, serves=serves, fuses=fuses, dtypes=dtypes, exact=True,
                        spreads_nonfinite=spreads, batch_invariant=True)  # fmt: skip

    return [
        declare("convolve", "Tiles", "amx.tiles", False, EPILOGUE),
        declare("weights", "Weights", "amx.weights", False, {"accumulate"}),
        declare("vectors", "Vectors", "amx.vectors", True, EPILOGUE),
        declare("vectors", "VectorWeights", "amx.vector_weights", True, {"accumulate"}),
    ]
