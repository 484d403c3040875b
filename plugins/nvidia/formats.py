"""How a float32 becomes 16-bit numbers that tensor cores multiply: formats, their planes and products.

A value is the sum of its planes. Two planes and three products (Markidis et al. 2018; Ootomo and Yokota 2022) keep the
leading parts of the product; the product of the two small planes is left out.

| format | planes | significant bits | products | range |
|---|---|---|---|---|
| ``native`` | the 16-bit value itself | 11 or 8 | 1 | the dtype's |
| ``half1`` | float16 | 11 | 1 | 2^39 below the tensor's largest value |
| ``half2`` | float16 + float16 | 22 | 3 | as above |
| ``bfloat2`` | bfloat16 + bfloat16 | 16 | 3 | float32's |
| ``bfloat3`` | three bfloat16 | 24 | 6 | float32's |

``half*`` planes hold the value times a power of two that brings the tensor's largest finite magnitude to 2^14. What is
smaller than that by s bits keeps its bits up to s = 16 or so and loses one a bit below, so errors are those of float32
relative to the tensor's largest values, not to each element.
"""

from __future__ import annotations

from dataclasses import dataclass

from convdispatch.api import ConvProblem

__all__ = ["FORMATS", "Format", "formats"]


@dataclass(frozen=True)
class Format:
    """Planes of a 16-bit type, and which pairs are multiplied: (plane of A, plane of B), small products first."""

    name: str
    bfloat: bool
    products: tuple[tuple[int, int], ...]
    planes: int
    scaled: bool = False
    """Whether values are scaled by the tensor's largest magnitude first."""
    exact: bool = True
    """Whether sums are moved to float32 registers often: tensor cores round them toward zero."""

    @property
    def type(self) -> str:
        """PTX name."""
        return "bf16" if self.bfloat else "f16"


_ONE, _TWO = ((0, 0),), ((1, 0), (0, 1), (0, 0))
FORMATS = {
    "float16": Format("native", False, _ONE, 1, exact=False),
    "bfloat16": Format("native", True, _ONE, 1, exact=False),
    "half1": Format("half1", False, _ONE, 1, scaled=True, exact=False),
    "half2": Format("half2", False, _TWO, 2, scaled=True),
    "bfloat2": Format("bfloat2", True, _TWO, 2),
    "bfloat3": Format("bfloat3", True, ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)), 3),
}
_FOR_MATH = {
    "float32": ("bfloat2", "half2", "bfloat3"),
    "ieee": ("half2", "bfloat3"),
    "tf32": ("half1", "bfloat2"),
    "fast": ("half1", "bfloat2"),
}


def formats(problem: ConvProblem) -> tuple[str, ...]:
    """Names of the formats that reach what the problem's ``math`` asks, the one to use first; none for float64.

    For ``"float32"`` that is ``bfloat2``, but ``half2`` for kernels of 3x3 at stride 1: Winograd is measured against
    those, with errors of 1.7e-6 to 9.4e-6 in cuDNN (docs/nvidia.md), and 22 bits cost a tenth of the time at most.
    """
    if problem.dtype == "float32":
        names = _FOR_MATH[problem.math]
        tiled = (problem.kh, problem.kw, problem.sh, problem.sw) == (3, 3, 1, 1)
        return _FOR_MATH["ieee"] if problem.math == "float32" and tiled else names
    return (problem.dtype,) if problem.dtype in FORMATS else ()
