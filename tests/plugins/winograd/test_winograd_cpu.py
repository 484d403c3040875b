"""Minimal filtering on CPUs: within the stated error in every direction, layout and dtype, between guard zones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import checking
import numpy as np
import pytest
from convdispatch_winograd.cpu.solver import TILES, expected_error, plain_error, shrunk
from plans import check_config

from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("cpu")
LAYOUTS = ("nchw", "nhwc")
DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
_TURNS = list(itertools.product(LAYOUTS, DIRECTIONS))


def solver_of(tile: tuple[int, int]):
    return plugins().solvers[f"winograd.f{tile[0]}x{tile[1]}"]


def run(problem: ConvProblem, device, tile: tuple[int, int], number: int = 0, data: str = "real") -> float:
    """Run one configuration between guard zones, outputs NaN before; the relative error."""
    solver, info = solver_of(tile), runtime.device_info(device)
    assert solver.rejects(problem, info) is None
    choices = list(solver.configs(problem, info))
    config = choices[min(number, len(choices) - 1)]
    return check_config(runtime.queue(device), problem, solver, config, data=data, limit=np.inf)


# Shapes on whose edges the tiles, strips, blocks and vectors lie.
EDGES = {
    "tiles' and vectors' rests": "mb2ic19ih13iw10oc37kh3ph1",
    "one pad without the other": "mb1ic17ih9iw19oc35kh3ph0pw2ph_r2pw_r0",
    "pads wider than the kernel": "mb1ic16ih4iw6oc17kh3ph3pw4",
    "groups of vectors' parts": "g3mb2ic57ih8oc60kh3ph1",
    "no padding, full vectors, a sum in parts": "mb1ic320ih10oc64kh3",
    "a row cut into strips": "mb1ic16ih4iw330oc16kh3ph1",
    "taps along h": "mb1ic16ih17iw5oc17kh3kw1ph1pw0",
    "taps along w": "mb2ic16ih5iw17oc17kh1kw3ph0pw1",
    "one dimension": "mb2ic17iw40oc18kw3pw1",
    "output of one": "mb3ic16ih3oc16kh3",
}


def admitting(text: str, tile: tuple[int, int], device, **changes) -> ConvProblem:
    """The problem, or a skip where the tile does not pay or reach the error."""
    problem = ConvProblem.parse(text).replace(**changes)
    reason = solver_of(tile).rejects(problem, runtime.device_info(device))
    if reason:
        pytest.skip(reason)
    return problem


@pytest.mark.parametrize(("number", "text"), list(enumerate(EDGES.values())), ids=list(EDGES))
def test_edges(device, full, text, number):
    tiles = [(2, 3), (4, 3)]
    turns = list(itertools.product(tiles, _TURNS))
    for tile, (layout, direction) in turns if full else [turns[number * 5 % 12], turns[(number * 5 + 7) % 12]]:
        problem = ConvProblem.parse(text).replace(layout=layout, direction=direction)
        if solver_of(tile).rejects(problem, runtime.device_info(device)) is None:
            assert run(problem, device, tile, number) <= 1e-5


JOINED = (
    ((2, 3), EDGES["tiles' and vectors' rests"]),
    ((4, 3), EDGES["groups of vectors' parts"]),
    ((7, 3), "mb2ic70ih13oc48kh3ph1"),
    ((4, 3), EDGES["no padding, full vectors, a sum in parts"]),
    ((2, 3), EDGES["a row cut into strips"]),
    ((4, 3), EDGES["taps along h"]),
    ((4, 3), EDGES["one dimension"]),
    ((2, 5), "mb1ic37ih9oc33kh5ph2"),
    ((2, 7), "mb1ic32ih9oc17kh7ph3"),
    ((4, 3), "f16_mb2ic48ih9oc32kh3ph1"),
    ((4, 3), "bf16_mb2ic50ih9oc34kh3ph1"),
    ((2, 3), "f64_mb2ic24ih9oc18kh3ph1"),
    ((4, 3), "g2mb2ic96ih9iw12oc64kh3ph1+bias+residual+relu"),
)


@pytest.mark.parametrize(("tile", "text"), JOINED, ids=[text for _, text in JOINED])
@pytest.mark.parametrize(("layout", "direction"), list(itertools.product(LAYOUTS, ("fwd", "bwd_data"))))
@pytest.mark.parametrize("block", [1, 1 << 20], ids=["chunks", "whole"])
def test_weights_that_are_transformed_where_they_are_used(
    device, thinned, monkeypatch, tile, text, layout, direction, block
):
    """By blocks of target and parts of source channels, also again for each chunk, however the weights lie."""
    from convdispatch_winograd.cpu import choice

    turn = len(text) + LAYOUTS.index(layout) + 2 * DIRECTIONS.index(direction) + block
    thinned(turn % 3)
    monkeypatch.setattr(choice, "MAX_BLOCK_BYTES", block)
    problem = admitting(text, tile, device, layout=layout, direction=direction)
    found = list(solver_of(tile).configs(problem, runtime.device_info(device)))
    number = next(i for i, config in enumerate(found) if config["form"] == "joined")
    assert run(problem, device, tile, number) <= checking.TOLERANCE[problem.dtype]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("tile", TILES, ids=[f"f{m}x{r}" for m, r in TILES])
def test_tiles_stay_within_their_stated_error(device, thinned, tile, direction):
    m, r = tile
    sizes = f"kh{r}" if r < 7 else f"kh1kw{r}"
    text = f"mb2ic16ih{2 * m + r}iw{3 * m + r}oc32{sizes}"
    layout = LAYOUTS[(m + DIRECTIONS.index(direction)) % 2]
    thinned((TILES.index(tile) + DIRECTIONS.index(direction)) % 3)
    problem = admitting(text, tile, device, direction=direction, layout=layout)
    error = run(problem, device, tile)
    assert error <= 2 * expected_error(problem, m, r)
    assert error <= 1e-5


@pytest.mark.parametrize(
    "activation", ["tanh", "sigmoid", "clip(-1,2.5)", "clip(-0.4,0.4)", "relu6", "hardsigmoid", "relu", "silu"]
)
def test_errors_behind_activations_that_shrink_results(device, activation):
    plain = ConvProblem.parse("nhwc_mb1ic64ih14oc32kh3ph1")
    problem = plain.replace(activation=activation)
    behind = run(problem, device, (4, 3)) / run(plain, device, (4, 3))
    assert behind == pytest.approx(shrunk(problem), rel=0.4)
    assert (shrunk(problem) > 1) == (activation not in ("relu", "silu"))


EPILOGUES = (
    {"bias": True, "activation": "relu6"},
    {"bias": True, "residual": True, "activation": "relu"},
    {"accumulate": True},
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=["bias", "residual", "accumulate"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_epilogues(device, thinned, epilogue, layout, direction):
    if direction == "bwd_weights" and "bias" in epilogue:
        pytest.skip("dw has no epilogue but accumulation")
    thinned((len(epilogue) + LAYOUTS.index(layout) + DIRECTIONS.index(direction)) % 3)
    problem = ConvProblem.parse("g2mb2ic32ih9iw12oc38kh3ph1").replace(layout=layout, direction=direction, **epilogue)
    assert run(problem, device, (4, 3), 1) <= 1e-5


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("layout", "direction"), [("nchw", "fwd"), ("nhwc", "bwd_data"), ("nhwc", "bwd_weights")])
def test_dtypes(device, thinned, dtype, layout, direction):
    if runtime.device_info(device).supports(dtype):
        pytest.skip("the device lacks it")
    thinned(DIRECTIONS.index(direction) != ["float16", "bfloat16", "float64"].index(dtype))
    text = "mb2ic18ih9iw11oc20kh3ph1"
    problem = ConvProblem.parse(text).replace(dtype=dtype, layout=layout, direction=direction, bias=direction == "fwd")
    assert run(problem, device, (4, 3)) <= checking.TOLERANCE[dtype]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_configurations(device, full, direction):
    """Every configuration is right, and the last ones need the least workspace."""
    text = "mb3ic24ih30oc40kh3ph1"
    problem = ConvProblem.parse(text).replace(direction=direction, constant_weights=direction == "fwd")
    solver, info = solver_of((4, 3)), runtime.device_info(device)
    few = replace(info, compute_units=2)  # each unit has its own buffers: of many the smallest piece has as many
    sizes = [solver.workspace(problem, few, config) for config in solver.configs(problem, few)]
    assert min(sizes) == sizes[-1] < sizes[0]
    found = list(solver.configs(problem, info))
    for number in range(len(found)) if full else {1, len(found) - 1}:
        assert run(problem, device, (4, 3), number) <= 1e-5


def test_ieee_takes_small_tiles(device):
    info = runtime.device_info(device)
    problem = ConvProblem.parse("ieee_mb2ic64ih14oc64kh3ph1")
    assert solver_of((2, 3)).rejects(problem, info) is None
    assert run(problem, device, (2, 3)) <= 2 * plain_error(problem)


@pytest.mark.parametrize("text", ["bwd_data_g2mb1ic500ih9oc34kh3ph1", "nhwc_mb1ic33ih9oc250kh3ph1"])
def test_weights_that_change_are_packed_in_parts(device, monkeypatch, text):
    """Weights that leave the cache are transformed and used block by block."""
    from convdispatch_winograd.cpu import data

    monkeypatch.setattr(data, "UNCACHED_PACKED_BYTES", 1)
    monkeypatch.setattr(data, "PACKED_PART_BYTES", 1 << 18)
    problem = ConvProblem.parse(text)
    found = list(solver_of((4, 3)).configs(problem, runtime.device_info(device)))
    number = next(i for i, config in enumerate(found) if config["form"] == "apart" and config["strips"] > 1)
    assert run(problem, device, (4, 3), number) <= 1e-5
