"""Costs of the portable solvers on CPUs: idle cores, crowded caches and launches count."""

from __future__ import annotations

import dataclasses

import pytest
from convdispatch_fft.cpu.solver import Tiled
from convdispatch_im2col.solver import Im2col
from convdispatch_implicitgemm.cpu.depthwise import Depthwise
from convdispatch_implicitgemm.cpu.direct import Direct
from convdispatch_implicitgemm.cpu.pointwise import Pointwise
from convdispatch_implicitgemm.cpu.weights import Weights
from convdispatch_winograd.cpu.solver import Winograd

from convdispatch import ConvProblem
from convdispatch.api import DeviceInfo, rates
from convdispatch.api.cpu import FITTED, Balance, uneven
from convdispatch.device.rates import estimate

CPU = DeviceInfo("two cores", "intel", "cpu", "simd512", compute_units=2, simd_width=16, local_mem_size=1 << 18)


def operations(solver, problem, device=CPU, place=0):
    """Operations of the peak that an offered configuration is predicted to take."""
    config = list(solver.configs(problem, device))[place]
    return solver.cost(problem, device, config) * rates(device).flops


@pytest.mark.parametrize(("jobs", "times"), [(1, 2.0), (2, 1.0), (3, 4 / 3), (4, 1.0), (5, 1.2), (100, 1.0)])
def test_work_groups_that_leave_cores_idle(jobs, times):
    assert uneven(jobs, CPU) == pytest.approx(times)


@pytest.mark.parametrize("units", [2, 4])
def test_a_long_row_is_shared_by_cores(units):
    """One band and four vectors of channels are one work group: narrower tiles run on all cores."""
    device = dataclasses.replace(CPU, compute_units=units)
    row = ConvProblem.parse("mb1ic32iw20800oc60kw2dw64")
    for solver, problem in ((Direct(), row), (Weights(), row.replace(direction="bwd_weights"))):
        config = next(solver.configs(problem, device))
        groups = config["parts"] * config.get("items", 1) * config.get("chunks", 1)
        assert groups >= units


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("constant", [True, False])
def test_a_small_depthwise_layer_costs_little_more_than_its_launches(layout, constant):
    problem = ConvProblem.parse("mb1g120ic120ih8oc120kh3ph1").replace(layout=layout, constant_weights=constant)
    assert 5e6 < operations(Depthwise(), problem) < (9e6 if constant else 1.5e7)


def test_gradients_of_weights_that_lie_pages_apart_cost_more():
    """A vector of dw's channels is written across rows: those of 768 channels and 16 taps share a place."""
    near, far = (
        operations(Weights(), ConvProblem.parse(f"bwd_weights_f32_mb1ic{c}ih5oc56kh4")) / c for c in (760, 768)
    )
    assert far > 1.3 * near


@pytest.mark.parametrize(("solver", "text", "launches"), [
    (Direct(), "mb1ic16ih7oc16kh3ph1", 2),
    (Weights(), "bwd_weights_f32_mb1ic16ih7oc16kh3ph1", 2),
    (Depthwise(), "mb1g32ic32ih7oc32kh3ph1", 1),
    (Pointwise(), "mb1ic32ih7oc32kh1+constant", 1),
    (Im2col(), "mb1ic16ih7oc16kh3ph1+constant", 2),
    (Im2col(), "bwd_weights_f32_mb1ic16ih7oc16kh3ph1", 2),
    (Im2col(), "bwd_data_f32_nhwc_mb1ic16ih8oc16kh3sh2ph1", 2),
    (Tiled(), "mb1ic16ih7oc16kh5ph2+constant", 2.5),
])  # fmt: skip
@pytest.mark.parametrize("units", [2, 64])
def test_a_launch_takes_its_time_on_any_number_of_cores(solver, text, launches, units, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    device, problem = dataclasses.replace(CPU, compute_units=units), ConvProblem.parse(text)
    assert solver.cost(problem, device, next(solver.configs(problem, device))) > launches * rates(device).launch


def test_costs_are_of_two_cores():
    assert Balance.of(estimate(CPU)) == pytest.approx(FITTED)
    assert Balance.of(estimate(dataclasses.replace(CPU, compute_units=8))) == pytest.approx((4, 4))


def test_memory_and_launches_are_no_faster_on_more_cores(monkeypatch):
    """Weights that Winograd's data gradient reads across or im2col packs; the second launch of a weights' gradient."""
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    many = dataclasses.replace(CPU, compute_units=32)
    known, solver = rates(many), Winograd(4, 3)
    large = ConvProblem.parse("bwd_data_f32_mb1ic1024ih7oc1024kh3ph1")
    assert solver.cost(large, many, next(solver.configs(large, many))) > 4 * 9 * 1024**2 / known.bandwidth
    packed = ConvProblem.parse("mb1ic1024ih10oc1024kh3ph1")
    config = next(each for each in Im2col().configs(packed, many) if each["gemm"]["pack_a"])
    assert Im2col().cost(packed, many, config) > 4 * 9 * 1024**2 / known.bandwidth
    small = ConvProblem.parse("bwd_weights_f32_mb1ic16ih8oc16kh3ph1")
    assert solver.cost(small, many, next(solver.configs(small, many))) > 0.4 * known.launch


def test_transformed_weights_beyond_the_caches_are_not_earned_by_few_tiles():
    """Weights that change at every call: 49 planes of 256x256 go to memory and come back, 16 stay.

    Unless they are transformed by blocks where they are used, which never leave the second-level cache.
    """
    small, large = (ConvProblem.parse(f"mb{n}ic256ih5oc256kh3ph1") for n in (4, 400))
    f2, f5 = Winograd(2, 3), Winograd(5, 3)

    def place(solver, problem, form):
        return next(i for i, config in enumerate(solver.configs(problem, CPU)) if config["form"] == form)

    def apart(solver, problem):
        return operations(solver, problem, place=place(solver, problem, "apart"))

    assert apart(f2, small) < apart(f5, small)
    assert apart(f5, large) < apart(f2, large)
    assert apart(f5, small) > 1.5 * apart(f5, small.replace(constant_weights=True))
    assert place(f5, small, "joined") == 0
    assert operations(f5, small) < 0.8 * operations(f2, small)


def test_a_batch_of_long_rows_is_packed_in_blocks():
    """dw of 1x1 over four images: A's rows of 961 places are turned in registers, of 49 many elements are left."""
    long, short = (ConvProblem.parse(f"bwd_weights_f32_mb{n}ic192ih{i}oc96kh1") for n, i in ((4, 31), (78, 7)))
    config = next(c for c in Pointwise().configs(long, CPU) if c["gemm"]["pack_a"] is True)
    long_rows, short_rows = (Pointwise().cost(p, CPU, config) * rates(CPU).flops / p.flops for p in (long, short))
    assert long_rows < 0.9 * short_rows
    many = long.replace(mb=64)  # packed operands of 70 MB go to memory and back
    assert Pointwise().cost(many, CPU, config) > 1.2 * 16 * Pointwise().cost(long, CPU, config)


@pytest.mark.parametrize("text", ["mb4ic256ih24oc512kh2sh2", "mb4ic512ih10oc2048kh1"])
def test_results_are_not_written_across_pages(text):
    """dw's rows have 4 KB, and 2: the transposed product would write its columns across them."""
    problem = ConvProblem.parse(f"bwd_weights_f32_{text}")
    assert next(Im2col().configs(problem, CPU))["gemm"]["swap"] is False


@pytest.mark.parametrize(("text", "parts"), [("g32mb4ic1024ih7oc1024kh3ph1", 1), ("mb1ic3ih256oc16kh3sh2ph1", 4)])
def test_a_gradient_of_weights_has_no_more_parts_than_it_earns(text, parts):
    """32 groups are work for all cores: four copies of dw, written and added, took a quarter of the time."""
    problem = ConvProblem.parse("bwd_weights_" + text)
    assert next(Weights().configs(problem, CPU))["parts"] == parts


@pytest.mark.parametrize(("text", "tile", "ms"), [
    ("bwd_data_f32_mb8ic248ih32iw32oc24kh7kw1ph3pw0+constant", [1, 40, 1], 5.44),
    ("bwd_data_f32_mb1ic368ih60iw60oc120kh3kw1ph1pw0", [1, 32, 1], 7.33),
    ("fwd_f32_mb4ic16ih55iw55oc64kh7kw1ph3pw0", [1, 64, 1], 1.17),
    ("bwd_data_f32_mb1ic32ih43iw43oc80kh7kw1", [1, 28, 1], 0.436),
    ("bwd_weights_f32_nhwc_mb1ic48ih48iw48oc48kh7kw1ph3pw0", [1, 30, 1], 0.298),  # pixels are vectors of channels
])  # fmt: skip
def test_transforms_across_rows_of_memory_load_each_number_alone(text, tile, ms, monkeypatch):
    """Times of two cores with AVX-512: columns of planes, whose neighbours lie a row apart."""
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    problem = ConvProblem.parse(text)
    config = next(config for config in Tiled().configs(problem, CPU) if config["tile"] == tile)
    assert 1e3 * Tiled().cost(problem, CPU, config) == pytest.approx(ms / 1.15, rel=0.3)


def test_a_gradient_of_few_channels_is_its_transforms():
    """20 and 44 channels a group, 400 tiles: direct sums took 2.8 ms, 49 planes of both tensors 4.4."""
    problem = ConvProblem.parse("bwd_weights_f32_g4mb1ic80ih99iw99oc176kh3kw3ph1pw1")
    assert operations(Winograd(5, 3), problem) > 0.84 * operations(Weights(), problem)
