"""fft on CPUs: every direction, layout, piece and epilogue against float64; workspaces exact, down to the floor."""

from __future__ import annotations

import itertools

import checking
import pytest
import shape_tables
from convdispatch_fft.cpu.geometry import Geometry
from convdispatch_fft.cpu.solver import predicted
from plans import check_config

import convdispatch
from convdispatch import NoSolver
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

pytestmark = pytest.mark.usefixtures("cpu")
LAYOUTS, DIRECTIONS = ("nchw", "nhwc"), ("fwd", "bwd_data", "bwd_weights")
TURNS = list(itertools.product(LAYOUTS, DIRECTIONS))
SOLVER = plugins().solvers["fft.tiled"]
LIMIT = 1e-6
"""Allowed relative error: ten times below the contract's."""
_TABLE = {
    entry.name: entry.problem
    for entry in [*shape_tables.load("near_miss"), *shape_tables.load("basic")]
    if {entry.problem.sd, entry.problem.sh, entry.problem.sw} == {1}
    and max(entry.problem.kd, entry.problem.kh, entry.problem.kw) > 1
    and not entry.problem.ic == entry.problem.oc == entry.problem.g
}


def configs(problem, device):
    return list(SOLVER.configs(problem, runtime.device_info(device)))


def check(device, problem, config, limit=LIMIT, **options):
    """By real data, with a workspace of exactly its size, between guard zones."""
    check_config(runtime.queue(device), problem, SOLVER, config, data="real", limit=limit, **options)


@pytest.mark.parametrize(("number", "name"), list(enumerate(_TABLE)), ids=list(_TABLE))
def test_tables(device, full, thinned, number, name):
    thinned(number % 12)
    for layout, direction in TURNS if full else [TURNS[number // 12 % len(TURNS)]]:
        problem = _TABLE[name].replace(layout=layout, direction=direction)
        checking.check(problem, device, solver="fft.tiled", data="real", tolerance=LIMIT)


# (problem, transform): the tails of tiles, rows, blocks and vectors, odd lengths, every number of axes.
EDGES = {
    "tails everywhere": ("mb3ic19ih11oc37kh5ph2", (1, 8, 8)),
    "odd transforms": ("mb2ic6ih13iw12oc5kh4kw3ph1", (1, 9, 15)),
    "wide lines": ("mb1ic17ih7iw50oc18kh3kw9ph1pw4", (1, 6, 36)),
    "dilated, one side padded": ("mb1ic5ih20iw17oc7kh4kw3dh2dw3ph1pw0ph_r0pw_r3", (1, 14, 12)),
    "kernel above the image": ("mb2ic4ih3oc5kh5ph2", (1, 8, 8)),
    "groups": ("g3mb2ic9ih8oc6kh3ph1", (1, 8, 6)),
    "1-D": ("mb3ic3iw90oc21kw13pw6", (1, 1, 30)),
    "column": ("g2mb1ic4ih19iw4oc6kh7kw1ph3pw0", (1, 12, 1)),
    "3-D": ("mb1ic3id5ih7iw9oc4kd3kh2kw3pd1ph1pw1", (6, 5, 8)),
    "few input channels": ("g2mb3ic6ih11iw9oc74kh5ph2", (1, 8, 10)),
    "few target channels": ("g2mb2ic64ih11iw9oc6kh5ph2", (1, 9, 12)),
    "few source channels": ("mb3ic2ih10iw13oc32kh4ph1", (1, 8, 9)),
    "four target channels, one axis": ("mb2ic48iw90oc4kw7pw3", (1, 1, 20)),
    "3-D, two axes": ("mb1ic4id9ih3oc5kd3kh1kw3pd1ph0pw1", (8, 1, 4)),
}


@pytest.mark.parametrize(("layout", "direction"), TURNS)
@pytest.mark.parametrize("name", EDGES)
def test_edges_in_whole_and_in_least_pieces(device, full, thinned, name, layout, direction):
    """Workspace between guards; the same with a group, a block and a few rows at a time."""
    number = list(EDGES).index(name)
    thinned((number + TURNS.index((layout, direction))) % len(TURNS))
    text, sizes = EDGES[name]
    problem = ConvProblem.parse(text).replace(layout=layout, direction=direction)
    base = {**configs(problem, device)[0], "tile": list(sizes), "groups": 64, "blocks": 64, "rows": 10**6}
    pieces = [base, {**base, "groups": 1, "blocks": 1, "rows": 3}] if full or number % 2 else [{**base, "rows": 3}]
    for config in pieces:
        used: list[int] = []
        check(device, problem, config, used=used)
        g = Geometry(problem, config)
        # The last area ends on a page, and one vector pair between frequencies may be a gap.
        assert used[0] > g.areas["size"] - 4096 - 4 * 4 * g.lanes, "the workspace is larger than what is used"


EPILOGUES = ({"bias": True, "activation": "relu6"}, {"bias": True, "residual": True, "activation": "silu"})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("epilogue", [*EPILOGUES, {"accumulate": True}], ids=["bias", "residual", "add"])
def test_epilogues(device, thinned, epilogue, direction, layout):
    thinned((len(epilogue) + TURNS.index((layout, direction))) % 2)
    problem = ConvProblem.parse("mb2ic5ih9iw21oc19kh4ph1").replace(layout=layout, direction=direction, **epilogue)
    checking.check(problem, device, solver="fft.tiled", data="real", tolerance=LIMIT)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("layout", "direction"), TURNS)
def test_sixteen_bits_are_transformed_in_float32(device, thinned, dtype, layout, direction):
    """Vectors that would reach beyond a tensor of 16-bit elements, and every part of the epilogue, among them."""
    thinned((len(dtype) + TURNS.index((layout, direction))) % 2)
    rest = (
        {"accumulate": True} if direction == "bwd_weights" else {"bias": True, "residual": True, "activation": "relu"}
    )
    problem = ConvProblem.parse("mb2ic19ih9iw21oc18kh4ph1").replace(
        dtype=dtype, layout=layout, direction=direction, **rest
    )
    checking.check(problem, device, solver="fft.tiled", data="real")


@pytest.mark.parametrize("rows", [3, 100])
def test_gradient_accumulates(device, rows):
    problem = ConvProblem.parse("bwd_weights_mb3ic5ih9oc18kh4ph1+accumulate")
    check(device, problem, {**configs(problem, device)[0], "rows": rows})


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
@pytest.mark.parametrize("rest", [{}, {"blocks": 1, "groups": 1, "rows": 2}], ids=["whole", "pieces"])
def test_constant_weights(device, thinned, direction, rest):
    thinned((direction == "fwd") ^ bool(rest))
    problem = ConvProblem.parse(f"{direction}_g2mb2ic38ih9oc34kh5ph2+constant")
    config = {**configs(problem, device)[0], **rest}
    check(device, problem, config)
    context = runtime.queue(device).context
    key = SOLVER.plan(context, problem, config).pack_key
    assert SOLVER.plan(context, problem.replace(mb=1), config).pack_key == key, "the batch does not change the weights"


@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_spectra_of_large_kernels_are_written_past_the_caches(device, thinned, direction):
    thinned(direction == "bwd_data")
    problem = ConvProblem.parse(f"{direction}_mb1ic80ih28oc96kh9")
    config = {**configs(problem, device)[0], "tile": [1, 36, 36], "blocks": 64}
    assert 4 * (g := Geometry(problem, config)).frequencies * g.kernel_stride > 24e6
    check(device, problem, config)


def test_the_limit_chooses_down_to_the_floor(device, full):
    """Offers fall to a floor; each limit is kept, by the plan's own number, and below the floor there are words."""
    problem = ConvProblem.parse("mb1ic40ih24oc48kh3ph1")
    info = runtime.device_info(device)
    for direction in DIRECTIONS:
        flipped = problem.replace(direction=direction)
        sizes = [SOLVER.workspace(flipped, info, config) for config in SOLVER.configs(flipped, info)]
        floor, limits = min(sizes), []
        assert floor < max(sizes) / 8
        limit = max(sizes)
        while limit > floor:
            limits.append(limit)
            limit //= 8
        for limit in [*(limits if full else limits[1:2]), floor] if direction == "fwd" else [floor]:
            with convdispatch.policy(workspace_limit=limit, solver="fft.tiled", fallback=False):
                checking.check(flipped, device, solver="fft.tiled", data="real", tolerance=LIMIT)
            fitting = next(c for c in SOLVER.configs(flipped, info) if SOLVER.workspace(flipped, info, c) <= limit)
            plan = SOLVER.plan(runtime.queue(device).context, flipped, fitting)
            assert plan.workspace_size <= limit
        operands, _ = checking.make_operands(flipped, "real")
        with (
            convdispatch.policy(workspace_limit=floor - 1, solver="fft.tiled"),
            pytest.raises(NoSolver, match="no configuration needs"),
        ):
            checking.call(flipped, operands.present(), queue=runtime.queue(device))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("batch", [8, 128])
def test_l2_needs_a_gibibyte_at_most(device, direction, batch):
    problem = ConvProblem.parse(f"{direction}_mb{batch}ic64ih64oc128kh9")
    for constant in [False, True] if direction != "bwd_weights" else [False]:
        changed = problem.replace(constant_weights=constant)
        g = Geometry(changed, configs(changed, device)[0])
        assert g.areas["size"] + (g.packed_size if g.constant_kernel else 0) <= 2**30


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pieces_cover_the_work_once(device, direction):
    problem = ConvProblem.parse(f"{direction}_g3mb3ic60ih20oc120kh5")
    base = configs(problem, device)[0]
    g = Geometry(problem, {**base, "groups": 2, "blocks": 2, "rows": 2})
    found = [
        (group, block, row)
        for piece in g.pieces()
        for group in range(piece.group, piece.group + piece.groups)
        for block in range(piece.block, piece.block + piece.blocks)
        for row in range(piece.row, piece.row + piece.rows)
    ]
    blocks = -(-g.d // g.lanes)
    assert sorted(found) == list(itertools.product(range(3), range(blocks), range(g.all_rows)))
    assert g.rounds == len(list(g.pieces()))


def test_symmetry_leaves_frequencies_out(device):
    problem = ConvProblem.parse("mb1ic16ih64oc16kh9")
    base = configs(problem, device)[0]
    even, odd = (Geometry(problem, {**base, "tile": [1, n, n]}) for n in (36, 15))
    assert even.frequencies == 17 * 36 + 2 * 19
    assert odd.frequencies == 7 * 15 + 8
    assert [even.column(k) for k in (0, 18, 1, 2)] == [0, 19, 38, 74]


def test_large_kernels_are_predicted_to_win(device):
    problem = ConvProblem.parse("mb8ic64ih64oc128kh9")
    assert predicted(Geometry(problem, configs(problem, device)[0])) < problem.flops / 3


SIZES = ((8, 8), (16, 16), (24, 24), (36, 36), (60, 60))


@pytest.mark.parametrize("sizes", SIZES, ids=[f"{h}x{w}" for h, w in SIZES])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_error_by_size(device, thinned, sizes, direction):
    """The figures of docs/results/accuracy.md: random normal data, 32 channels, 5x5 kernels."""
    thinned(sizes != ((36, 36) if direction == "fwd" else (16, 16)))
    problem = ConvProblem.parse(f"{direction}_mb1ic32ih60oc32kh5")
    check(device, problem, {**configs(problem, device)[0], "tile": [1, *sizes]}, limit=5e-7)


@pytest.mark.parametrize("kernel", ["kh3kw3", "kh3kw5", "kh1kw15"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data"])
def test_sums_too_short_for_ieee_are_refused(direction, kernel):
    """A plain float32 sum of so few products errs by less than half of what transforms do."""
    from convdispatch_fft.tiling import unsuited

    short = ConvProblem.parse(f"{direction}_f32_ieee_mb1ic1ih17iw36oc1{kernel}")
    assert "products or more for math='ieee'" in unsuited(short)
    assert unsuited(short.replace(math="float32")) is None
    assert unsuited(short.replace(ic=3, oc=3)) is None
