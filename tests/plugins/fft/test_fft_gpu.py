"""The GPU room of fft, run as ``plans.py`` says; real data within the error of float32."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from checking import TOLERANCE
from convdispatch_fft.gpu import plan
from convdispatch_fft.gpu.geometry import Transform, TransformAxis
from convdispatch_fft.gpu.plan import Layout
from convdispatch_fft.gpu.solver import TILES, Spectra, transforms
from convdispatch_fft.gpu.spectra import slot_pitch
from plans import LARGE, SMALL, check_solver, first

from convdispatch import ConvProblem
from convdispatch.api import build
from convdispatch.api.problem import DIRECTIONS, LAYOUTS
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import Examination

pytestmark = pytest.mark.usefixtures("item_by_item")
SOLVER = Spectra()
LIMIT = {**TOLERANCE, "float32": 2e-6}


def check(queue, problem: ConvProblem, config=None) -> None:
    check_solver(queue, problem, SOLVER, config, data="real", limit=LIMIT[problem.dtype])


# One transform an image, several tiles, kernels as large as the image, pads wider than it, one column.
SHAPES = [
    "mb3ic5ih12oc6kh5ph2",
    "mb2ic3ih21iw17oc5kh5kw3ph2pw1",
    "mb2ic3ih9oc4kh9",
    "mb2ic3ih5oc4kh3ph6",
    "mb3ic2ih11iw14oc3kh4kw5ph1pw2ph_r3pw_r0",
    "mb2ic2ih13oc3kh3dh2ph2",
    "g3mb2ic6ih10oc9kh5ph2",
    "mb3ic3iw40oc4kw7pw3",
    "mb2ic3ih6iw20oc4kh1kw5pw2",
    "mb2ic3ih20iw6oc4kh5kw1ph2",
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", SHAPES)
def test_every_direction(queue, full, text, direction):
    problem = ConvProblem.parse(text).replace(direction=direction)
    for number, layout in enumerate(LAYOUTS):
        if full or number == (SHAPES.index(text) + DIRECTIONS.index(direction)) % 2:
            check(queue, problem.replace(layout=layout))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("size", [(12, 30), (28, 16), (32, 32), (64, 20)])
def test_sizes_of_transforms(queue, full, size, direction):
    if not full and size[0] > 32:
        pytest.skip("with --full only")
    problem = ConvProblem.parse("mb2ic2ih26iw29oc3kh5ph2").replace(direction=direction)
    check(queue, problem, first(problem, SOLVER, th=size[0], tw=size[1]))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_product(queue, full, direction):
    problem = ConvProblem.parse("mb17ic11ih6oc70kh3ph1").replace(direction=direction)
    config = first(problem, SOLVER)
    for number, (tile, _) in enumerate(TILES):
        if full or number % 3 == DIRECTIONS.index(direction):
            check(queue, problem, {**config, **tile._asdict()})


@pytest.mark.parametrize("parts", [(2, 3, 1), (2, 1, 3)])
@pytest.mark.parametrize("text", [
    "fwd_mb19ic6ih9oc20kh5ph2+bias+relu", "bwd_data_mb19ic6ih9oc20kh5ph2", "bwd_weights_mb10ic40ih9oc34kh5ph2",
    "fwd_g2mb9ic6ih20oc18kh5ph2+constant", "bwd_weights_g2mb9ic66ih20oc6kh5ph2+accumulate",
])  # fmt: skip
def test_parts(queue, text, parts):
    problem = ConvProblem.parse(text)
    names = ("m_parts", "n_parts", "k_parts")
    config = first(problem, SOLVER, **dict(zip(names, parts, strict=True)))
    assert max(map(len, Layout.of(problem, config).starts)) > 1
    check(queue, problem, config)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_workspace_falls_to_the_stated_floor(direction):
    problem = ConvProblem.parse("mb128ic64ih64oc128kh9").replace(direction=direction)
    sizes = [SOLVER.workspace(problem, LARGE, config) for config in SOLVER.configs(problem, LARGE)]
    assert sizes[0] <= 1 << 30
    assert min(sizes) <= 16 << 20
    parts = [config for config in SOLVER.configs(problem, LARGE) if (config["m_parts"], config["n_parts"],
             config["k_parts"]) != (1, 1, 1)]  # fmt: skip
    assert len(parts) >= 6
    assert all(config["m_parts"] * config["n_parts"] * config["k_parts"] <= 300 for config in parts)


def test_a_tile_of_every_size_is_a_convolution():
    """The geometry alone, in NumPy's transforms: pads, dilation, wrapping and tiles, along one axis."""
    random = np.random.default_rng(0)
    checked = 0
    for length, kernel, near, far, spread, direction, size in itertools.product(
        (5, 12, 20), (1, 3, 5), (0, 2, 6), (0, 3), (1, 2), DIRECTIONS, (8, 12, 20, 28)
    ):
        if length + near + far < spread * (kernel - 1) + 1:
            continue
        problem = ConvProblem(iw=length, kw=kernel, pw=near, pw_r=far, dw=spread, ndim=1, direction=direction)
        axis = TransformAxis.of(problem, "w", size)
        if axis is None:
            continue
        arrays = {name: random.standard_normal(getattr(problem, name + "_shape")) for name in "xwy"}
        del arrays[problem.written]
        expected = reference.compute(problem, **arrays).ravel()
        data, other = arrays["y" if direction == "bwd_data" else "x"], arrays["y" if direction[-1] == "s" else "w"]
        got = np.zeros(axis.out_length + axis.size)
        for tile in range(axis.tiles):
            one, two = (_spectrum(span, values.ravel(), tile, size)
                        for span, values in ((axis.data, data), (axis.other, other)))  # fmt: skip
            result = np.fft.ifft(one * (two if direction == "bwd_data" else two.conj())).real
            at = tile * axis.out_step
            got[at : at + len(axis.wanted)] += result[list(axis.wanted)]
        np.testing.assert_allclose(got[: axis.out_length], expected, atol=1e-10, err_msg=f"{problem} {size}")
        checked += 1
    assert checked > 300


def _spectrum(span, values: np.ndarray, tile: int, size: int) -> np.ndarray:
    points = np.zeros(size)
    for place in range(0, span.given, span.spread):
        at = span.origin + tile * span.step + place // span.spread
        assert not span.inside or 0 <= at < span.length
        points[place] = values[at] if 0 <= at < span.length else 0
    return np.fft.fft(points)


def test_local_memory_banks_do_not_meet():
    for slots, width, height in itertools.product((1, 2, 4, 8, 16, 32), (1, 5, 9, 27, 28, 32, 64), (2, 5, 17, 33)):
        pitch, row = slot_pitch(slots, width, height), width | 1
        assert pitch >= height * row
        banks = [(i % slots * pitch + i // slots * row) % 16 for i in range(16)]
        assert len(set(banks)) == 16, (slots, width, height)


def test_whole_images_take_the_shortest_transform():
    wanted = {"fwd_mb8ic4ih27oc4kh5ph2": (30, 30), "bwd_data_mb8ic4ih28oc4kh5": (28, 28)}
    for text, sizes in wanted.items():
        problem = ConvProblem.parse(text)
        whole = [t for t in transforms(problem) if t.tiles == 1]
        assert [(t.columns.size, t.rows.size) for t in whole] == [sizes]
    # A 32 x 32 real image has as many real numbers in its spectrum, but for the four that are real.
    problem = ConvProblem.parse("mb8ic4ih32oc4kh9")
    assert Transform.of(problem, (32, 32)).frequencies == 32 * 32 // 2 + 2


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_no_bit_of_an_image_depends_on_its_batch(queue, monkeypatch, direction):
    """The programs fuse what their text fuses, and the compiler nothing else."""
    for name, value in {"name": "fft.gpu", "batch_invariant": True}.items():
        monkeypatch.setattr(SOLVER, name, value, raising=False)
    problem = ConvProblem.parse("mb2ic12ih17oc20kh9ph4").replace(direction=direction)
    texts: list[str] = []

    def kept(context, text, *options):
        texts.append(text)
        return build(context, text, *options)

    monkeypatch.setattr(plan, "build", kept)
    for config in itertools.islice(SOLVER.configs(problem, SMALL), 2):
        Examination(SOLVER, problem, config, None, queue).same_in((6, 1, 4))
    assert len(texts) >= 18  # three programs for each of three batches of two configurations
    for text in texts:
        assert "FP_CONTRACT OFF" in text
        # A sum of the transforms or of the product has no product of its own.
        assert not re.search(r"^ +(const ACC t|u)\d+.* = .*\* .* [+-] ", text, re.MULTILINE)
