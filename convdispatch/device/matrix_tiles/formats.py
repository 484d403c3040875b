"""Formats that split a float32 into planes of 16-bit numbers, which tensor cores multiply.

A value is the sum of its planes. Two planes and three products (Markidis et al. 2018; Ootomo and Yokota 2022) keep the
leading parts of the product; the product of the two small planes is left out.

| format | planes | significant bits | products | range |
|---|---|---|---|---|
| ``native`` | the 16-bit value itself, or a float32 read as TF32 (``tf32``) | 11 or 8 | 1 | the dtype's |
| ``half1`` | float16 | 11 | 1 | 2^39 below a row's largest value |
| ``half2`` | float16 + float16 | 22 | 3 | as above |
| ``bfloat2`` | bfloat16 + bfloat16 | 16 | 3 | float32's |
| ``bfloat3`` | three bfloat16 | 24 | 6 | float32's |

``half*`` planes hold the value times powers of two of its row, its column and its summed index (``scales.py``), which
bring a row's (column's) largest finite magnitude to 2^14. A value that is smaller by s bits keeps all its bits up to
s = 17, and loses one more bit for each further bit of s.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...api.problem import ConvProblem


@dataclass(frozen=True)
class Format:
    """Planes of a 16-bit type, and which pairs are multiplied: (plane of A, plane of B), small products first."""

    name: str
    bfloat: bool
    products: tuple[tuple[int, int], ...]
    planes: int
    scaled: bool = False
    """Whether values are scaled by powers of two first."""
    float32_accurate: bool = True
    """Whether sums are moved to float32 registers often: tensor cores round them toward zero."""
    tf32: bool = False
    """Whether the plane is the float32 number itself, of which tensor cores read TF32's bits."""

    @property
    def type(self) -> str:
        """PTX's name of the type of the planes."""
        return "tf32" if self.tf32 else "bf16" if self.bfloat else "f16"


_ONE_PLANE = ((0, 0),)  # the product of single planes
_TWO_PLANES = ((1, 0), (0, 1), (0, 0))  # the products of two planes, without that of the two small planes
FORMATS = {
    "float16": Format("native", False, _ONE_PLANE, 1, float32_accurate=False),
    "bfloat16": Format("native", True, _ONE_PLANE, 1, float32_accurate=False),
    "tf32": Format("native", False, _ONE_PLANE, 1, float32_accurate=False, tf32=True),
    "half1": Format("half1", False, _ONE_PLANE, 1, scaled=True, float32_accurate=False),
    "half2": Format("half2", False, _TWO_PLANES, 2, scaled=True),
    "bfloat2": Format("bfloat2", True, _TWO_PLANES, 2),
    "bfloat3": Format("bfloat3", True, ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)), 3),
}
_FOR_MATH = {
    "float32": ("bfloat2", "half2", "bfloat3"),
    "ieee": ("half2", "bfloat3"),
    "tf32": ("half1", "bfloat2"),
    "fast": ("half1", "bfloat2"),
}


def formats(problem: ConvProblem) -> tuple[str, ...]:
    """Names of the formats that reach the accuracy of the problem's ``math``, the default first.

    For ``"float32"`` the default is ``bfloat2``, whose range is float32's, so that it needs no scales.
    """
    if problem.dtype == "float32":
        return _FOR_MATH.get(problem.math, ())
    return (problem.dtype,)
