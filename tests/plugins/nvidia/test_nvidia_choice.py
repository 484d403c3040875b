"""The nvidia plugin's cost models rate hundreds of tiles at once, as arrays: each as if it were alone."""

from __future__ import annotations

import dataclasses

import pytest
from convdispatch_nvidia.direct import choice as direct
from convdispatch_nvidia.direct.tiling import DirectTiling
from convdispatch_nvidia.packed import choice as packed
from convdispatch_nvidia.packed.tiling import Tiling
from convdispatch_nvidia.tma import choice as tma
from convdispatch_nvidia.tma.tiling import TmaTiling
from convdispatch_nvidia.usual import usual_tiles

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.matrix import usual
from convdispatch.device.matrix_tiles.configured import ACCEPTED

HOPPER = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
UNITS = 132
PACKED = [
    # problem, engine: windows, phases, stacked phases, parts, planes that lie in the tensors, sums that carry
    ("fwd_f32_mb1ic64ih56iw56oc64kh3ph1", "wgmma"),
    ("fwd_f32_mb1ic64ih14iw14oc72kh3ph1sh2+constant", "mma"),
    ("fwd_f32_nhwc_mb4ic3ih224iw224oc64kh7ph3sh2", "wgmma"),
    ("bwd_data_f32_mb8ic3ih56iw56oc64kh3ph1sh2", "wgmma"),
    ("bwd_data_f32_mb8ic3ih56iw56oc64kh3ph1sh2", "mma"),
    ("bwd_data_f16_nhwc_mb8ic128ih28iw28oc256kh3ph1", "wgmma"),
    ("bwd_weights_f32_mb32ic64ih28iw28oc128kh3ph1", "wgmma"),
    ("bwd_weights_f32_mb2ic64ih28iw28oc128kh1", "mma"),
]


def _rows(numbers, count: int = 25):
    step = max(1, len(numbers) // count)
    return list(range(0, len(numbers), step))


@pytest.mark.parametrize("math", ["float32", "ieee"])
@pytest.mark.parametrize(("text", "engine"), PACKED)
def test_packed_tiles_are_rated_together_as_alone(text, engine, math):
    problem = ConvProblem.parse(text)
    problem = problem.replace(math=math) if problem.dtype == "float32" else problem
    checked = 0
    for name in packed.formats(problem):
        for plain, numbers, _ in packed._tiles(problem, engine, name, UNITS):
            together = packed.seconds(Tiling(problem, packed.many(plain, packed.NUMBERS, numbers)), UNITS)
            for row in _rows(numbers):
                named = dict(zip(packed.NUMBERS, numbers[row].tolist(), strict=True))
                tiling = Tiling(problem, dataclasses.replace(plain, **named))
                assert tiling.misfit is None
                assert float(packed.seconds(tiling, UNITS)) == pytest.approx(float(together[row]), rel=1e-12)
                checked += 1
    assert checked > 10


@pytest.mark.parametrize("math", ["float32", "ieee", "tf32"])
@pytest.mark.parametrize(
    "text",
    ["fwd_f32_mb1ic64ih56iw56oc256kh1", "fwd_f32_nhwc_mb1ic510ih7iw7oc33kh1", "bwd_data_f32_mb2ic64ih28oc48kh1sh2"],
)
def test_direct_tiles_are_rated_together_as_alone(text, math):
    problem = ConvProblem.parse(text).replace(math=math)
    for name in direct.FORMATS_OF_MATH[problem.math]:
        plain, numbers = direct._tiles(problem, name, UNITS)
        together = direct._seconds(
            DirectTiling(problem, direct.many(plain, direct.NUMBERS, numbers)), UNITS, direct.COPY
        )
        for row in _rows(numbers):
            named = dict(zip(direct.NUMBERS, numbers[row].tolist(), strict=True))
            tile = dataclasses.replace(plain, **named)
            assert DirectTiling(problem, tile).misfit is None
            assert direct.seconds(DirectTiling(problem, tile), UNITS) == pytest.approx(float(together[row]), rel=1e-12)


def test_tiles_that_do_not_fit_are_told_apart_in_arrays():
    """A row that is wrong in one way is left out, and its neighbours are not."""
    problem = ConvProblem.parse("fwd_f32_mb1ic64ih56iw56oc64kh3ph1")
    good = (64, 64, 1, 1, 64, 3, 1, 3)
    bad = [(96, 64, 1, 1, 64, 3, 1, 3), (64, 256, 1, 1, 64, 12, 1, 3), (64, 64, 1, 1, 64, 3, 99, 3)]
    numbers = packed.np.array([good, *bad, good])
    plain = dataclasses.replace(next(packed._tiles(problem, "wgmma", "bfloat2", UNITS))[0], window=False)
    fit = packed.fitting(Tiling(problem, packed.many(plain, packed.NUMBERS, numbers)), len(numbers))
    assert fit.tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("text", "engine"), PACKED)
def test_the_first_choice_is_usual_or_the_cheapest(text, engine, listed, monkeypatch):
    if not listed:
        monkeypatch.setattr(packed, "usual_tiles", lambda kind: {})
    problem = ConvProblem.parse(text)
    tiles = list(packed.choices(problem, engine, UNITS))
    assert len(set(tiles)) == len(tiles) > 4
    first = [tile for tile in tiles if tile.format == tiles[0].format]
    costs = [float(packed.seconds(Tiling(problem, tile), UNITS)) for tile in first]
    assert min(costs) <= costs[0] <= (ACCEPTED if listed else 1) * min(costs)


TMA = [
    # folded pixels, gathered taps, half boxes, phases, parts in launches and in work groups, norms in place
    "fwd_bf16_nhwc_mb64ic64ih56iw56oc256kh1kw1+norm(relu)+sums",
    "fwd_bf16_nhwc_mb1ic16ih56iw56oc96kh1kw1",
    "fwd_f16_nhwc_mb8ic3ih224iw224oc64kh7kw7sh2sw2ph3pw3",
    "bwd_data_bf16_nhwc_mb64ic512ih14iw14oc512kh3kw3sh2sw2ph1pw1",
    "bwd_data_bf16_nhwc_mb64ic1024ih14iw14oc256kh1kw1+residual+norm(relu)+sums",
    "bwd_weights_bf16_nhwc_mb64ic96ih28iw28oc128kh3kw3ph1pw1",
    "fwd_f32_nhwc_tf32_mb1ic512ih7iw7oc512kh3kw3ph1pw1",
]


@pytest.mark.parametrize("text", TMA)
def test_tma_tiles_are_rated_together_as_alone(text):
    problem, checked = ConvProblem.parse(text), 0
    for rewritten, base in tma._bases(problem):
        rated = list(tma._rated(rewritten, base, UNITS))
        fitting = {dataclasses.astuple(tile) for kind in rated for tile in map(tma.tile_of, *_alike(kind))}
        for tile, rows, costs, _ in rated:
            for row in _rows(rows):
                tiling = TmaTiling(rewritten, tma.tile_of(tile, rows[row]))
                assert tiling.misfit is None
                assert float(tma.seconds(tiling, UNITS)) == pytest.approx(float(costs[row]), rel=1e-12)
                checked += 1
        for row in tma._shapes(base.bk * rewritten.itemsize):
            tile = tma.tile_of(base, row)
            assert (TmaTiling(rewritten, tile).misfit is None) <= (dataclasses.astuple(tile) in fitting)
    assert checked >= 5


def _alike(kind):
    tile, rows, *_ = kind
    return [tile] * len(rows), rows


@pytest.mark.parametrize("text", TMA)
def test_a_choice_of_tma_arranges_few_tilings(text, monkeypatch):
    """Those of many tiles at once, where each tile of some hundred had its own."""
    problem, arranged = ConvProblem.parse(text), []
    arrange = TmaTiling._arrange
    monkeypatch.setattr(TmaTiling, "_arrange", lambda tiling: (arranged.append(1), arrange(tiling))[1])
    assert next(iter(tma.choices(problem, UNITS)))
    assert len(arranged) <= 8 * len(list(tma._bases(problem)))


@pytest.mark.parametrize(
    ("places", "index"),
    [
        ({}, 0),  # none is usual: the fastest
        ({"f": 0}, 0),  # too slow
        ({"c": 0, "b": 1}, 2),  # as fast as the fastest usual one, and more usual
        ({"e": 0, "b": 1}, 1),  # more usual, but slower
        ({"c": 0}, 2),
    ],
)
def test_a_usual_tile_is_taken_where_it_is_nearly_as_fast(places, index):
    assert usual([1.0, 1.01, 1.03, 1.05, 1.08, 1.1], "abcdef", places) == index


def test_every_usual_tile_is_one_that_some_layer_may_have():
    """Names are those that the choices give their tiles, so that the lists are not dead."""
    problem = ConvProblem.parse("fwd_f16_mb32ic256ih14oc1024kh1")
    bases, kinds, numbers, _ = packed.rated(problem, "wgmma", "float16", UNITS)
    named = {packed.name_of(bases[kind], row, problem) for kind, row in zip(kinds, numbers.tolist(), strict=True)}
    assert len(named & usual_tiles("wgmma native nchw").keys()) > 2
    problem32 = problem.replace(dtype="float32", math="tf32")
    bases, kinds, numbers, _ = packed.rated(problem32, "wgmma", packed.formats(problem32)[0], UNITS)
    named = {packed.name_of(bases[kind], row, problem32) for kind, row in zip(kinds, numbers.tolist(), strict=True)}
    assert len(named & usual_tiles("wgmma half1 nchw").keys()) > 2
    shared, rows, _ = tma.rated(problem.replace(layout="nhwc"), UNITS)
    tiles = map(tma.tile_of, shared, rows)
    assert len({tma.name_of(tile) for tile in tiles} & usual_tiles("tma fwd 2").keys()) > 2
