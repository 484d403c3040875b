"""amx.vectors and amx.vector_weights: products, refusals and whole convolutions, by plain C and by AVX512-BF16.

Geometry is that of matrix registers (``test_amx_kernels.py``, whose shapes run here too); what differs is the block of
8 rows, sources that are read where they lie, and sums that leave registers as bfloat16.
"""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase

import numpy as np
import pyopencl as cl
import pytest
from as_amx import native, translated
from checking import check, numpy_dtype
from convdispatch_amx import dots
from paths import SUPPORT
from plans import check_changes, check_not_finite, table_cases
from processors import described
from test_amx_kernels import BANDS, EPILOGUES, SHAPES, ways

from convdispatch.api import ConvProblem, Solver
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.selection.plugins.loader import plugins

VECTORS, WEIGHTS = (plugins().solvers[name].solver for name in ("amx.vectors", "amx.vector_weights"))
NATIVE = VECTORS.name
CPU = DeviceInfo("a CPU", "intel", "cpu", "", simd_width=16, compute_units=4)


def solver_of(problem: ConvProblem) -> Solver:
    return WEIGHTS if problem.direction == "bwd_weights" else VECTORS


def run(queue, problem: ConvProblem, *changes: dict, **options) -> float:
    """The solver's first configuration, with each of the changes; the last error."""
    return check_changes(queue, problem.replace(dtype="bfloat16"), solver_of(problem), *changes, **options)


# --- products ---------------------------------------------------------------------------------------------------------

FORMS = {  # rows of A in memory, those of B, what a product is passed beside
    "rows where they lie": ({}, {"row": 64, "tile": 1024, "step": 2048}, "line"),
    "weights": ({"row": 64, "step": 2048}, {"tile": 64}, "line"),
    "pairs": ({"row": 4, "pair": 128, "step": 2048}, {"row": 128, "tile": 64, "step": 2048}, ""),
    "channels": ({"row": 320, "step": 64}, {"row": 128, "tile": 64, "step": 2048}, ""),
}
STEPS, LINE = 3, 256


def laid(side: str, where: dict[str, int], values: np.ndarray, offsets: list[int]) -> np.ndarray:
    """values[row or column][step][pair][2] as an operand lies; offsets of steps for one that has none of its own."""
    memory = np.zeros(1 << 16, np.uint16)
    for step in range(STEPS):
        begin = where["step"] * step if "step" in where else offsets[step]
        for n, row in enumerate(values[:, step]):
            for pair, both in enumerate(row):
                if side == "a":
                    at = begin + n * where.get("row", LINE) + pair * where.get("pair", 4)
                else:
                    at = begin + pair * where.get("row", LINE) + n // 16 * where["tile"] + n % 16 * 4
                memory[at // 2 : at // 2 + 2] = both
    return memory


def multiplied(queue, text: str, a, b, offsets, given: str, sums: np.ndarray) -> np.ndarray:
    text = "#define ONCE\n" + text + "kernel void whole(global const uchar *a, global const uchar *b,\n"
    text += "global const int *offsets, global TYPE *sums) { product(" + given + "); }\n"
    text, options = text.replace("TYPE", "float" if sums.dtype == np.float32 else "uchar"), ["-cl-opt-disable"]
    program = cl.Program(queue.context, text).build(options * ("__asm__" not in text))
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    held = [cl.Buffer(queue.context, flags, hostbuf=each) for each in (a, b, np.array(offsets, np.int32), sums)]
    program.whole(queue, (1,), (1,), *held)
    result = np.empty_like(sums)
    cl.enqueue_copy(queue, result, held[3])
    return result


@pytest.mark.parametrize("way", ["sums", "goes_on", "rounded"])
@pytest.mark.parametrize("tall", [8, 32])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_product(queue, device, thinned, form, columns, tall, way):
    """Of integers exactly, between what memory held; on numbers of all sizes, bit by bit as the processor does it."""
    number, turn = list(FORMS).index(form), len(way) % 2
    thinned((number + turn + columns) % 2 or (number // 2 + turn + tall // 32) % 2)
    a_form, b_form, line = FORMS[form]
    random, offsets = np.random.default_rng(columns), [4096, 128, 8192] if "step" in a_form else [128, 64, 192]
    shapes = (tall, STEPS, 16, 2), (16 * columns, STEPS, 16, 2)
    values = [random.integers(-3, 4, shape) for shape in shapes]
    listed = "offsets, " if "step" not in a_form or "step" not in b_form else ""
    given = f"a, b, {listed}{STEPS}, sums" + f", {LINE}" * (line != "") + ", 96" * (way == "rounded")
    text = dots.product("product", a_form, b_form, tall, columns, way == "goes_on", way == "rounded")
    before = random.integers(-9, 10, (32, 48 if way == "rounded" else 32))
    before = before.astype(numpy_dtype("bfloat16") if way == "rounded" else np.float32)
    expected = before.astype(np.float64)
    product = np.einsum("mspk,nspk->mn", *values)
    expected[:tall, : 16 * columns] = product + (expected[:tall, : 16 * columns] if way == "goes_on" else 0)

    def laid_out(values):
        bits = [each.astype(numpy_dtype("bfloat16")).view(np.uint16) for each in values]
        return laid("a", a_form, bits[0], offsets), laid("b", b_form, bits[1], offsets)

    held = before.view(np.uint16) if way == "rounded" else before
    for each in (translated(text), *([text] if native(device, VECTORS.name) is None else [])):
        got = multiplied(queue, each, *laid_out(values), offsets, given, held)
        got = got.view(before.dtype)
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(before.dtype).astype(np.float64))
    if native(device, VECTORS.name) is None:
        noise = laid_out([random.standard_normal(shape) * 1e-19 ** random.random(shape) for shape in shapes])
        one, other = (multiplied(queue, each, *noise, offsets, given, held) for each in (text, translated(text)))
        assert one.tobytes() == other.tobytes(), "the stand-in rounds otherwise than the processor"


# --- whole convolutions -----------------------------------------------------------------------------------------------

OWN = [
    "mb1ic32ih4iw8oc32kh1",  # read where they lie: as many positions as a tile, fewer, one more
    "mb1ic32ih3iw7oc32kh1",
    "mb1ic64ih3iw11oc48kh1",
    "mb3ic32ih5iw7oc96kh1",
    "g2mb2ic64ih5iw9oc64kh1",  # of groups
    "mb2ic32ih9iw8oc320kh1",  # more weights than stay near
    "mb1ic32ih1iw150oc16kh1",
    "mb2ic33ih6iw7oc64kh1",  # not where they lie
    "mb2ic32ih7iw9oc40kh1",  # channels that do not leave as bfloat16
    "mb2ic40ih7iw32oc48kh1sh2sw1",
    "mb2ic16iw33oc32kw1",
]


@pytest.mark.parametrize(("number", "text"), list(enumerate(OWN)), ids=OWN)
def test_own_shapes(queue, cpu, full, engine, text, number):
    for turn, (problem, changes) in enumerate(ways(text, number, True)):
        if full or (turn + number) % 2 == (engine == "native"):
            run(queue, problem, *(changes if full else changes[(number + turn) % 3 :][:1]))


@pytest.mark.parametrize(("number", "text"), list(enumerate(SHAPES)), ids=SHAPES)
def test_shapes(queue, cpu, device, full, thinned, engine, text, number):
    """By plain C a few of them where the processor has the instruction: what it makes of a product is the same."""
    if engine == "emulated" and native(device, VECTORS.name) is None and not full and number % 6 != 1:
        pytest.skip("the processor does it")
    thinned(number % 2 == (engine == "native"))
    for turn, (problem, changes) in enumerate(ways(text, number, full)):
        if full or engine == "native" or turn == number % 3:
            run(queue, problem, *changes)


@pytest.mark.parametrize("problem", table_cases(17, lambda problem: min(problem.ic, problem.oc) >= 8 * problem.g))
def test_tables(queue, cpu, instructions, problem):
    problem = problem.replace(dtype="bfloat16")
    if reason := solver_of(problem).rejects(problem, cpu):
        pytest.skip(reason)
    run(queue, problem)


FUSED = [
    *EPILOGUES,
    "mb2ic32ih6iw7oc32kh1+bias+relu",
    "mb1ic32ih5iw7oc40kh1+accumulate",
    "mb1ic64ih9iw5oc48kh1+residual",
]


@pytest.mark.parametrize(("number", "text"), list(enumerate(FUSED)), ids=FUSED)
def test_epilogues(queue, cpu, device, full, engine, text, number):
    if engine == "emulated" and native(device, VECTORS.name) is None and not full and number % 4:
        pytest.skip("the processor does it")
    turns = ("nchw", "fwd"), ("nhwc", ("fwd", "bwd_data")[number % 2])
    turn = number % 3 == 0 if engine == "native" else number // 4 % 2
    for layout, direction in turns if full else turns[turn:][:1]:
        problem = ConvProblem.parse(text).replace(layout=layout, direction=direction)
        run(queue, problem, BANDS[number % 2], data="real" if "leaky" in text else "integer")


@pytest.mark.parametrize("text", ["mb2ic40ih5oc33kh3ph1", "g2mb1ic18ih7oc34kh3ph1sh2", "mb2ic32ih8oc40kh1"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_constant_weights(queue, cpu, engine, text, direction):
    for layout in ("nchw", "nhwc"):
        run(queue, ConvProblem.parse(f"{direction}_{text}+constant").replace(layout=layout), BANDS[0])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "text", ["mb2ic96ih8oc32kh3ph1", "bwd_data_mb2ic16ih6oc256kh1", "bwd_weights_mb3ic40ih20oc17kh3"]
)
def test_accuracy(queue, cpu, engine, layout, text):
    """The rounding of the result is all that shows."""
    assert 1e-3 < run(queue, ConvProblem.parse(text).replace(layout=layout), data="real", limit=1.8e-3) < 1.8e-3


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "text", ["mb2ic16ih5iw6oc24kh3ph1", "g2mb1ic18ih5iw6oc16kh1", "nhwc_mb2ic32ih5iw6oc32kh1", "mb2ic32ih5iw6oc32kh1"]
)
def test_what_is_not_finite_reaches_its_readers_alone(queue, cpu, engine, text, value):
    problem = ConvProblem.parse(text).replace(dtype="bfloat16")
    check_not_finite(queue, problem, VECTORS, value, (0, 0, 0, 0), (0, 5, 4, 5), (-1, -1, -1, -1))


def test_every_configuration(queue, cpu, engine):
    """All that are offered differ, and compute."""
    texts = ["mb3ic40ih33iw8oc72kh3ph1", "bwd_data_nhwc_mb2ic16ih17oc40kh2sh2", "nhwc_mb4ic32ih14oc96kh1"]
    for text in [*texts, "bwd_weights_nhwc_mb3ic40ih33iw8oc40kh1"]:
        problem = ConvProblem.parse(text).replace(dtype="bfloat16")
        configs = list(solver_of(problem).configs(problem, cpu))
        assert len({str(config) for config in configs}) == len(configs) > 1
        run(queue, problem, *configs)


def test_nothing_reads_beyond_a_tensor(cpu, device):
    """Operands lie against pages that nobody may touch; ``test_amx_kernels.py`` asks whether these guard anything."""
    where = "native" if native(device, VECTORS.name) is None else "emulated"
    texts = ["mb1ic24ih8oc16kh3ph1", "mb1ic32ih5iw7oc32kh1", "mb1ic64ih6iw16oc48kh1sh2", "mb2ic32ih5iw9oc64kh1"]
    script = SUPPORT / "amx_pages.py"
    command = [sys.executable, str(script), "vectors", where, *texts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.split()) == (0, ["done"] * 12 * len(texts)), done.stderr[-2000:]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_public_calls(instructions, layout):
    """By name through the calls, between guard zones, from unaligned arrays."""
    for offset, direction in enumerate(DIRECTIONS):
        for text in ("mb1ic16ih9oc32kh3ph1sh2", "mb2ic32ih6iw7oc32kh1"):
            problem = ConvProblem.parse(f"{direction}_bf16_{text}").replace(layout=layout)
            check(problem, instructions, solver=solver_of(problem).name, offset=offset)


CHOICES = [
    ("bf16", "bf16_nhwc_mb4ic192ih28oc96kh1+constant", "amx.vectors"),
    ("bf16", "bwd_weights_bf16_nhwc_mb4ic192ih28oc96kh1", "amx.vector_weights"),
    ("bf16", "bf16_nhwc_mb4ic192ih48oc192kh3ph1+constant", "winograd.*"),
    ("amx", "bf16_nhwc_mb4ic192ih28oc96kh1+constant", "amx.tiles"),
    ("amx", "bwd_weights_bf16_nhwc_mb4ic192ih28oc96kh1", "amx.*weights"),
    ("avx512", "bf16_nhwc_mb4ic192ih28oc96kh1+constant", "i*"),
    ("avx2", "bf16_nhwc_mb4ic192ih28oc96kh1+constant", "i*"),
]


@pytest.mark.parametrize(("name", "text", "chosen"), CHOICES)
def test_is_chosen_for_pointwise_layers(name, text, chosen):
    """By predicted cost, where no transform helps; large 3x3 layers stay with Winograd."""
    problem, found = ConvProblem.parse(text), {}
    with described(name) as info:
        for solver in plugins().solvers.values():
            if solver.rejects(problem, info) is None and (config := next(iter(solver.configs(problem, info)), None)):
                found[solver.name] = solver.cost(problem, info, config)
    best = min((name for name, cost in found.items() if cost is not None), key=found.__getitem__)
    assert fnmatchcase(best, chosen), found
