"""The GPU room of implicitgemm, run as ``plans.py`` says; integer data compare exactly."""

from __future__ import annotations

import dataclasses

import convdispatch_implicitgemm
import pytest
from convdispatch_implicitgemm.gpu.narrow import Narrow
from convdispatch_implicitgemm.gpu.product import Product, Tile
from convdispatch_implicitgemm.gpu.solver import Form, Tiled
from plans import LARGE, SMALL, check_solver, declared

from convdispatch import ConvProblem
from convdispatch.device import rates

pytestmark = pytest.mark.usefixtures("item_by_item")
SOLVERS = declared(convdispatch_implicitgemm, SMALL)


def check(queue, problem: ConvProblem, name: str, config=None, **options) -> None:
    check_solver(queue, problem, SOLVERS[name], config, **options)


@pytest.mark.parametrize("text", [
    "bwd_weights_g3mb2ic3ih7oc6kh3ph1",
    "bwd_weights_nhwc_g5mb2ic5ih8iw9oc15kh2kw3sh2pw1",
    "bwd_weights_f16_g33mb3ic33ih6oc66kh3ph1+accumulate",
    "bwd_weights_f16_nhwc_g33mb3ic33ih6oc66kh1kw3+accumulate",
    "bwd_weights_bf16_g2mb1ic2id4ih5iw6oc8kd2kh2kw1",
])  # fmt: skip
def test_several_filters_a_channel(queue, text):
    """Their weights' gradient is a product of few rows."""
    check(queue, ConvProblem.parse(text), "implicitgemm.tiled")


# One problem a way of reading: enough channels, places and taps that several slices and tiles follow each other.
WAYS = [
    "fwd_mb3ic20ih7oc70kh3ph1",
    "fwd_nhwc_mb3ic20ih7oc70kh3ph1",
    "fwd_mb2ic3ih15oc20kh5sh2ph2",
    "bwd_data_mb2ic20ih9oc18kh3sh2ph1",
    "bwd_weights_mb2ic20ih8oc34kh3ph1",
    "bwd_weights_nhwc_mb2ic20ih8oc36kh3ph1",
]


@pytest.mark.parametrize("text", WAYS)
def test_configurations(queue, full, text):
    problem = ConvProblem.parse(text)
    solver = SOLVERS["implicitgemm.tiled"]
    seen = set()
    for config in solver.configs(problem, SMALL):
        tile = Tile.of(config)
        kind = (tile.bm, tile.bn, tile.tm, tile.tn, tile.walk) if full else (tile.walk, tile.split > 1, tile.bk > 8)
        if kind not in seen and (full or len(seen) < 5):
            seen.add(kind)
            check(queue, problem, solver.name, config)


@pytest.mark.parametrize("text", WAYS)
def test_splits_and_single_stage(queue, text):
    problem = ConvProblem.parse(text)
    for split, stages in ((3, 2), (1, 1)):
        tile = next(tile for tile in (Tile(32, 64, 16, 4, 4, split=split, stages=stages),
                                      Tile(32, 128, 5, 8, 4, split=split, stages=stages, walk="taps"))
                    if Product(problem, tile).misfit is None)  # fmt: skip
        check(queue, problem, "implicitgemm.tiled", tile.config())


def test_what_is_compiled_decides_the_form():
    """Near misses: a border that no tap crosses, a channel too many for whole slices, offsets beyond 31 bits."""
    tile = Tile(32, 64, 16, 4, 4)
    base = ConvProblem.parse("fwd_mb3ic32ih7oc70kh3ph1")
    others = [
        base.replace(ph=0, pw=0, ph_r=0, pw_r=0),
        base.replace(ic=33),
        base.replace(mb=1 << 22),
        base.replace(kw=1, pw=0, pw_r=0),
    ]
    forms = [Form.of(Product(problem, tile)) for problem in (base, *others)]
    assert len({*forms}) == len(forms)
    assert Form.of(Product(base.replace(mb=5, ic=48, oc=96, kh=5, kw=5), tile)) == forms[0]


@pytest.mark.parametrize("text", ["bwd_data_mb2ic3ih13oc6kh7sh2ph3", "bwd_data_nhwc_g2mb1ic4ih9iw14oc4kh5sh3ph1"])
def test_narrow_groups_in_every_shape(queue, text):
    problem = ConvProblem.parse(text)
    for config in Narrow().configs(problem, SMALL):
        check(queue, problem, "implicitgemm.tiled_narrow", config)


@pytest.fixture
def on_a_queue(monkeypatch, tmp_path):
    """The H200's rates on OpenCL's queue, where its times were measured; estimates are those of CUDA's streams."""
    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path))
    rates.keep(LARGE, dataclasses.replace(rates.estimate(LARGE), launch=rates.QUEUE_LAUNCH))
    yield
    rates.rates.cache_clear()


@pytest.mark.parametrize(("solver", "text", "config", "ms"), [
    (Tiled(), "bwd_data_f32_mb128ic480ih14oc16kh1", {"bm": 64, "bn": 128, "bk": 16, "tm": 8, "tn": 8}, 0.0313),
    # Whole sectors are not written where an image has 49 pixels, nor channels last.
    (Tiled(), "bwd_data_f32_mb128ic832ih7oc32kh1", {"bm": 64, "bn": 128, "bk": 16, "tm": 8, "tn": 8}, 0.0524),
    (Tiled(), "bwd_data_f16_nhwc_mb128ic480ih14oc16kh1", {"bm": 64, "bn": 128, "bk": 16, "tm": 8, "tn": 8}, 0.0589),
    (Tiled(), "fwd_f32_mb128ic480ih14oc16kh1", {"bm": 16, "bn": 128, "bk": 16, "tm": 4, "tn": 4, "split": 2}, 0.0353),
    (Narrow(), "bwd_data_f32_mb64ic3ih224oc64kh3ph1", {"rows": 8}, 0.451),
    (Narrow(), "bwd_data_f16_nhwc_mb64ic3ih224oc64kh3ph1", {"rows": 8}, 10.7),
])  # fmt: skip
def test_costs_are_times_measured_on_an_h200(on_a_queue, solver, text, config, ms):
    assert solver.cost(ConvProblem.parse(text), LARGE, config) * 1e3 == pytest.approx(ms, rel=0.25)
