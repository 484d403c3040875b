"""exact: every kernel's bits are those of the reference on docs/use/reproducibility.md, whatever runs it."""

from __future__ import annotations

import re

import numpy as np
import plans
import pyopencl as cl
import pytest
from convdispatch_exact import solving
from convdispatch_exact.registers import RegisterKernel
from paths import ROOT

import convdispatch as cd
from convdispatch.api import ConvProblem, InvalidProblem, NoSolver
from convdispatch.device import runtime
from convdispatch.measurement.conformance import digests, levels
from convdispatch.measurement.conformance.session import Kit
from convdispatch.selection.plugins.loader import plugins

PAGE = (ROOT / "docs" / "use" / "reproducibility.md").read_text(encoding="utf-8")
REGISTERS, TILES = (plugins().solvers[f"exact.{name}"].solver for name in ("registers", "tiles"))
SMALLEST = {"side": 4, "tm": 4, "tn": 4, "bk": 4, "split": False}

FORWARD = [
    "fwd_f32_reproducible_mb2ic5ih7iw9oc6kh3ph1+bias+residual+relu",
    "fwd_f32_nhwc_reproducible_mb2ic5ih7iw9oc6kh3ph1+bias+residual+leaky_relu(0.1)",
    "fwd_f32_reproducible_mb1ic130ih6iw5oc20kh3ph1+accumulate",
    "fwd_f32_nhwc_reproducible_mb3ic70ih4iw5oc33kh3ph1+constant",
    "fwd_f32_reproducible_g2mb2ic8ih9iw9oc12kh3sh2sw2ph1+clip(-0.3,0.7)",
    "fwd_f32_reproducible_mb2ic3iw40oc18kw5pw2pw_r3dw2+relu6",
    "fwd_f32_reproducible_mb1ic4id5ih6iw7oc5kd3kh2kw3pd1ph0pw1",
    "fwd_f32_reproducible_g6mb1ic6ih8iw8oc6kh3ph1+constant",
    "fwd_f32_reproducible_mb2ic1100ih3iw2oc17kh1",
    "fwd_f64_reproducible_mb1ic4ih5iw5oc3kh3ph1+bias",
]
DATA = [
    "bwd_data_f32_reproducible_mb2ic5ih7iw9oc6kh3ph1",
    "bwd_data_f32_nhwc_reproducible_mb2ic5ih9iw9oc18kh3sh2sw2ph1+bias+relu",
    "bwd_data_f32_reproducible_g2mb1ic6ih11iw12oc8kh4kw3sh3sw2ph1pw1ph_r0pw_r2dh2dw1",
    "bwd_data_f32_reproducible_mb1ic3ih8iw8oc4kh1kw1sh3sw3+bias",
    "bwd_data_f64_reproducible_mb1ic3ih5iw5oc3kh3sh2sw2ph1",
]
WEIGHTS = [
    "bwd_weights_f32_reproducible_mb3ic5ih7iw9oc6kh3ph1",
    "bwd_weights_f32_nhwc_reproducible_mb2ic5ih9iw9oc18kh3sh2sw2ph1",
    "bwd_weights_f32_reproducible_mb2ic2ih40iw40oc18kh3ph1+accumulate",
    "bwd_weights_f32_reproducible_g2mb1ic6id3ih6iw6oc8kd2kh3kw3pd1ph1pw1dd1dh2dw1",
    "bwd_weights_f64_reproducible_mb2ic2ih4iw4oc3kh3ph1",
]
PROBLEMS = [*FORWARD, *DATA, *WEIGHTS]


@pytest.fixture(scope="module")
def page() -> dict:
    """The names that the page's reference defines."""
    block = next(each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def convolve" in each)
    scope: dict = {"np": np}
    exec(block, scope)
    return scope


def drawn(problem: ConvProblem, kind: str) -> dict[str, np.ndarray]:
    """Operands: standard normal, hostile (subnormal sums, overflow, signed zeros, NaN, infinities), or cancelling."""
    random = np.random.default_rng(1)

    def tensor(shape):
        values = random.standard_normal(shape)
        if kind == "hostile":
            reach = 75 if problem.dtype == "float32" else 540
            values *= 2.0 ** random.integers(-reach, reach - 11, shape)
            odd, rare = random.random(shape), 0.1 / max(20, values.size) ** 0.5
            values[odd < 0.05], values[odd > 0.95] = 0.0, -0.0
            values[odd < 3 * rare], values[odd < 2 * rare], values[odd < rare] = -np.inf, np.inf, np.nan
        if kind == "cancelling":
            values = random.choice([1.0, -1.0, 2.0**-23, -(2.0**-12)], shape) * (
                1 + 2.0**-23 * random.integers(0, 3, shape)
            )
        return values.astype(problem.dtype)

    names = ("x", "w", "y", "bias", "residual", "initial")
    with np.errstate(over="ignore"):
        return {name: tensor(problem.form(name)[0]) for name in names}


def expected(problem: ConvProblem, operands: dict[str, np.ndarray], page: dict) -> np.ndarray:
    """What the definition makes of operands, by the page's text."""
    last = problem.layout == "nhwc"

    def first(name):
        array = np.moveaxis(operands[name], -1, 1) if last else operands[name]
        return array.reshape(*array.shape[:2], *[1] * (3 - problem.ndim), *array.shape[2:])

    def along(letters):
        return [getattr(problem, letters.replace("?", axis)) for axis in "dhw"]

    with np.errstate(all="ignore"):
        pads = list(zip(along("p?"), along("p?_r")))
        sums = page["convolve"](
            problem.direction, first("x"), first("w"), first("y"), along("s?"), pads, along("d?"), problem.g
        )
        sums = sums.reshape(*sums.shape[:2], *sums.shape[5 - problem.ndim :])
        v = np.moveaxis(sums, 1, -1) if last else sums
        if problem.bias:
            v = v + (operands["bias"] if last else operands["bias"].reshape(-1, *[1] * problem.ndim))
        v = v + operands["residual"] if problem.residual else v
        name, numbers = solving.parse_activation(problem.activation) if problem.activation else (None, ())
        numbers = np.array((0, 6) if name == "relu6" else numbers, problem.dtype)
        if name == "leaky_relu":
            v = np.where(v < 0, v * numbers[0], v)
        elif name:
            v = np.where(v < (numbers[0] if len(numbers) else 0), numbers[0] if len(numbers) else v.dtype.type(0), v)
            v = np.where(v > numbers[1], numbers[1], v) if len(numbers) else v
        v = np.ascontiguousarray(v + operands["initial"] if problem.accumulate else v)
    v[np.isnan(v)] = np.nan
    assert v.dtype == problem.dtype
    return v


def computed(queue, solver, problem: ConvProblem, config, operands) -> np.ndarray:
    """What a solver's plan makes of operands."""
    return plans.computed(queue, problem, solver.plan(queue.context, problem, config), operands)


def configs(solver, problem: ConvProblem, queue, number: int | None) -> list:
    """The first configuration that a solver offers on a CPU and one of small tiles; one of them for a ``number``."""
    split = problem.direction == "bwd_weights" and problem.mb > 1
    if solver is REGISTERS:
        offered = next(iter(solver.configs(problem, runtime.device_info(queue.device))))
        every = [offered, {"lanes": 4, "nv": 1, "pc": 2}]
    else:
        every = [{**SMALLEST, "split": split}, {"side": 8, "tm": 8, "tn": 4, "bk": 8, "split": split}]
    return every if number is None else [every[0] if number % 3 else every[1]]


@pytest.mark.parametrize("solver", [REGISTERS, TILES], ids=lambda solver: solver.name)
@pytest.mark.parametrize("text", PROBLEMS)
def test_bits_are_those_of_the_definition(request, queue, page, thinned, solver, text, full):
    problem, number = ConvProblem.parse(text), PROBLEMS.index(text)
    if solver is TILES:
        thinned(number % 2)
        request.getfixturevalue("item_by_item")
    for kind in ("normal", "hostile", "cancelling") if full else ("hostile",) if number % 4 else ("cancelling",):
        operands = drawn(problem, kind)
        wanted = expected(problem, operands, page)
        for config in configs(solver, problem, queue, None if full else number):
            got = computed(queue, solver, problem, config, operands)
            wrong = np.flatnonzero(got.view(f"i{got.itemsize}") != wanted.view(f"i{got.itemsize}"))
            assert not wrong.size, (str(problem), kind, config, wrong[:5], got.flat[wrong[:3]], wanted.flat[wrong[:3]])


WIDE = {"side": 16, "tm": 8, "tn": 8, "bk": 8, "split": False}
"""A tile whose slices are channels of one tap, of which NHWC loads four at a time."""


@pytest.mark.parametrize(
    "text",
    [
        "fwd_f32_nhwc_reproducible_g2mb2ic128ih5iw6oc20kh3ph1+bias",
        "fwd_f32_reproducible_mb3ic16ih7iw5oc9kh3kw2sh2sw3ph1dw2",
        "bwd_data_f32_nhwc_reproducible_mb2ic10ih9iw8oc16kh3sh2sw2ph1",
        "fwd_f32_nhwc_reproducible_mb2ic10ih6iw6oc20kh3ph1",
    ],
)
def test_slices_of_one_tap_have_the_bits_of_the_definition(queue, page, item_by_item, text):
    problem = ConvProblem.parse(text)
    operands = drawn(problem, "hostile")
    got, wanted = computed(queue, TILES, problem, WIDE, operands), expected(problem, operands, page)
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("text", PROBLEMS[::5])
def test_a_simulator_finds_no_race_and_the_same_bits(page, text):
    device = runtime.find_device("oclgrind")
    small = {letter: min(8, getattr(ConvProblem.parse(text), letter)) for letter in ("ic", "oc", "ih", "iw")}
    problem = ConvProblem.parse(text).replace(**small, mb=1)
    queue, operands = cl.CommandQueue(runtime.context(device)), drawn(problem, "hostile")
    got = computed(queue, TILES, problem, SMALLEST, operands)
    assert got.tobytes() == expected(problem, operands, page).tobytes()


@pytest.mark.parametrize("text", [FORWARD[3], DATA[1]])
def test_an_image_has_the_same_bits_in_every_batch(queue, text):
    """And on however many compute units the kernel is shared out."""
    problem = ConvProblem.parse(text).replace(mb=7)
    operands = drawn(problem, "normal")
    config = next(iter(REGISTERS.configs(problem, runtime.device_info(queue.device))))
    whole = computed(queue, REGISTERS, problem, config, operands)
    images = "y" if problem.direction == "bwd_data" else "x"
    for at, count in ((0, 1), (3, 1), (2, 4)):
        part = {**operands, images: operands[images][at : at + count]}
        part[problem.written] = operands[problem.written][at : at + count]
        got = computed(queue, REGISTERS, problem.replace(mb=count), config, part)
        assert got.tobytes() == whole[at : at + count].tobytes()


def test_the_gradient_of_a_batch_is_that_of_its_images_one_after_the_other():
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((3, 5, 40, 40), np.float32), random.standard_normal((3, 6, 40, 40), np.float32)
    options = {"padding": 1, "math": "reproducible"}
    whole = cd.conv_backward_weights(x, dy, (6, 5, 3, 3), **options)
    total = cd.conv_backward_weights(x[:1], dy[:1], (6, 5, 3, 3), **options)
    for image in (slice(1, 2), slice(2, 3)):
        cd.conv_backward_weights(x[image], dy[image], (6, 5, 3, 3), **options, out=total, accumulate=True)
    assert total.tobytes() == whole.tobytes()


@pytest.mark.parametrize(("units", "mb"), [(1, 1), (2, 3), (16, 40), (64, 2)])
@pytest.mark.parametrize("text", [FORWARD[3], WEIGHTS[2], DATA[2], FORWARD[8]])
def test_panels_and_parts_cover_everything_once(text, units, mb):
    problem = ConvProblem.parse(text).replace(mb=mb)
    for numbers in solving.passes(problem):
        n = RegisterKernel(problem, numbers, {"lanes": 8, "nv": 2, "pc": 3}, units).n
        assert n["PANELS"] * n["PN"] >= n["COLUMNS"] > (n["PANELS"] - 1) * n["PN"]
        assert n["PN"] % 3 == 0
        assert 1 <= n["PARTS"] <= n["MB"]
        assert n["SUMS"] * n["PARTS"] >= n["MB"] * n["BM"] * n["PN"]
        assert n["ITEMS"] <= n["JOBS"] == n["G"] * n["PARTS"] * n["PANELS"]


def test_layouts_have_equal_bits():
    random = np.random.default_rng(0)
    x, w = random.standard_normal((2, 20, 9, 8), np.float32), random.standard_normal((12, 20, 3, 3), np.float32)
    first = cd.conv(x, w, math="reproducible")
    last = cd.conv(*(np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w)), layout="nhwc", math="reproducible")
    assert np.moveaxis(last, -1, 1).tobytes() == first.tobytes()


@pytest.mark.parametrize(("text", "words"), [
    ("fwd_f32_reproducible_mb1ic4ih5oc4kh3+tanh", "activations relu, relu6, clip, leaky_relu only"),
    ("fwd_f32_ieee_mb1ic4ih5oc4kh3", "math='reproducible' only, got 'ieee'"),
])  # fmt: skip
def test_refuses_in_words(text, words, device):
    reason = REGISTERS.rejects(ConvProblem.parse(text), runtime.device_info(device))
    assert words in reason


def test_no_other_solver_is_asked(device):
    with pytest.raises(NoSolver, match="other math than 'reproducible' only"):
        cd.conv(*(np.zeros(s, np.float16) for s in ((1, 4, 5, 5), (4, 4, 3, 3))), math="reproducible")
    told = str(cd.explain("fwd_f32_reproducible_mb1ic4ih5oc4kh3"))
    assert "exact.registers" in told.splitlines()[0] or "exact.registers" in told
    with pytest.raises(InvalidProblem, match="leave math at its default"):
        ConvProblem(dtype="int8", math="reproducible", ic=4, oc=4)


def test_the_tier_ready_waits_for_the_defined_bits():
    random = np.random.default_rng(3)
    x, w = random.standard_normal((1, 6, 11, 7), np.float32), random.standard_normal((5, 6, 3, 3), np.float32)
    with cd.policy(tier="ready"):
        got = cd.conv(x, w, math="reproducible")
    assert got.tobytes() == cd.conv(x, w, math="reproducible").tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_probe_s_table_is_right_and_tells_a_device_that_rounds_twice(page, dtype, queue, monkeypatch):
    triples, wanted = solving.cases(dtype)
    with np.errstate(all="ignore"):
        got = np.concatenate([page["fma"](*triples.T), triples[:, 0] + triples[:, 2]])
    assert got.tobytes() == wanted.tobytes()
    assert solving._failure(queue.context, dtype) is None
    monkeypatch.setattr(
        solving, "_TEXT", solving._TEXT.replace("fma(a[3 * i], a[3 * i + 1],", "(a[3 * i] * a[3 * i + 1] +")
    )
    assert "rounds once" in solving._failure(queue.context, dtype)


def test_the_committed_digests_are_those_of_the_definition(page, full):
    texts = list(digests.known())
    assert len(texts) >= 60
    assert {ConvProblem.parse(text).direction for text in texts} == {"fwd", "bwd_data", "bwd_weights"}
    for problem in map(ConvProblem.parse, texts if full else texts[::3]):
        if problem.flops > 4e5 and not full:
            continue
        assert digests.digest(expected(problem, digests.operands(problem), page)) == digests.known()[str(problem)], (
            problem
        )


def test_the_kit_names_the_problem_whose_bits_differ(device, monkeypatch):
    case = next(case for case in levels.cases("full") if case.problem.math == "reproducible")
    kit = Kit("exact", device, "exact.registers")
    (outcome,) = kit.run(case)
    assert (outcome.status, "digest" in outcome.checks) == ("passed", True), outcome.reason
    monkeypatch.setattr(digests, "known", lambda: {str(case.problem): "0" * 64})
    (outcome,) = kit.run(case)
    assert (outcome.status, outcome.check, outcome.case) == ("failed", "digest", str(case.problem))
