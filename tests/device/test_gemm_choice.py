"""What the matrix product is predicted to take, and Winograd's tiles: the choices that whole nets on a CPU showed."""

from __future__ import annotations

import dataclasses
import functools
import re

import pytest
from convdispatch_winograd.cpu.case import Case
from convdispatch_winograd.cpu.choice import Pace
from convdispatch_winograd.cpu.choice import configs as configs_of_winograd
from convdispatch_winograd.cpu.data import DataKernel

from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import ConvProblem
from convdispatch.device.gemm import Axis, GemmSpec, Matrix, configs
from convdispatch.device.gemm.cost import product_cost
from convdispatch.device.gemm.source import gemm_text
from convdispatch.selection.plugins.loader import plugins

CPU = DeviceInfo("cpu", "intel", "cpu", "", simd_width=16, compute_units=2, local_mem_size=256 << 10)


def pointwise(channels: int, targets: int, pixels: int) -> GemmSpec:
    """A 1x1 layer's product, pixels with their channels last, constant weights."""
    x, y = (Matrix(Axis(1), Axis(size), Axis(0)) for size in (channels, targets))
    w = Matrix(Axis(channels), Axis(1), Axis(0))
    return GemmSpec(targets, pixels, channels, 1, "float32", w, x, y, a_packed=True)


def chosen(spec: GemmSpec) -> dict:
    return min(configs(spec, CPU), key=functools.partial(product_cost, spec))


@pytest.mark.parametrize("sizes", [(144, 24, 3136), (96, 24, 3136), (240, 40, 784), (256, 64, 3136)])
def test_vectors_run_along_channels_that_lie_beside_each_other(sizes):
    """The other way round packs the pictures and scatters the sums, whatever part of a vector the channels leave."""
    first = chosen(pointwise(*sizes))
    assert first["swap"]
    assert not first["pack_b"]


@pytest.mark.parametrize("sizes", [(512, 128, 6272), (128, 512, 6272), (320, 192, 3200), (64, 128, 100352)])
def test_rows_asked_for_ahead_are_read_where_they_lie(sizes):
    """With sixteen registers, too, whose tiles are narrow: reading pictures once more a panel costs little."""
    avx2 = dataclasses.replace(CPU, simd_width=8)
    spec = pointwise(*sizes)
    first = min(configs(spec, avx2), key=functools.partial(product_cost, spec))
    assert first["swap"]
    assert not first["pack_b"]
    assert first["mr"] * first["nv"] > 9


def test_panels_of_whole_lines_are_written_once():
    avx2 = dataclasses.replace(CPU, simd_width=8)
    spec = pointwise(64, 128, 100352)
    assert min(configs(spec, avx2), key=functools.partial(product_cost, spec))["nv"] % 2 == 0


def test_a_tile_has_sums_enough_to_hide_an_addition():
    first = chosen(pointwise(1024, 256, 196))
    assert first["mr"] * first["nv"] * first["ku"] >= 8


def planes(targets: int, pixels: int, channels: int, images: int = 1, **options) -> GemmSpec:
    """A 1x1 layer's product, channels first, weights as they lie unless the options say that they are packed."""
    x, y = (Matrix(Axis(pixels), Axis(1), Axis(size * pixels)) for size in (channels, targets))
    return GemmSpec(targets, pixels, channels, images, "float32", Matrix(Axis(channels), Axis(1)), x, y, **options)


def test_rows_that_share_few_places_of_a_cache_are_packed_where_they_are_used():
    """Rows of 2304 bytes reach every fourth place of the nearest cache; of 2240 bytes all of them."""
    assert chosen(planes(96, 576, 256, a_packed=True))["pack_b"]
    assert not chosen(planes(96, 560, 256, a_packed=True))["pack_b"]


def test_rows_that_many_tiles_read_are_packed():
    """Vectors of an array that begins within a line lie across two, for each row of tiles anew."""
    assert chosen(planes(512, 560, 128, a_packed=True))["pack_b"]
    assert not chosen(planes(64, 560, 128, a_packed=True))["pack_b"]


def test_weights_whose_columns_lie_on_many_pages_are_packed():
    """The data gradient reads them along rows of 3 KB, a line of each."""
    x = Matrix(Axis(784), Axis(1))
    first = chosen(GemmSpec(784, 784, 784, 1, "float32", Matrix(Axis(1), Axis(784)), x, x))
    assert first["pack_b" if first["swap"] else "pack_a"]


def test_a_long_sum_reads_its_wide_operand_once():
    """A work item that had one row of tiles would read a panel of megabytes for it alone."""
    x, y = (Matrix(Axis(3600), Axis(1, 3600, size * 3600)) for size in (24, 144))
    spec = GemmSpec(144, 24, 4 * 3600, 1, "float32", y, x.transposed, Matrix(Axis(24), Axis(1)))
    first = chosen(spec)
    assert first["mt"] * first["mr"] >= (12 if first["swap"] else 72)


@pytest.mark.parametrize(
    ("ic", "oc", "size", "name"),
    [
        (256, 256, 14, "winograd.f2x3"),  # F(5) reads three times the weights
        (512, 512, 14, "winograd.f2x3"),
        (64, 64, 56, "winograd.f7x3"),  # few weights, whole tiles
    ],
)
def test_few_tiles_take_the_transform_of_fewer_weights(ic, oc, size, name):
    text = f"fwd_f32_nhwc_mb1ic{ic}ih{size}iw{size}oc{oc}kh3kw3ph1pw1+bias+relu+constant"
    problem, costs = ConvProblem.parse(text), {}
    for solver in plugins().solvers.values():
        if solver.name.startswith("winograd.") and solver.rejects(problem, CPU) is None:
            costs[solver.name] = solver.cost(problem, CPU, next(iter(solver.configs(problem, CPU))))
    assert min(costs, key=costs.get) == name


@pytest.mark.parametrize(
    ("rows", "k", "columns", "lines"),
    [(49, 512, 2048, 1), (8, 512, 2048, 2), (4, 512, 2048, 0), (1, 2048, 1024, 0), (49, 64, 128, 0)],
)
def test_tiles_ask_for_all_of_the_next_panel(rows, k, columns, lines):
    """Where several tiles of 4 by 64 read a panel of weights that no near cache keeps: lines of it in each k."""
    x, w = Matrix(Axis(k), Axis(1), Axis(0)), Matrix(Axis(1), Axis(k), Axis(0))
    spec = GemmSpec(rows, columns, k, 1, "float32", x, w, Matrix(Axis(columns), Axis(1), Axis(0)), b_packed=True)
    config = {**chosen(spec), "swap": False, "mr": 4, "nv": 4, "ku": 1, "mt": 99, "pack_a": False}
    steps = {int(found) for found in re.findall(r"next \+= (\d+)", gemm_text(spec.simplified, config))}
    assert steps == ({16 * lines} if lines else set())


@pytest.mark.parametrize(
    ("text", "lines"), [("ic256ih14oc256", 1), ("ic64ih7oc512", 4), ("ic512ih4oc512", 4), ("ic16ih14oc16", 0)]
)
def test_transformed_tiles_ask_for_the_next_weights(text, lines):
    problem = ConvProblem.parse(f"fwd_f32_nhwc_mb1{text}kh3ph1+constant")
    case = Case(problem, 4, 16)
    assert DataKernel(case, next(configs_of_winograd(case, 32, Pace.of(CPU, 16)))).fetched == lines
