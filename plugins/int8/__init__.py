"""int8: quantized convolutions; their sums of 8-bit products are exact, so that all solvers give equal bits.

    sum[p, n] = bias[n] + sum over taps, c of (x[p, tap, c] - x_zero) w[n, c, tap]
    y[p, n] = saturate(round(multiplier[n] * sum[p, n]) + y_zero)

``direct`` runs on every device and also accepts 8-bit floats, which it widens to float32. ``words`` (depthwise,
integers only) runs on every device too. On CPUs ``vnni``, ``interleaved`` (depthwise) and ``amx`` multiply by inline
assembly, and ``depthwise`` sums channels along vectors in float32. The operand ``bias`` is a table of the
quantization's numbers (``convdispatch.api.Quantization``); convdispatch/quantized.cl turns a sum into an element of y.

- ``depthwise``: ``int8.depthwise``: vectors of channels in float32.
- ``direct``: ``int8.direct``: every problem, on every device.
- ``instructions``: generates functions that multiply in AMX tiles, and that convert sums to bytes.
- ``interleaved``: ``int8.interleaved``: four lines of x at once.
- ``interleaved_code``: generates the functions of ``interleaved``.
- ``packed_kernel``: bands of x, packed weights, launches and costs that kernels share.
- ``probe``: a test run that a device must pass once.
- ``tiles``: ``int8.amx``: matrix registers.
- ``vector_code``: generates functions that multiply by AVX512-VNNI.
- ``vectors``: ``int8.vnni``: vectors.
- ``words``: ``int8.words``: four channels in a word.
"""

from __future__ import annotations

import functools

from convdispatch.api import Declared, Solver, cpus_only, hookimpl
from convdispatch.api.cpu import unserved

__all__ = ["convdispatch_solvers", "serves_vectors"]

serves_vectors = functools.partial(unserved, ("avx512f", "avx512_vnni"))
"""Why a device has no AVX512-VNNI from OpenCL, or None."""


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """This plugin's solvers."""

    integers, any_of_8_bits = ("int8", "uint8"), ("int8", "uint8", "float8_e4m3", "float8_e5m2")

    def declare(module: str, make: str, name: str, serves: object = None, residual: bool = True) -> Declared:
        fuses = {"bias", "residual"} if residual else {"bias"}
        return Declared(
            f"{__name__}.{module}", make, name=name, fuses=fuses, exact=True, batch_invariant=True,
            dtypes=any_of_8_bits if make == "Direct" else integers, spreads_nonfinite=False,
            serves=serves,  # type: ignore[arg-type]
        )  # fmt: skip

    return [
        declare("direct", "Direct", "int8.direct"),
        declare("words", "Words", "int8.words"),
        declare("depthwise", "Depthwise", "int8.depthwise", cpus_only),
        declare("interleaved", "Interleaved", "int8.interleaved", serves_vectors, residual=False),
        declare("vectors", "Vectors", "int8.vnni", serves_vectors),
        declare("tiles", "Tiles", "int8.amx", functools.partial(unserved, ("amx_tile", "amx_int8"))),
    ]
