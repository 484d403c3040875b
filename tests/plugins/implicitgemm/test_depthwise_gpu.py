"""Depthwise layers on GPUs, in tiles of places and vectors of channels, run as ``plans.py`` says.

The tables of small problems run in ``test_implicitgemm_gpu.py``; here are the tiles.
"""

from __future__ import annotations

import itertools

import pytest
from convdispatch_implicitgemm.gpu.depthwise import Depthwise, DepthwiseTile
from convdispatch_implicitgemm.gpu.depthwise_sums import DepthwiseSums, Sums
from plans import LARGE, SMALL, check_solver

from convdispatch import ConvProblem

pytestmark = pytest.mark.usefixtures("item_by_item")

# A problem and tiles of it: (vector, rows, columns, turns). Odd sizes, rests of tiles, pads, strides, dilation, depth.
TILES = [
    ("f16_nhwc_g24mb2ic24ih9iw11oc24kh3ph1", [(8, 4, 2, 1), (4, 2, 4, 2), (2, 1, 7, 1), (1, 1, 1, 3)]),
    ("bf16_nhwc_g16mb2ic16ih7iw9oc16kh3ph1sh2", [(8, 2, 2, 1), (2, 4, 1, 2)]),
    ("f32_nhwc_g12mb1ic12ih8oc12kh5ph2sh2", [(4, 2, 2, 1), (2, 1, 4, 1)]),
    ("f16_nhwc_g40mb1ic40ih6oc40kh3dh2ph2", [(8, 2, 4, 1)]),
    ("bf16_nhwc_g8mb1ic8ih9oc8kh7ph3", [(4, 2, 4, 1), (2, 4, 2, 1)]),
    ("f64_nhwc_g6mb1ic6ih7oc6kh3sh3ph1", [(2, 2, 2, 1)]),
    ("f16_nhwc_g72mb2ic72id3ih4iw5oc72kd3kh3ph1pd1", [(4, 2, 2, 1)]),
    ("f16_nhwc_g8mb1ic8ih8iw1oc8kh3kw1ph0ph_r2", [(8, 4, 1, 1)]),
    ("f16_g5mb3ic5ih9iw13oc5kh3ph1", [(1, 4, 1, 1), (1, 8, 2, 2)]),
    ("f32_g6mb2ic6ih8iw7oc6kh5ph2sh2", [(1, 2, 1, 1), (1, 4, 2, 1)]),
    ("f32_g3mb4ic3ih17oc3kh7ph3", [(1, 7, 2, 1), (1, 8, 1, 1)]),
]
NAMES = ("vector", "rows", "columns", "turns")


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize(("text", "tiles"), TILES, ids=[text for text, _ in TILES])
def test_tiles(queue, direction, text, tiles):
    problem = ConvProblem.parse(f"{direction}_{text}")
    assert Depthwise().rejects(problem, SMALL) is None
    for tile in tiles:
        check_solver(queue, problem, Depthwise(), dict(zip(NAMES, tile, strict=True)))
    check_solver(queue, problem, Depthwise(), data="real")


@pytest.mark.parametrize(("text", "tiles"), TILES, ids=[text for text, _ in TILES])
def test_tiles_of_the_weights_gradient(queue, text, tiles):
    problem = ConvProblem.parse(f"bwd_weights_{text}")
    assert DepthwiseSums().rejects(problem, SMALL) is None
    for tile, parts in zip(tiles, itertools.cycle((3, 1, 2))):
        check_solver(queue, problem, DepthwiseSums(), {**dict(zip(NAMES, tile, strict=True)), "parts": parts})
    check_solver(queue, problem, DepthwiseSums(), data="real")


@pytest.mark.parametrize("text", [
    "fwd_f16_nhwc_g16mb2ic16ih7oc16kh3ph1+bias+residual+relu", "fwd_f16_g6mb2ic6ih7oc6kh3ph1+bias+relu6",
    "bwd_data_bf16_nhwc_g16mb2ic16ih7oc16kh3ph1sh2+bias+residual+relu6", "fwd_f32_nhwc_g12mb1ic12ih6oc12kh3+accumulate",
    "fwd_bf16_nhwc_g16mb1ic16ih6oc16kh3+accumulate", "bwd_weights_f16_nhwc_g16mb2ic16ih7oc16kh3ph1+accumulate",
    "bwd_weights_g5mb2ic5ih7oc5kh3ph1+accumulate", "fwd_f16_nhwc_g16mb2ic16ih7oc16kh3ph1+bias+relu+constant",
])  # fmt: skip
def test_epilogues(queue, text):
    problem = ConvProblem.parse(text)
    check_solver(queue, problem, DepthwiseSums() if problem.direction == "bwd_weights" else Depthwise())


def test_every_configuration_fits_its_text_and_memory():
    for form, direction in itertools.product(("f16_nhwc", "f32", "f64_nhwc"), ("fwd", "bwd_data", "bwd_weights")):
        for text in ("g96mb16ic96ih56oc96kh7ph3", "g960mb1ic960ih7oc960kh3ph1", "g72mb8ic72ih56oc72kh5ph2sh2"):
            problem = ConvProblem.parse(f"{direction}_{form}_{text}")
            solver = DepthwiseSums() if direction == "bwd_weights" else Depthwise()
            configs = list(solver.configs(problem, LARGE))
            costs = [solver.cost(problem, LARGE, config) for config in configs]
            assert costs == sorted(costs)
            for config in configs:
                tile = Sums.of(problem, config).tile if direction == "bwd_weights" else DepthwiseTile(problem, **config)
                assert tile.lanes * tile.deep <= 128
                assert tile.lanes * tile.slabs >= tile.across
                assert tile.geometry.volume * tile.vector * tile.lanes * tile.accsize <= 32768
