"""The straight-line transforms against NumPy's, their counts of operations, and tilings against the plain sum."""

from __future__ import annotations

import re

import numpy as np
import pytest
from convdispatch_fft.tiling import tiling, tilings, unsuited
from convdispatch_fft.transforms import KINDS, codelet

from convdispatch.api import ConvProblem
from convdispatch.measurement import reference

LENGTHS = (*range(1, 17), 18, 20, 21, 24, 25, 27, 28, 30, 32, 36, 40, 48, 49, 60, 64, 72, 80)
LONG = (96, 100, 121, 128, 144)


def run(code, values):
    """Execute a codelet's text as Python: the statements are both languages', but for types and literals."""
    text = code.text(lambda name: f"source['{name}']", lambda name, value: f"target['{name}'] = {value}", indent="")
    text = re.sub(r"(?m)^const V ", "", re.sub(r"(\d)f\b", r"\1", text))
    target: dict = {}
    exec(text, {"source": values, "target": target, "MULTIPLY_ADD": lambda factor, a, b: factor * a + b})
    return target


def expected(kind, n, values):
    """The outputs by NumPy, with the codelet's gain."""
    if kind == "forward":
        return np.fft.fft(values)
    if kind == "inverse":
        return np.fft.ifft(values) * n
    if kind == "real_forward":
        return np.fft.rfft(values)
    return np.fft.irfft(values, n) * (n / 2 if n > 1 else 1)


def named(values, kind, n):
    """Values by the names that a codelet gives them; what it must not read is NaN."""
    if np.isrealobj(values):
        return {str(j): value for j, value in enumerate(values)}
    names = {f"r{j}": value.real for j, value in enumerate(values)}
    names |= {f"i{j}": value.imag for j, value in enumerate(values)}
    if kind == "real_inverse":
        names |= {"i0": np.nan} | ({f"i{n // 2}": np.nan} if n % 2 == 0 else {})
    return names


def check(kind, n, given=None, wanted=None):
    random = np.random.default_rng(n)
    real = random.standard_normal(n)
    if kind == "real_forward":
        values = real
    elif kind == "real_inverse":
        values = np.fft.rfft(real)
    else:
        values = real + 1j * random.standard_normal(n)
    if given is not None:
        values[given:] = 0
    code = codelet(n, kind, given=given, wanted=wanted)
    names = named(values, kind, n)
    if given is not None:
        for j in range(given, len(values)):
            names |= {f"r{j}": np.nan, f"i{j}": np.nan, str(j): np.nan}
    got = run(code, names)
    right = expected(kind, n, values)
    for k in range(len(right)) if wanted is None else wanted:
        if kind == "real_inverse":
            value = got.pop(str(k))
        else:
            value = got.pop(f"r{k}") + 1j * got.pop(f"i{k}", 0.0)
        assert abs(value - right[k]) <= 2e-7 * np.abs(right).max() + 1e-12, (kind, n, k)
    assert not got, f"outputs that nobody asked for: {sorted(got)}"
    return code


def operations(code):
    """Instructions of a machine with a fused multiply-add."""
    return code.network.additions + code.network.multiplications


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_transform(kind, n):
    whole = check(kind, n)
    part = check(kind, n, given=max(1, n // 3))
    few = check(kind, n, wanted=range(n // 4, max(n // 4 + 1, n // 2)))
    assert operations(part) <= operations(whole)
    assert operations(few) <= operations(whole)


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("kind", KINDS)
def test_long_transform(kind, n):
    check(kind, n)


@pytest.mark.parametrize("n", [8, 16, 32, 36, 48, 64])
def test_real_input_halves_the_work_and_the_inverse_costs_the_same(n):
    forward, real, back = (operations(codelet(n, kind)) for kind in ("forward", "real_forward", "real_inverse"))
    assert real < 0.55 * forward
    assert back <= real + 2


@pytest.mark.parametrize("n", [6, 9, 16])
def test_halved_edges(n):
    """A real inverse whose edge frequencies come halved gives what it gives otherwise."""
    values = np.fft.rfft(np.random.default_rng(n).standard_normal(n))
    plain = run(codelet(n, "real_inverse"), named(values, "real_inverse", n))
    values[0] /= 2
    if n % 2 == 0:
        values[n // 2] /= 2
    halved = run(codelet(n, "real_inverse", halved=True), named(values, "real_inverse", n))
    assert halved == pytest.approx(plain, abs=1e-6)


def test_counts_are_those_of_the_literature():
    """Additions and multiplications of split radix, 4 n log2 n - 6 n + 8 in all, where no product is taken in."""
    for n in (4, 8, 16, 32, 64):
        network = codelet(n, "forward").network
        products = sum(network.nodes[place][0] == "*" for place in network._uses)
        assert network.additions + products == 4 * n * (n.bit_length() - 1) - 6 * n + 8


def test_text_reads_first_where_it_works_in_place():
    def text(code, **options):
        return code.text(lambda name: f"x{name}", lambda name, value: f"y{name} = {value};", **options)

    lines = text(codelet(8, "real_forward"), in_place=True).splitlines()
    assert all(re.match(r"  const V t\d+ = x\d;", line) for line in lines[:8])
    assert text(codelet(4, "forward"), real="float4").count("const float4 t") >= 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((8, "backward"), "kind must be"),
        ((0, "forward"), "1 point or more"),
        ((8, "forward", {"wanted": [8]}), "0 to 7"),
    ],
)
def test_refusals(arguments, words):
    n, kind, *rest = arguments
    with pytest.raises(ValueError, match=words):
        codelet(n, kind, **(rest[0] if rest else {}))


# --- tilings: overlap-save in NumPy, as the module's docstring says it ------------------------------------------------


def tile(array, starts, sizes, given=None):
    """``sizes`` elements along the last three axes from ``starts`` on, zeros outside the array and beyond ``given``."""
    result = np.zeros((*array.shape[:-3], *sizes))
    reach = given or sizes
    for place in np.ndindex(*reach):
        at = tuple(s + p for s, p in zip(starts, place))
        if all(0 <= a < size for a, size in zip(at, array.shape[-3:])):
            result[(..., *place)] = array[(..., *at)]
    return result


def by_tiles(problem, sizes, arrays):
    """A convolution by the tiling's own numbers."""
    cut = tiling(problem, sizes)
    deep = lambda a: a.reshape(*a.shape[:2], *(1,) * (5 - a.ndim), *a.shape[2:])  # noqa: E731
    shape = deep(np.empty(problem.out_shape)).shape
    result = np.zeros([shape[0], shape[1], *(max(s, a.tiles * a.step) for s, a in zip(shape[2:], cut.axes))])
    if problem.direction == "bwd_weights":
        x, y = deep(arrays["x"]), deep(arrays["y"])
        total = 0
        for t in np.ndindex(*(a.tiles for a in cut.axes)):
            starts = [i * a.step for i, a in zip(t, cut.axes)]
            source = tile(x, [s - a.pad for s, a in zip(starts, cut.axes)], cut.sizes)
            given = [min(a.step, a.places - s) for s, a in zip(starts, cut.axes)]
            second = tile(y, starts, cut.sizes, given)
            fx, fy = (np.fft.fftn(v, axes=(2, 3, 4)) for v in (source, second))
            total = total + np.einsum("bcdhw,bodhw->ocdhw", fx, fy.conj())
        full = np.fft.ifftn(total, axes=(2, 3, 4)).real
        return full[np.ix_(range(full.shape[0]), range(full.shape[1]), *cut.outputs)].reshape(problem.out_shape)
    source = deep(arrays["x" if problem.direction == "fwd" else "y"])
    kernel = deep(arrays["w"])
    spread = np.zeros((*kernel.shape[:2], *cut.sizes))
    spread[np.ix_(range(kernel.shape[0]), range(kernel.shape[1]), *(a.positions for a in cut.axes))] = kernel
    fw = np.fft.fftn(spread, axes=(2, 3, 4)).conj()
    letters = "bcdhw,ocdhw->bodhw" if problem.direction == "fwd" else "bodhw,ocdhw->bcdhw"
    for t in np.ndindex(*(a.tiles for a in cut.axes)):
        starts = [i * a.step for i, a in zip(t, cut.axes)]
        fx = np.fft.fftn(tile(source, [s - a.pad for s, a in zip(starts, cut.axes)], cut.sizes), axes=(2, 3, 4))
        back = np.fft.ifftn(np.einsum(letters, fx, fw), axes=(2, 3, 4)).real
        outputs = back[np.ix_(range(back.shape[0]), range(back.shape[1]), *cut.outputs)]
        result[(..., *(slice(s, s + a.step) for s, a in zip(starts, cut.axes)))] = outputs
    return result[tuple(slice(s) for s in shape)].reshape(problem.out_shape)


TILED = [
    ("mb2ic3ih11oc2kh5ph2", (1, 8, 8)),
    ("mb1ic2ih9iw12oc3kh3kw5ph2pw0ph_r0pw_r3", (1, 6, 9)),
    ("mb1ic2ih13oc2kh3dh2dw1ph1pw1", (1, 8, 5)),
    ("mb2ic2iw20oc2kw7pw5", (1, 1, 12)),
    ("mb1ic2ih7iw9oc2kh5kw1ph2pw0", (1, 8, 1)),
    ("mb1ic2id5ih6iw7oc2kd3kh3kw3pd1ph0pw2", (4, 5, 6)),
    ("mb1ic2ih6oc2kh3ph4", (1, 8, 8)),
]


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
@pytest.mark.parametrize(("text", "sizes"), TILED)
def test_tiles_make_the_convolution(text, sizes, direction):
    problem = ConvProblem.parse(f"{direction}_{text}")
    random = np.random.default_rng(0)
    shapes = {name: getattr(problem, f"{name}_shape") for name in "xwy" if name != problem.written}
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    got = by_tiles(problem, sizes, arrays)
    np.testing.assert_allclose(got, reference.compute(problem, **arrays), atol=1e-12)


def test_tilings_list_no_longer_transform_than_needed():
    problem = ConvProblem.parse("mb8ic64ih64oc128kh9")
    found = list(tilings(problem, [8, 16, 24, 32, 36, 40, 64, 80]))
    assert (1, 36, 36) in [t.sizes for t in found]
    assert (1, 40, 40) not in [t.sizes for t in found], "36 points give as few tiles"
    assert (1, 80, 80) not in [t.sizes for t in found], "64 points hold the image"
    cut = tiling(problem, (1, 36, 36))
    assert (cut.tiles, cut.frequencies, cut.half_axis) == (4, 36 * 19, 2)
    assert (cut.images * cut.tiles, cut.oc, cut.ic) == (32, 128, 64)
    assert cut.scale == 1 / (36 * 18)


def test_what_is_unsuited_says_so():
    assert unsuited(ConvProblem.parse("mb1ic1ih8oc1kh3sh2")) == "stride 1 only, got 2x2"
    assert unsuited(ConvProblem.parse("mb1ic1ih8oc1kh1")) == "more than one tap only, got 1x1"
    assert unsuited(ConvProblem.parse("mb1ic1ih8oc1kh3")) is None
    with pytest.raises(ValueError, match="spans 9"):
        tiling(ConvProblem.parse("mb1ic1ih16oc1kh9"), (1, 8, 8))
