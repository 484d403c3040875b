"""The CPU's register-tile kernels: exact on small integers in every direction and layout, between guard zones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import checking
import pytest
import shape_tables
from plans import check_config

from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("cpu")
SOLVERS = ("direct", "depthwise", "pointwise", "weights")
LAYOUTS = ("nchw", "nhwc")
DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")
_TABLE = {entry.name: entry.problem for entry in shape_tables.load("near_miss")}
_BASIC = {entry.name: entry.problem for entry in shape_tables.load("basic")}
# Compiling takes most of a test's time: each shape runs in one direction and layout, neighbours in others.
_TURNS = list(itertools.product(LAYOUTS, DIRECTIONS))


def run(text: str | ConvProblem, device, solver: str = "*", **changes) -> None:
    """Check a problem, changed, with a solver of the plugin."""
    problem = ConvProblem.parse(text) if isinstance(text, str) else text
    lacking = runtime.device_info(device).supports(problem.dtype)
    if lacking:
        pytest.skip(lacking)
    checking.check(problem.replace(**changes), device, solver=f"implicitgemm.{solver}")


@pytest.mark.parametrize(("number", "name"), list(enumerate(_TABLE)), ids=list(_TABLE))
def test_tables(device, full, thinned, number, name):
    thinned(number % 2)
    for layout, direction in _TURNS if full else [_TURNS[number // 2 * 5 % len(_TURNS)]]:
        run(_TABLE[name], device, layout=layout, direction=direction)


@pytest.mark.parametrize(("number", "name"), list(enumerate(_BASIC)), ids=list(_BASIC))
def test_basic_table(device, full, thinned, number, name):
    thinned(number % 5)
    for layout, direction in _TURNS if full else [_TURNS[number // 5 % len(_TURNS)]]:
        run(_BASIC[name], device, layout=layout, direction=direction)


# Shapes on whose edges the tiles, bands, blocks and phases lie; every layout and direction.
EDGES = {
    "columns' rest, channels' rest": "mb1ic5ih9iw19oc35kh3ph1",
    "strides and dilations that share a factor": "mb1ic3ih17iw20oc6kh4kw3sh4sw3dh2dw3ph3pw2",
    "phases without a tap": "mb2ic4ih9oc5kh2sh3",
    "pads as wide as the kernel": "mb1ic3ih4iw6oc4kh3kw5ph3pw5",
    "groups of 3 to 2": "g3mb1ic9ih8oc6kh3ph1ph_r0pw_r2",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", EDGES.values(), ids=list(EDGES))
def test_edges(device, thinned, text, direction, layout):
    thinned((len(text) + DIRECTIONS.index(direction) + LAYOUTS.index(layout)) % 2)
    run(text, device, "direct" if direction != "bwd_weights" else "weights", direction=direction, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("number", "text"),
    list(enumerate(["g7mb1ic35ih12oc42kh3ph1sh2", "g3mb2ic12ih9oc60kh3ph1", "g32mb1ic64ih5oc64kh1+accumulate"])),
)
def test_groups_of_a_weights_gradient_are_dealt_to_work_items(device, thinned, number, text, layout):
    thinned((number + LAYOUTS.index(layout)) % 2)
    problem = ConvProblem.parse(text).replace(direction="bwd_weights", layout=layout)
    solver, info = plugins().solvers["implicitgemm.weights"], runtime.device_info(device)
    first = next(iter(solver.configs(problem, replace(info, compute_units=2))))  # of many there are not groups for each
    assert first["parts"] * first["chunks"] >= 4
    run(problem, device, "weights")


STEMS = (
    "mb2ic3ih21iw40oc13kh3sh2ph1",
    "mb1ic3ih9iw64oc16kh3ph1",
    "mb1ic3ih9iw64oc8kh3kw1ph1pw0+bias",
    "mb2ic3ih10iw50oc20kh3ph1sh2+bias+relu6",
    "mb1ic4ih9iw47oc9kh3kw2ph2pw1+accumulate",
    "mb1ic3ih9iw90oc9kh3sh2dh3ph4+residual",
    "g2mb1ic16ih9iw36oc26kh3sh2ph1+bias",
    "mb1ic32ih5iw18oc8kh3ph1",
    "g2mb1ic40ih9iw36oc26kh3ph1+bias",
    "mb1ic3ih21iw33oc16kh5kw7ph2pw3sh1sw2+bias+relu",
    "mb1ic2ih21iw70oc9kh3kw4ph1pw2sh3sw3dh2dw2+bias+residual+relu",
    "g2mb2ic4ih21iw36oc10kh4sh2ph1+accumulate",
    "mb1ic1id5ih9iw21oc9kd3kh3kw3ph1pd1pw1sd2sh2sw1",
    "f16_mb1ic3ih11iw40oc13kh3sh2ph1",
    "f64_mb1ic3ih11iw40oc13kh3sh2ph1",
    "mb1ic3iw100oc7kw2dw16",
    "mb1ic3ih20iw32oc8kh3ph1+constant",
    # Every fourth column: rows of a vector of each part, of one column less, and with rests on both sides.
    "mb1ic3ih8iw64oc4kh4sh4",
    "mb1ic3ih8iw67oc4kh4sh4ph1",
    "mb1ic3ih8iw66oc4kh4sh4ph1",
    "mb2ic2ih9iw150oc9kh3kw7sh4ph1pw3dh2dw3+bias+relu",
    "f16_mb1ic3ih9iw131oc5kh4sh4ph2",
    "f64_mb1ic3ih9iw75oc5kh4sh4ph3",
)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_every_tile_and_band_of_a_stem_gives_the_same_integers(device, step):
    problem = ConvProblem.parse(f"mb2ic3ih13iw77oc11kh3ph1sh{step}")
    solver, queue = plugins().solvers["implicitgemm.stem"], runtime.queue(device)
    base = next(iter(solver.configs(problem, runtime.device_info(device))))
    tiles = [(11, 1, 1, 1), (4, 2, 5, 3), (3, 1, 13, 32)]
    for (mr, nv, rows, items), staged in itertools.product(tiles, (True, False)):
        config = {**base, "mr": mr, "nv": nv, "rows": rows, "items": items, "staged": staged}
        check_config(queue, problem, solver, config)


EPILOGUES = (
    {"bias": True, "activation": "relu6"},
    {"bias": True, "residual": True, "activation": "relu"},
    {"accumulate": True},
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=["bias", "residual", "accumulate"])
@pytest.mark.parametrize(
    ("solver", "text"),
    [
        ("direct", "g2mb2ic6ih7oc38kh3ph1"),
        ("depthwise", "g19mb2ic19ih9oc19kh3sh2ph1"),
        ("pointwise", "mb2ic18ih6oc21kh1"),
    ],
    ids=["direct", "depthwise", "pointwise"],
)
def test_epilogues(device, thinned, solver, text, epilogue, layout):
    thinned((len(solver) + EPILOGUES.index(epilogue) + LAYOUTS.index(layout)) % 2)
    run(text, device, solver, layout=layout, **epilogue)


DTYPES = ("float64", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("number", "solver", "text", "direction"),
    [
        (0, "direct", "mb1ic5ih9oc20kh3ph1", "fwd"),
        (1, "direct", "mb1ic5ih9oc4kh3sh2ph1", "bwd_data"),
        (1, "depthwise", "g18mb1ic18ih9oc18kh3ph1", "fwd"),
        (0, "weights", "mb2ic5ih9oc20kh3ph1", "bwd_weights"),
    ],
)
def test_dtypes(device, full, thinned, number, solver, text, direction, dtype):
    if runtime.device_info(device).supports(dtype):
        pytest.skip("the device lacks it")
    thinned((number + DTYPES.index(dtype)) % 2)
    for layout in LAYOUTS if full else [LAYOUTS[len(dtype + direction + solver) % 2]]:
        run(text, device, solver, direction=direction, dtype=dtype, layout=layout, bias=direction == "fwd")


@pytest.mark.parametrize(
    ("solver", "text", "direction"),
    [
        ("direct", "mb3ic20ih20oc40kh3ph1", "fwd"),
        ("direct", "mb1ic20ih12oc24kh3ph1", "bwd_data"),
        ("weights", "mb3ic20ih12oc40kh3ph1", "bwd_weights"),
        ("depthwise", "g20mb1ic20ih20oc20kh3ph1", "fwd"),
    ],
)
def test_configurations(device, full, solver, text, direction):
    """Every configuration gives the reference's very integers, and states its workspace; unless ``full`` every second
    and the last."""
    for layout in LAYOUTS if full else ("nchw",):
        problem = ConvProblem.parse(text).replace(direction=direction, layout=layout)
        chosen, info = plugins().solvers[f"implicitgemm.{solver}"], runtime.device_info(device)
        if (refusal := chosen.rejects(problem, info)) is not None:
            assert layout == "nhwc", refusal
            continue
        configs = list(chosen.configs(problem, info))
        for config in configs if full else [*configs[:-1:2], configs[-1]]:
            check_config(runtime.queue(device), problem, chosen, config)


# Channels last in one block of source channels: sums go straight to the target, vectors' and rows' rests among them.
STRAIGHT = (
    "mb2ic3ih17iw29oc32kh3sh2ph1+bias+relu6",
    "g2mb1ic10ih6iw5oc38kh3ph1+bias+residual",
    "mb1ic7ih7iw3oc17kh3ph1+accumulate",
    "mb1ic2id5ih9iw11oc20kd3kh3kw3ph1pd1pw1sd2sh2sw1+residual+relu",
    "mb1ic5ih9iw6oc5kh5kw2ph0pw1sh1sw3",
    "f16_mb1ic3ih11iw15oc33kh3sh2ph1+bias",
    "f64_mb1ic3ih11iw15oc12kh3sh2ph1",
)
# Weights turned in registers: channels and (channel, tap) pairs of whole blocks and a rest, of less than a block.
TURNED = (
    "mb1ic5ih6oc45kh3", "g2mb2ic6ih9oc68kh4sh2ph1", "nhwc_mb1ic19ih5oc70kh3ph1", "nhwc_mb1ic2ih5oc33kh2",
    "f64_mb1ic3ih5oc19kh3", "bf16_mb1ic3ih5oc35kh3", "mb1ic3iw20oc33kw2", "mb1ic9ih4oc32kh3+constant",
)  # fmt: skip
# Weights' gradients of channels that end within a vector: places of several vectors and a rest, and of less than one.
ENDS = ("mb2ic5ih7iw5oc58kh1", "g2mb1ic6ih9iw7oc70kh3ph1", "mb2ic4ih3oc20kh1", "mb1ic20ih9iw11oc9kh3+accumulate")
# Sums over several images, which pack runs of any length.
IMAGES = ("mb3ic35ih5iw7oc70kh1", "g2mb2ic70ih4iw8oc66kh1", "f16_mb2ic33ih6iw6oc40kh1")
# Constant weights whose lines are prefetched: the last ones lie beyond the operand's end.
AHEAD = ("mb1ic600ih5oc130kh1+bias", "f16_mb1ic520ih3oc150kh1", "mb1ic1100ih1oc70kh1")
CASES = [
    *(("direct", text) for text in TURNED),
    *(("stem", text) for text in STEMS),
    *(("weights", f"bwd_weights_{text}") for text in ENDS),
    *(("pointwise", f"bwd_weights_{text}") for text in IMAGES),
    *(("direct", f"nhwc_{text}") for text in STRAIGHT),
    *(("direct", f"bwd_data_nhwc_{text.partition('+b')[0].partition('+r')[0]}") for text in STRAIGHT),
    *(("pointwise", f"{layout}{text}+constant") for layout in ("", "nhwc_") for text in AHEAD),
]


@pytest.mark.parametrize(("solver", "text"), CASES)
def test_shapes_at_the_edges_of_a_kernels_form_are_exact(device, solver, text):
    """Between guard zones; nothing beyond the last channel is touched."""
    run(text, device, solver)
