"""amx: whole convolutions, on any CPU by plain C for the instructions (``as_amx.py``), and by matrix registers.

Plans run as ``plans.py`` says; integer data compare exactly. Bands of one and three rows end inside tiles, at images'
ends and in the middle of an image.
"""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from as_amx import native
from checking import call, check, make_operands
from convdispatch_amx import convolve, dots, instructions, probe, vectors
from paths import SUPPORT
from plans import check_changes, check_not_finite, computed, table_cases
from threads import together

import convdispatch
from convdispatch.api import ConvProblem, Solver
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.device.programs import kernels
from convdispatch.measurement import probing, reference
from convdispatch.measurement.search.families import draw, entering, families, family_limit, plane_errors
from convdispatch.selection.plugins.loader import plugins

TILES, WEIGHTS = (plugins().solvers[name].solver for name in ("amx.tiles", "amx.weights"))
LAYOUTS = ("nchw", "nhwc")
NATIVE = "amx.tiles"


def solver_of(problem: ConvProblem) -> Solver:
    return WEIGHTS if problem.direction == "bwd_weights" else TILES


def run(queue, problem: ConvProblem, *changes: dict, **options) -> float:
    """The solver's first configuration, with each of the changes; the last error."""
    return check_changes(queue, problem, solver_of(problem), *changes, **options)


def ways(text: str, number: int, full: bool) -> list[tuple[ConvProblem, list[dict]]]:
    """The problem in every direction, each in the layout of its turn, and how it is cut into bands, if it is."""
    found = []
    for turn, (layout, direction) in enumerate(itertools.product(LAYOUTS, DIRECTIONS)):
        if full or LAYOUTS.index(layout) == (number + DIRECTIONS.index(direction)) % 2:
            problem = ConvProblem.parse(text).replace(direction=direction, layout=layout)
            found.append((problem, [{}, *BANDS] if full else [({}, *BANDS)[(number // 2 + turn) % 3]]))
    return found


SHAPES = [
    "mb2ic8ih6oc48kh3ph1",  # channels around a tile's half, a tile and a panel
    "mb1ic15ih5oc33kh3ph1",
    "mb1ic16ih7iw5oc32kh3ph1",
    "mb2ic17ih5oc31kh1",
    "mb1ic31ih5oc17kh3ph1",
    "mb2ic32ih4oc16kh3ph1",
    "mb1ic33ih5oc15kh2",
    "mb1ic48ih5iw6oc8kh3ph1",
    "mb1ic65ih4oc97kh1",
    "mb3ic16ih3iw10oc16kh3ph1",  # rows of 11 positions: tiles begin anywhere in them
    "mb2ic16ih5iw31oc16kh3ph1",  # of 32, one a tile
    "mb2ic16ih4iw32oc16kh3ph1",  # of 33
    "mb2ic16ih3iw33oc40kh3ph1",
    "mb2ic16ih3iw70oc16kh1kw5pw2ph0",  # a row lies in three tiles
    "mb5ic16ih2iw3oc16kh3ph1",  # a tile holds several images
    "mb9ic16ih1oc16kh1",
    "mb2ic16ih9iw8oc16kh3ph1sh2",  # strides
    "mb2ic16ih9iw34oc16kh3ph1sh1sw2",
    "mb2ic16ih10iw40oc16kh3ph1sh3sw2",
    "mb2ic16ih11iw50oc24kh3ph2sh2sw3",
    "mb2ic16ih8oc16kh1sh2",  # data gradients: phases without taps
    "mb2ic16ih7oc16kh2sh3",
    "mb2ic16ih9iw40oc16kh1sh2sw3",
    "mb1ic16ih12oc16kh2sh4dh2",
    "mb2ic16ih9oc16kh3ph2dh2",  # dilation
    "mb1ic16ih13iw12oc16kh3ph3dh3sh2",
    "mb2ic16ih6iw5oc16kh3ph0pw2ph_r2pw_r0",  # pads that differ, that are longer than the kernel, none
    "mb2ic16ih4iw6oc16kh3kw4ph1pw0ph_r0pw_r3",
    "mb1ic16ih3oc16kh3ph4",
    "mb2ic16ih8iw20oc16kh3",
    "mb2ic17iw40oc18kw3pw1",  # 1-D, 3-D
    "mb2ic16iw67oc16kw7pw3sw2",
    "mb1ic16id3ih4iw5oc16kd3kh3kw3pd1ph1pw1",
    "mb2ic9id5ih4iw18oc16kd2kh1kw3pd0pw1sd2",
    "mb3ic16ih12iw14oc40kh1",  # rows of several rows of pixels, images that end amid a tile
    "mb2ic40ih28iw8oc17kh1",
    "mb2ic9id2ih3iw8oc33kd1kh1kw1",
    "g2mb5ic34ih7oc48kh1",
    "mb2ic16ih7iw9oc40kh1sh2",
    "mb1ic33ih6iw7oc35kh5kw4ph2pw2",  # weights of more taps than a vector holds, and more than are turned at once
    "mb2ic40ih9iw8oc20kh7ph3",
    "mb1ic17iw90oc19kw81pw40",
    "mb1ic40ih7iw8oc33kh4ph1sh2",
    "mb2ic33ih16iw13oc20kh3ph1",  # weights' gradients: more steps than stay near
    "mb1ic16ih7iw6oc16kh9ph4",  # more taps than are passed
    "g2mb2ic32ih5oc32kh3ph1",  # groups
    "g3mb1ic27ih5iw7oc51kh3ph1",
    "g2mb2ic80ih5oc34kh3ph1sh2",
]
BANDS = {"rows": 1, "panels": 1, "items": 3, "splits": 2}, {"rows": 3, "items": 2, "splits": 1}


@pytest.mark.parametrize(("number", "text"), list(enumerate(SHAPES)), ids=SHAPES)
def test_shapes(queue, cpu, full, emulated, text, number):
    for problem, changes in ways(text, number, full):
        run(queue, problem, *changes)


@pytest.mark.parametrize("problem", table_cases(17, lambda problem: min(problem.ic, problem.oc) >= 8 * problem.g))
def test_tables(queue, cpu, emulated, problem):
    if reason := solver_of(problem).rejects(problem, cpu):
        pytest.skip(reason)
    run(queue, problem)


@pytest.mark.parametrize(("number", "text"), list(enumerate(SHAPES)), ids=SHAPES)
def test_shapes_natively(queue, cpu, instructions, full, text, number):
    for turn, (problem, changes) in enumerate(ways(text, number + 1, full)):
        if full or turn == number % 5:  # of three, so that three in five shapes run once
            run(queue, problem, *changes)


EPILOGUES = [
    # rows shorter and longer than a vector, and channels (which are the vectors, channels last)
    "mb2ic16ih3iw13oc40kh3ph1+bias+relu",
    "mb2ic16ih3iw16oc16kh3ph1+bias+residual+relu6",
    "mb2ic16ih3iw17oc24kh3ph1+residual",
    "mb1ic16ih3iw35oc8kh3ph1+accumulate",
    "mb2ic16ih4iw5oc40kh1+accumulate+bias",
    "mb1ic16ih3iw37oc17kh3ph1+residual+relu",
    "mb2ic16ih4iw9oc33kh3ph1sh2+bias+residual+relu",
    "mb2ic16ih4iw33oc33kh1sh2+bias+accumulate",  # places that nothing reaches have an epilogue too
    "g2mb1ic20ih4iw18oc36kh3ph1+bias+residual+clip(-1,2)",
    "mb1ic16ih4iw20oc24kh3ph1+bias+leaky_relu(0.25)",
]


@pytest.mark.parametrize(("number", "text"), list(enumerate(EPILOGUES)), ids=EPILOGUES)
def test_epilogues(queue, cpu, emulated, text, number):
    for layout, direction in (("nchw", "fwd"), ("nhwc", ("fwd", "bwd_data")[number % 2])):
        problem = ConvProblem.parse(text).replace(layout=layout, direction=direction)
        run(queue, problem, BANDS[number % 2], data="real" if "leaky" in text else "integer")


@pytest.mark.parametrize("activation", ["elu(0.5)", "sigmoid", "silu", "tanh", "gelu"])
def test_activations(queue, cpu, emulated, activation):
    problem = ConvProblem.parse("mb1ic16ih4iw19oc24kh3ph1").replace(activation=activation, bias=True)
    run(queue, problem.replace(layout="nhwc" if activation in ("silu", "tanh") else "nchw"), data="real")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "text",
    [
        "mb2ic17ih5iw19oc40kh3ph1+bias+relu",
        "mb2ic16ih9iw40oc24kh3ph1sh2+residual",
        "bwd_data_mb1ic24ih7iw37oc33kh3ph1sh2+accumulate",
        "bwd_weights_mb2ic24ih7iw19oc33kh3ph1sh2+accumulate",
    ],
)
def test_narrow_types(queue, cpu, emulated, text, dtype):
    for layout, data in zip(LAYOUTS, ("integer", "real") if dtype == "float16" else ("real", "integer"), strict=True):
        run(queue, ConvProblem.parse(text).replace(dtype=dtype, layout=layout), BANDS[0], data=data)


@pytest.mark.parametrize("text", ["mb2ic40ih5oc33kh3ph1", "g2mb1ic18ih7oc34kh3ph1sh2", "bf16_mb1ic16ih8oc40kh2sh2"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_constant_weights(queue, cpu, emulated, text, direction):
    """What stands packed beforehand is what a call packs, in every phase's place."""
    layout = "nhwc" if (len(text) % 2 == 0) == (direction == "fwd") else "nchw"
    run(queue, ConvProblem.parse(f"{direction}_{text}+constant").replace(layout=layout), BANDS[0])


LONG_SUMS = ["mb2ic96ih8oc32kh3ph1", "bwd_data_mb2ic16ih6oc200kh1", "bwd_weights_mb3ic40ih20oc17kh3"]
PROMISED = {"float32": 1e-5, "tf32": 2e-3, "fast": 5e-2}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("math", PROMISED)
@pytest.mark.parametrize("text", LONG_SUMS)
def test_accuracy(queue, cpu, thinned, engine, math, layout, text):
    """The promise of docs/use/accuracy.md on normal data, from the count of planes that the mathematics asks for."""
    thinned((LONG_SUMS.index(text) + len(math) + LAYOUTS.index(layout)) % 2)
    problem = ConvProblem.parse(text).replace(math=math, layout=layout)
    assert run(queue, problem, data="real", limit=PROMISED[math]) > 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", LONG_SUMS)
def test_three_planes(queue, cpu, engine, layout, text):
    """Before a bounded activation: as good as float32."""
    run(queue, ConvProblem.parse(text).replace(layout=layout), {"planes": 3}, data="real", limit=5e-7)


@pytest.mark.parametrize("text", ["mb3ic40ih6iw5oc24kh3ph1", "nhwc_mb2ic16ih5oc33kh3ph1sh2"])
def test_any_scale(queue, cpu, engine, text):
    """Families of data that an accurate convolution computes alike; infinities and NaN stay in their planes."""
    for direction in DIRECTIONS:
        problem = ConvProblem.parse(f"{direction}_f32_{text}")
        plan = solver_of(problem).plan(queue.context, problem, next(iter(solver_of(problem).configs(problem, cpu))))
        found = {}
        for family in families(direction):
            operands = draw(family, problem)
            with np.errstate(all="ignore"):
                expected, entered = reference.compute(problem, **operands), entering(problem, operands)
            out = computed(queue, problem, plan, operands)
            found[family] = float(plane_errors(problem, out, expected, entered, spread=True).max())
        limits = {family: family_limit(problem, family, found["normal"]) for family in found}
        assert not {family: error for family, error in found.items() if not error <= limits[family]}, (found, limits)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "text",
    [
        "mb2ic16ih5iw6oc24kh3ph1",
        "nhwc_mb2ic16ih5iw6oc24kh3ph1",
        "mb1ic16ih9iw8oc16kh3ph1sh2",
        "g2mb1ic18ih5iw6oc16kh3ph1",  # a group's last channel is half of a pair
        "g2mb1ic18ih5iw6oc16kh1",
    ],
)
def test_what_is_not_finite_reaches_its_readers_alone(queue, cpu, emulated, text, value):
    """Beside zeros that rows share, in every part of an image, and in another group's first channel."""
    places = (0, 0, 0, 0), (0, 5, 4, 5), (0, 9, 3, 2), (-1, 15, -1, -1)
    check_not_finite(queue, ConvProblem.parse(text), TILES, value, *places)


def test_every_configuration(queue, cpu, emulated):
    """All that are offered differ, and compute."""
    texts = ["mb3ic40ih33iw8oc72kh3ph1", "bwd_data_nhwc_mb2ic16ih17oc40kh2sh2", "bwd_weights_mb3ic40ih33iw8oc40kh3ph1"]
    for text in texts:
        problem = ConvProblem.parse(text)
        configs = list(solver_of(problem).configs(problem, cpu))
        assert len({str(config) for config in configs}) == len(configs) > 2
        run(queue, problem, *configs)


GUARDED = ["mb1ic16ih8oc16kh3ph1", "mb1ic32ih6iw16oc32kh3ph1sh2", "mb1ic24ih8oc16kh1"]


@pytest.mark.parametrize("way", ["whole", "overrun"])
def test_nothing_reads_beyond_a_tensor(cpu, device, way):
    """Operands lie against pages that nobody may touch; that a kernel which does so dies is asked too."""
    where = "native" if native(device) is None else "emulated"
    script = SUPPORT / "amx_pages.py"
    done = subprocess.run(
        [sys.executable, str(script), way, where, *GUARDED], capture_output=True, text=True, timeout=600
    )
    if way == "overrun":
        assert done.returncode < 0, "the guard pages guard nothing"
    else:
        assert (done.returncode, done.stdout.split()) == (0, ["done"] * 7 * len(GUARDED)), done.stderr[-2000:]


def test_public_calls(instructions):
    """By name through the calls, between guard zones, from unaligned arrays; constant weights are packed once."""
    for offset, direction in enumerate(DIRECTIONS):
        problem = ConvProblem.parse(f"{direction}_nhwc_mb2ic16ih9oc32kh3ph1sh2")
        check(problem, instructions, solver=solver_of(problem).name, offset=offset)
    problem = ConvProblem.parse("mb1ic32ih10oc32kh3ph1")
    operands, expected = make_operands(problem)
    weights, queue = convdispatch.constant(operands.w), runtime.queue(instructions)
    with convdispatch.policy(solver="amx.tiles"):
        for _ in range(3):
            assert np.array_equal(convdispatch.conv(operands.x, weights, padding=1, queue=queue), expected)
    assert len(weights._packed) == 1


@pytest.mark.parametrize(
    ("kernel", "module", "constant"),
    [
        (convolve.TilesKernel, instructions, "ROWS"),  # at 15 the second tile of sums begins a row too early
        (vectors.VectorsKernel, dots, "_PAIRS"),  # at 15 the last pair of each step is left out
    ],
)
@pytest.mark.parametrize(
    "text", ["mb1ic16ih5oc16kh1", "mb1ic16ih5oc16kh3", "nhwc_mb1ic16ih5oc16kh1", "nhwc_mb1ic16iw5oc16kw3"]
)
def test_the_probe_in_every_form(queue, cpu, emulated, monkeypatch, text, kernel, module, constant):
    """It passes, and notices a product that is wrong."""
    problem = ConvProblem.parse(text).replace(**({"dtype": "bfloat16"} if kernel.vectors else {}))
    monkeypatch.setattr(probe, "lacking", lambda *needed: None)
    monkeypatch.setattr(probing, "proven", lambda package, what, device, answer: answer())
    probe.require(queue.context, problem, kernel)
    monkeypatch.setattr(module, constant, 15)
    kernels._programs.drop()
    with pytest.raises(convdispatch.PluginError, match="wrong results"):
        probe.require(queue.context, problem, kernel)


def test_threads(instructions):
    """Several threads with queues of their own: the registers are a thread's, and so is the leave to use them."""
    import pyopencl as cl

    problem = ConvProblem.parse("mb2ic32ih17oc32kh3ph1")
    cases = [make_operands(problem, seed=seed) for seed in range(4)]

    def work(number: int) -> None:
        queue = cl.CommandQueue(runtime.context(instructions))
        with convdispatch.policy(solver="amx.tiles", fallback=False):
            for turn in range(10):
                operands, expected = cases[(number + turn) % 4]
                assert np.array_equal(call(problem, operands.present(), queue=queue), expected), (number, turn)

    together(work, 4)
