"""PTX of kernels with more groups along y or z than CUDA launches: all of them in one row, each finds its place."""

from __future__ import annotations

import math
import shutil

import pytest
from fake_cuda import Driver
from test_ptx import HEADER, Kernel, assembled

from convdispatch.device.cuda import modules
from convdispatch.device.cuda.ptx import entries, for_cuda, in_one_row, overlapping
from convdispatch.device.places.stream import Unlaunchable


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    monkeypatch.setattr(modules, "_modules", {})
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")


GRID = (
    HEADER
    + """\
.visible .entry add(
	.param .u64 .ptr .global .align 4 add_param_0
)
.reqntid 64, 1, 1
{
	.reg .b32 	%r<9>;
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ctaid.y;
	mov.b32 	%r3, %ctaid.z;
	mov.u32 	%r4, %nctaid.x;
	mov.b32 	%r5, %envreg7;
	mov.u32 	%r6, %nctaid.z;
	ret;
}
.entry other()
{
	.reg .b32 	%r<9>;
	mov.u32 	%r1, %ctaid.y;
	ret;
}
"""
)


def registers(text, kernel, row):
    """What a kernel's instructions leave in its registers, for one group of a row."""
    body = text.split(f".entry {kernel}")[1].split("{", 1)[1].split("}")[0]
    known = {"%ctaid.x": row}
    for line in body.replace(",", " ").split(";"):
        what, *names = line.split() or [""]
        values = [int(name) if name.isdigit() else known.get(name) for name in names[1:]]
        if what.startswith("mov"):
            known[names[0]] = values[0]
        elif what.startswith(("div", "rem")):
            known[names[0]] = divmod(*values)[what.startswith("rem")]
    return known


def test_groups_in_one_row_find_their_places_in_the_grid():
    plain, grid = for_cuda(GRID.encode()), (3, 5, 2)
    text = in_one_row(plain, "add", grid)
    found = [registers(text, "add", row) for row in range(math.prod(grid))]
    places = [(x, y, z) for z in range(2) for y in range(5) for x in range(3)]
    assert [tuple(each[f"%r{at}"] for at in (1, 2, 3)) for each in found] == places
    assert {tuple(each[f"%r{at}"] for at in (4, 5, 6)) for each in found} == {grid}
    assert text.split(".entry other")[1] == plain.split(".entry other")[1], "launched as ever"
    assert "%ctaid.y" in in_one_row(plain, "other", grid).split(".entry other")[0]
    assert entries(text) == entries(plain)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("%ctaid.x", "%clusterid.x", "%clusterid"),
        ("%ctaid.x", "%cluster_ctarank", "%cluster_ctarank"),
        (".reqntid 64, 1, 1", ".reqntid 64, 1, 1\n.reqnctapercluster 2", ".reqnctapercluster"),
        (".entry other()", ".func other()", ".func"),
    ],
)
def test_what_cannot_lie_in_one_row_says_why(before, after, reason):
    text = GRID.replace(before, after)
    assert text != GRID
    with pytest.raises(Unlaunchable, match=f"more than CUDA launches along an axis.*{reason}"):
        in_one_row(for_cuda(text.encode()), "add", (3, 70000, 1))


@pytest.mark.parametrize(
    ("size", "local", "grid"),
    [
        ((64, 100_003), None, (1, 100_003, 1)),
        ((64, 70_000), (64, 1), (1, 70_000, 1)),
        ((128, 2, 70_000), (64, 1, 1), (2, 2, 70_000)),
    ],
)
def test_more_groups_than_cuda_launches_lie_in_one_row(size, local, grid):
    driver = Driver()
    function = modules.function_of(driver, Kernel(GRID, dtypes=(None,), size=size, local=local))
    assert (function.groups, function.items) == ((math.prod(grid), 1, 1), (64, 1, 1))
    assert function(7, [1]) == 0
    assert driver.launched[0][0][:6] == [math.prod(grid), 1, 1, 64, 1, 1]
    assert driver.loaded[0].decode().rstrip("\0") == overlapping(in_one_row(for_cuda(GRID.encode()), "add", grid))
    few = modules.function_of(driver, Kernel(GRID, dtypes=(None,), size=(128, 65535), local=(64, 1)))
    assert few.groups == (2, 65535, 1)
    assert driver.loaded[1].decode().rstrip("\0") == overlapping(for_cuda(GRID.encode())), "nothing else changes"
    modules.function_of(driver, Kernel(GRID, dtypes=(None,), size=size, local=local))
    assert len(driver.loaded) == 2


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas (CUDA's assembler) is installed here")
def test_the_assembler_takes_a_row(tmp_path):
    assert "error" not in assembled(overlapping(in_one_row(for_cuda(GRID.encode()), "add", (3, 70_000, 2))), tmp_path)
