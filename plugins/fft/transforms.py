"""Turns (length, kind) into straight-line code of a discrete Fourier transform over named variables.

A transform is built symbolically; inputs known to be 0 are exact zeros, and only what the wanted outputs need remains.
Equal expressions share a node and negation costs nothing, so real input halves the work without further measures, as
Frigo showed for FFTW ("A fast Fourier transform compiler", PLDI 1999). Powers of two are split as 1/2 + 1/4 + 1/4
(Duhamel and Hollmann 1984, in the conjugate-pair form of Kamar and Elcherif 1989), coprime factors need no twiddles
(Good 1958, Thomas 1963), other lengths use Cooley and Tukey 1965. The real inverse is the transposed network of the
real forward transform and has as many operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .network import Network, Value

KINDS = ("forward", "inverse", "real_forward", "real_inverse")
"""Complex to complex with exp(-2 pi i j k / n); with exp(+...); real to half a spectrum; half a spectrum to real."""

Complex = tuple[Value, Value]


def half(n: int) -> int:
    """Number of the frequencies 0 to n/2 of n real values; the other frequencies are their conjugates."""
    return n // 2 + 1


@dataclass(frozen=True)
class Codelet:
    """A transform as a network of additions and multiplications by constants.

    Parts of complex operands are named ``r<k>`` and ``i<k>``, real operands ``<k>``; ``text`` prints the code.
    """

    n: int
    kind: str
    network: Network
    reads: tuple[str, ...]
    """Names of the inputs that the code reads."""
    writes: tuple[str, ...]
    """Names of the outputs, in the order in which they are written."""
    gain: float
    """The inverse transform of the forward transform is ``gain`` times the input, for real and for complex data."""

    def text(
        self,
        read: Callable[[str], str],
        write: Callable[[str, str], str],
        *,
        real: str = "V",
        in_place: bool = False,
        indent: str = "  ",
    ) -> str:
        """Statements in OpenCL C: ``const real t0 = ...;`` and the outputs' assignments.

        ``read`` turns an input's name (``"r3"``) into an expression, evaluated once; ``write`` turns (name, expression)
        into a statement. ``real`` is a scalar or vector type of floats. ``in_place`` reads every input before the first
        output is written. Numbers in the text are float literals: a vector type widens them. The program defines
        ``MULTIPLY_ADD(factor, a, b)``.
        """
        lines = self.network.lines(read, write, real, self.reads if in_place else ())
        return "".join(f"{indent}{line}\n" for line in lines)


def codelet(
    n: int, kind: str, *, given: int | None = None, wanted: Iterable[int] | None = None, halved: bool = False
) -> Codelet:
    """The transform of ``n`` points of one of KINDS.

    ``given``: number of the first inputs (of ``n``, or of ``half(n)`` frequencies) that may differ from 0; the others
    are not read. ``wanted``: indices of the outputs to compute, all if None. ``forward`` and ``inverse`` are not
    normalized; ``real_inverse`` of ``real_forward`` is n/2 times the input (n times for n = 1) and reads no imaginary
    part of frequencies 0 and n/2. ``halved``: a real inverse gets frequencies 0 and n/2 halved already, because the
    inverse of the previous axis produced them so.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if n < 1:
        raise ValueError(f"a transform has 1 point or more, got {n}")
    inputs = half(n) if kind == "real_inverse" else n
    outputs = half(n) if kind == "real_forward" else n
    given = inputs if given is None else min(given, inputs)
    outputs_wanted = tuple(range(outputs) if wanted is None else wanted)
    if given < 0 or any(not 0 <= k < outputs for k in outputs_wanted):
        raise ValueError(f"{kind} of {n} points has outputs 0 to {outputs - 1}, wanted {outputs_wanted}, given {given}")
    return _codelet(n, kind, given, outputs_wanted, halved)


@functools.lru_cache(maxsize=512)
def _codelet(n: int, kind: str, given: int, wanted: tuple[int, ...], halved: bool) -> Codelet:
    if kind == "real_inverse":
        return _real_inverse(n, given, wanted, halved)
    net = Network()
    real = kind == "real_forward"
    if real:
        points = [(net.leaf(str(j)) if j < given else None, None) for j in range(n)]
    else:
        points = [(net.leaf(f"r{j}"), net.leaf(f"i{j}")) if j < given else (None, None) for j in range(n)]
    result = _dft(net, points, 1 if kind == "inverse" else -1)
    for k in wanted:
        net.output(f"r{k}", result[k][0])
        if not real or (k and 2 * k != n):
            net.output(f"i{k}", result[k][1])
    return _finish(n, kind, net, float(n))


def _real_inverse(n: int, given: int, wanted: tuple[int, ...], halved: bool) -> Codelet:
    """The transposed network of the real forward transform, with halves at frequencies 0 and n/2.

    A real inverse counts frequencies 0 and n/2 once and the others twice; here all weights are halved.
    """
    net = Network()
    used = set(wanted)
    result = _dft(net, [(net.leaf(str(j)) if j in used else None, None) for j in range(n)], -1)
    for k in range(given):
        edge = k == 0 or 2 * k == n
        scale = 0.5 if edge and n > 1 and not halved else 1.0
        net.output(f"r{k}", net.multiply(scale, result[k][0]))
        if not edge:
            net.output(f"i{k}", result[k][1])
    return _finish(n, "real_inverse", net.transposed([str(j) for j in wanted]), n / 2 if n > 1 else 1.0)


def _finish(n: int, kind: str, net: Network, gain: float) -> Codelet:
    reads, writes = net.used(), tuple(name for name, _ in net.outputs)
    return Codelet(n, kind, net, reads, writes, gain)


def _dft(net: Network, x: Sequence[Complex], sign: int) -> list[Complex]:
    """The transform of the points ``x`` with exp(sign 2 pi i j k / n)."""
    n = len(x)
    if n == 1:
        return list(x)
    if n == 2:
        return [_add(net, x[0], x[1]), _sub(net, x[0], x[1])]
    if n & (n - 1) == 0:
        return _split_radix(net, x, sign)
    prime_power = _prime_power(n)
    if prime_power == n:
        prime = next(p for p in range(2, n + 1) if n % p == 0)
        return _odd_prime(net, x, sign) if prime == n else _cooley_tukey(net, x, sign, prime)
    return _prime_factor(net, x, sign, prime_power, n // prime_power)


def _prime_power(n: int) -> int:
    """The largest power of n's smallest prime factor that divides n."""
    prime = next(p for p in range(2, n + 1) if n % p == 0)
    power = 1
    while n % (power * prime) == 0:
        power *= prime
    return power


def _split_radix(net: Network, x: Sequence[Complex], sign: int) -> list[Complex]:
    """Split n points into the even ones and those 1 after and 1 before every fourth, whose twiddles are conjugate."""
    n = len(x)
    even = _dft(net, x[0::2], sign)
    following = _dft(net, x[1::4], sign)
    preceding = _dft(net, [x[(4 * j - 1) % n] for j in range(n // 4)], sign)
    result: list[Complex] = [(None, None)] * n
    for k in range(n // 4):
        u = _rotate(net, following[k], sign * k, n)
        v = _rotate(net, preceding[k], -sign * k, n)
        added, subtracted = _add(net, u, v), _rotate(net, _sub(net, u, v), sign, 4)
        result[k] = _add(net, even[k], added)
        result[k + n // 2] = _sub(net, even[k], added)
        result[k + n // 4] = _add(net, even[k + n // 4], subtracted)
        result[k + 3 * n // 4] = _sub(net, even[k + n // 4], subtracted)
    return result


def _cooley_tukey(net: Network, x: Sequence[Complex], sign: int, p: int) -> list[Complex]:
    n, q = len(x), len(x) // p
    parts = [_dft(net, x[r::p], sign) for r in range(p)]
    result: list[Complex] = [(None, None)] * n
    # For real points, columns k and q - k are conjugates; merging equal expressions does not find this, because their
    # twiddle factors differ.
    real = all(im is None for _, im in x)
    for k in range(half(q) if real else q):
        column = _dft(net, [_rotate(net, parts[r][k], sign * r * k, n) for r in range(p)], sign)
        for r in range(p):
            result[k + r * q] = column[r]
            if real:
                result[-(k + r * q) % n] = column[r][0], net.negate(column[r][1])
    return result


def _prime_factor(net: Network, x: Sequence[Complex], sign: int, p: int, q: int) -> list[Complex]:
    """For n = p q with coprime p and q: a p x q transform over indices j = (q a + p b) mod n without twiddles."""
    n = p * q
    rows = [_dft(net, [x[(q * a + p * b) % n] for b in range(q)], sign) for a in range(p)]
    result: list[Complex] = [(None, None)] * n
    # With this map of inputs, element u of column v is the frequency k that is u modulo p and v modulo q.
    for v in range(q):
        column = _dft(net, [rows[a][v] for a in range(p)], sign)
        for u in range(p):
            result[(u * q * pow(q, -1, p) + v * p * pow(p, -1, q)) % n] = column[u]
    return result


def _odd_prime(net: Network, x: Sequence[Complex], sign: int) -> list[Complex]:
    """A transform of odd prime length: cosines times sums of mirrored points, sines times their differences."""
    n = len(x)
    pairs = [(_add(net, x[j], x[n - j]), _sub(net, x[j], x[n - j])) for j in range(1, half(n))]
    if n == 3:
        # Because cos(2 pi / 3) = -1/2, one addition serves both outputs and frequency 0.
        plus, minus = pairs[0]
        cosine_part = _add(net, x[0], _times(net, -0.5, plus))
        sine_part = _rotate(net, _times(net, math.sqrt(0.75), minus), sign, 4)
        return [_add(net, x[0], plus), _add(net, cosine_part, sine_part), _sub(net, cosine_part, sine_part)]
    total = x[0]
    for plus, _ in pairs:
        total = _add(net, total, plus)
    result: list[Complex] = [total] + [(None, None)] * (n - 1)
    for k in range(1, half(n)):
        cosine_part, sine_part = x[0], (None, None)
        for j, (plus, minus) in enumerate(pairs, 1):
            cosine, sine = _root(j * k, n)
            cosine_part = _add(net, cosine_part, _times(net, cosine, plus))
            sine_part = _add(net, sine_part, _times(net, sine, minus))
        sine_part = _rotate(net, sine_part, sign, 4)
        result[k], result[n - k] = _add(net, cosine_part, sine_part), _sub(net, cosine_part, sine_part)
    return result


def _add(net: Network, a: Complex, b: Complex) -> Complex:
    return net.add(a[0], b[0]), net.add(a[1], b[1])


def _sub(net: Network, a: Complex, b: Complex) -> Complex:
    return net.subtract(a[0], b[0]), net.subtract(a[1], b[1])


def _times(net: Network, factor: float, a: Complex) -> Complex:
    return net.multiply(factor, a[0]), net.multiply(factor, a[1])


def _rotate(net: Network, a: Complex, k: int, n: int) -> Complex:
    """Return ``a`` times exp(2 pi i k / n)."""
    k %= n
    re, im = a
    if 8 * k % n == 0:
        quarters, eighth = divmod(8 * k // n, 2)
        for _ in range(quarters):
            re, im = net.negate(im), re
        if eighth:
            root = math.sqrt(0.5)
            re, im = net.multiply(root, net.subtract(re, im)), net.multiply(root, net.add(re, im))
        return re, im
    cosine, sine = _root(k, n)
    return (
        net.subtract(net.multiply(cosine, re), net.multiply(sine, im)),
        net.add(net.multiply(sine, re), net.multiply(cosine, im)),
    )


def _root(k: int, n: int) -> tuple[float, float]:
    """(cos, sin) of 2 pi k / n, equal to the bit where symmetry makes them equal: the angle is folded below pi / 4."""
    k %= n
    if 2 * k > n:
        cosine, sine = _root(n - k, n)
        return cosine, -sine
    if 4 * k > n:
        cosine, sine = _root(n - 2 * k, 2 * n)
        return -cosine, sine
    if 8 * k > n:
        sine, cosine = _root(n - 4 * k, 4 * n)
        return cosine, sine
    return math.cos(2 * math.pi * k / n), math.sin(2 * math.pi * k / n)
