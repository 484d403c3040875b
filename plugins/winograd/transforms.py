"""Exact transform matrices of a tile size and a kernel size, by the Cook–Toom construction of minimal filtering.

F(m, r) computes m neighbouring sums ``y[i] = sum over k of g[k] d[i + k]`` of an r-tap kernel with ``m + r - 1``
multiplications: ``y = AT ((G g) * (BT d))``, elementwise in the middle. Two dimensions nest: ``Y = AT ((G g GT) * (BT d
B)) A``. The two polynomials' values at ``alpha = m + r - 1`` points, infinity among them, determine their product; the
transpose of that bilinear map is the filter (Winograd, Arithmetic Complexity of Computations, 1980; Lavin and Gray
2015). The points decide the rounding error (Barabasz et al. 2020, Error Analysis and Improving the Accuracy of Winograd
Convolution; Alam et al. 2022, Winograd Convolution for Deep Neural Networks: Efficient Point Selection): those here
were chosen by measuring.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

Matrix = tuple[tuple[Fraction, ...], ...]

# Interpolation points come in pairs of opposite numbers, which share half of their arithmetic. These are the positive
# points by the number of finite points, from a search through small fractions for the least float32 error of F(m, 3);
# fractions whose squares float32 holds exactly were preferred. The point 0 is added for an odd number of points.
_POSITIVE_POINTS = {
    2: ("1",),
    3: ("1",),
    4: ("3/8", "5/4"),
    5: ("5/8", "3/2"),
    6: ("5/16", "13/16", "7/4"),
    7: ("1/2", "1", "2"),
    8: ("1/4", "11/16", "9/8", "9/4"),
    9: ("3/8", "7/8", "5/4", "5/2"),
}


@dataclass(frozen=True, eq=False)
class Transform:
    """The exact matrices of F(m, r): ``at`` (m, alpha), ``g`` (alpha, r), ``bt`` (alpha, alpha).

    Compared by identity, because hashing matrices of fractions takes longer than most uses of a cache's entry.
    """

    m: int
    """Outputs of a tile."""
    r: int
    """Taps of the kernel."""
    points: tuple[Fraction, ...]
    """The alpha - 1 finite points; infinity is the last row or column of every matrix."""
    at: Matrix
    g: Matrix
    bt: Matrix

    @property
    def alpha(self) -> int:
        """Number of multiplications of F(m, r), which is also the number of elements of a tile of the input."""
        return self.m + self.r - 1


def default_points(count: int) -> tuple[Fraction, ...]:
    """Return ``count`` finite points: pairs of opposite numbers, and 0 if the count is odd.

    Raises ValueError above nine points, whose float32 error is too large to be of use.
    """
    if count not in _POSITIVE_POINTS and count > 1:
        raise ValueError(f"9 finite points at most, got {count}: the error of larger tiles is beyond use")
    points = [Fraction(0)] if count % 2 else []
    for text in _POSITIVE_POINTS.get(count, ()):
        points += [Fraction(text), -Fraction(text)]
    return tuple(points)


@functools.lru_cache(maxsize=64)
def transform(m: int, r: int, points: tuple[Fraction, ...] | None = None, once: str = "g") -> Transform:
    """F(m, r): m outputs, r taps. ``points`` are the ``m + r - 2`` finite interpolation points, all different.

    ``once`` names the matrix, ``"g"`` or ``"at"``, that contains all divisions, so that the two others have few
    multiplications: ``"g"`` if the kernel is transformed once and the data often, ``"at"`` if a sum over many tiles is
    transformed back once (the weights' gradient, whose "kernel" is a tile of dy). F(1, 1) is the identity. Raises
    ValueError for sizes below 1, a wrong count of points, equal points.
    """
    if m < 1 or r < 1:
        raise ValueError(f"a tile and a kernel of 1 or more, got F({m}, {r})")
    if once not in ("g", "at"):
        raise ValueError(f'once is "g" or "at", got {once!r}')
    alpha = m + r - 1
    finite = default_points(alpha - 1) if points is None else tuple(Fraction(p) for p in points)
    if len(finite) != alpha - 1 or len(set(finite)) != alpha - 1:
        raise ValueError(f"F({m}, {r}) takes {alpha - 1} different finite points, got {[str(p) for p in finite]}")
    # Row j of BT has the coefficients of the monic polynomial prod over i != j of (t - p_i), the row of infinity those
    # of the product over all i. Divided by N_j = prod over i != j of (p_j - p_i), it is row j of the inverse transposed
    # Vandermonde matrix.
    bt = [_monic([p for i, p in enumerate(finite) if i != j], alpha) for j in range(alpha - 1)]
    bt.append(_monic(finite, alpha))
    norms = [math.prod((p - q for q in finite if q != p), start=Fraction(1)) for p in finite] + [Fraction(1)]
    g, a = _powers(finite, r), _powers(finite, m)
    if once == "g":
        powers = [_row_power(row) for row in a]
        g = [[value * power / norm for value in row] for row, power, norm in zip(g, powers, norms, strict=True)]
        a = [[value / power for value in row] for row, power in zip(a, powers, strict=True)]
    else:
        raised = [_row_power(row) for row in g]
        g = [[value / power for value in row] for row, power in zip(g, raised, strict=True)]
        a = [[value * power / norm for value in row] for row, power, norm in zip(a, raised, norms, strict=True)]
    at = [list(column) for column in zip(*a, strict=True)]
    return Transform(m, r, finite, _freeze(at), _freeze(g), _freeze(bt))


def _row_power(row: list[Fraction]) -> Fraction:
    """The power of two by which a row of a point's powers is divided, and the ``once`` matrix's row multiplied.

    It is near the row's norm, rather below it; norms below 3 are not worth an operation. Otherwise products of
    transformed tiles would be smaller than the results by this factor (by its square in two dimensions) and become
    subnormal long before the results do; or, in the weights' gradient, larger, and become infinite.
    """
    norm = math.hypot(*map(float, row))
    return Fraction(2 ** math.floor(math.log2(1.25 * norm)) if norm >= 3 else 1)


@functools.lru_cache(maxsize=256)
def in_range(along_h: Transform, along_w: Transform) -> tuple[Transform, Transform]:
    """Both axes' transforms with a power of two moved from ``bt`` to ``at`` of the second axis.

    ``bt`` makes elements much larger, and their products would overflow long before the results do. The power is the
    largest that keeps transformed elements above those of the data, so that none becomes subnormal. Small tiles, and
    those of one dimension, need none: they make terms less than 10 times as large as a direct sum's.
    """
    if min(along_h.alpha, along_w.alpha) < 7:
        return along_h, along_w
    smallest_norms = [min(math.hypot(*map(float, row)) for row in transform.bt) for transform in (along_h, along_w)]
    power = Fraction(2 ** math.floor(math.log2(math.prod(smallest_norms))))
    scaled = replace(along_w, bt=_scaled(along_w.bt, 1 / power), at=_scaled(along_w.at, power))
    return along_h, scaled


def _scaled(matrix: Matrix, factor: Fraction) -> Matrix:
    return tuple(tuple(value * factor for value in row) for row in matrix)


def _monic(roots: tuple[Fraction, ...] | list[Fraction], size: int) -> list[Fraction]:
    """Return the coefficients of the polynomial with these roots, lowest first, padded with zeros to ``size``."""
    values = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *values], [*(-root * v for v in values), Fraction(0)]
        values = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return values + [Fraction(0)] * (size - len(values))


def _powers(points: tuple[Fraction, ...], count: int) -> list[list[Fraction]]:
    """Powers 0 to count - 1 of each point; the row of infinity is 1 at the highest power and 0 elsewhere."""
    return [[p**k for k in range(count)] for p in points] + [[Fraction(int(k == count - 1)) for k in range(count)]]


def _freeze(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)
