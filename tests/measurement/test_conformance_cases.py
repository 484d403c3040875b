"""The generated cases hold what they say: every pair of letters' values, and per kind all that kernels get wrong."""

from __future__ import annotations

import itertools
import tomllib

import pytest
from paths import ROOT
from processors import described

from convdispatch.measurement.conformance import levels
from convdispatch.measurement.conformance.covering import cover, pairs_of
from convdispatch.measurement.conformance.space import blocks, describe, problem_of
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tools.targets.described import target_device

FORMS = {
    "dense": lambda p: p.g == 1,
    "grouped": lambda p: p.g > 1 and not p.depthwise,
    "depthwise": lambda p: p.depthwise and p.oc == p.ic,
    "multiplier": lambda p: p.depthwise and p.oc > p.ic,
}
PROPERTIES = {
    "image not square": lambda p: p.ih != p.iw,
    "kernel not square": lambda p: p.kh != p.kw,
    "pads differ by axis": lambda p: p.ph != p.pw,
    "pads differ by side": lambda p: p.ph != p.ph_r and p.pw != p.pw_r,
    "no padding": lambda p: p.ph == p.ph_r == p.pw == p.pw_r == 0,
    "a pad of 2": lambda p: 2 in (p.ph, p.pw),
    "strides differ": lambda p: p.sh != p.sw,
    "dilations differ": lambda p: p.dh != p.dw,
    "odd sizes": lambda p: p.iw % 2 and p.iw % 3 == 0,
    "several images": lambda p: p.mb > 1,
}


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_every_pair_stands_in_some_case(block):
    """Counted anew from the letters: what no row holds, no row could: two large sizes at once, or a weights' gradient
    with a bias, residual or activation."""
    held = {pair for row in block.array.rows for pair in pairs_of(row)}
    names = list(block.letters)
    every = {
        ((a, v), (b, u))
        for a, b in itertools.combinations(names, 2)
        for v, u in itertools.product(block.letters[a], block.letters[b])
    }
    assert every == held | set(block.array.impossible)
    large = [pair for pair in block.array.impossible if ("direction", "bwd_weights") not in pair]
    assert all(one * other > 1000 for (_, one), (_, other) in large), "its images would be large"
    fused = {letter for pair in block.array.impossible if pair not in large for letter, _ in pair}
    assert fused <= {"direction", "epilogue"}
    assert all(value != "accumulate" for pair in block.array.impossible for _, value in pair)
    assert len(held) == block.array.pairs
    assert all(problem_of(row) is not None for row in block.array.rows)


@pytest.mark.parametrize("form", FORMS)
def test_each_kind_has_each_property_beside_each_choice(form):
    """For every kernel size, layout, dtype and direction of a form of channels."""
    problems = [case.problem for case in levels.cases() if case.problem.ndim == 2 and FORMS[form](case.problem)]
    choices = {
        "kernel": lambda p: p.kh if p.kh in (1, 2, 3, 5) else None,
        "layout": lambda p: p.layout,
        "dtype": lambda p: p.dtype,
        "direction": lambda p: p.direction,
    }
    for choice, of in choices.items():
        for value in {of(problem) for problem in problems} - {None}:
            mine = [problem for problem in problems if of(problem) == value]
            for words, holds in PROPERTIES.items():
                if words == "kernel not square" and value == 1 and choice == "kernel":
                    continue
                assert any(map(holds, mine)), f"{form}: no case of {choice} {value} has {words}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
def test_a_kernel_of_one_size_and_stride_is_tried_in_full(form, direction):
    """3x3, stride 1, no dilation, float32, NCHW: pads 0, 1 and 2 on both axes, and no image square."""
    corner = [
        case.problem
        for case in levels.cases("training")
        if "." in case.name and case.name.startswith(f"{form}_2d")
        and FORMS[form](case.problem) and case.problem.direction == direction
        and (case.problem.kh, case.problem.kw, case.problem.sh, case.problem.sw) == (3, 3, 1, 1)
        and case.problem.dh == case.problem.dw == 1
    ]  # fmt: skip
    alike = [p for p in corner if p.ph == p.ph_r and p.pw == p.pw_r]
    for pads in ({p.ph for p in alike}, {p.pw for p in alike}):
        assert pads == {0, 1, 2}
    assert any(p.ph != p.pw for p in alike)
    assert any(p.ph != p.ph_r for p in corner)
    assert all(p.ih != p.iw for p in corner)


def test_ranks_one_and_three_have_every_form_direction_and_layout():
    for ndim in (1, 3):
        problems = [case.problem for case in levels.cases() if case.problem.ndim == ndim]
        found = {
            (form, p.direction, p.layout) for p in problems for form, belongs in FORMS.items() if belongs(p)
        }  # fmt: skip
        assert len(found) == 4 * 3 * 2


def test_an_array_is_the_same_each_time_and_much_shorter_than_all():
    letters = {name: range(4) for name in "abcdef"}
    one, other = (cover(letters, lambda row: True, seed=7) for _ in range(2))
    assert one == other
    assert one.pairs == 15 * 16
    assert 16 <= len(one.rows) <= 32
    assert cover(letters, lambda row: True, seed=8).rows != one.rows


def test_what_cannot_be_is_said():
    letters = {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    array = cover(letters, lambda row: not (row["a"] and row["b"]))
    assert array.impossible == [(("a", 1), ("b", 1))]
    assert array.pairs == 11


def test_a_stratum_holds_every_value_of_what_it_leaves_free():
    letters = {"a": (0, 1, 2), "b": (0, 1, 2), "c": tuple(range(5))}
    array = cover(letters, lambda row: True, [{"a": 1, "b": 2}])
    assert {row["c"] for row in array.rows if row["a"] == 1 and row["b"] == 2} == set(range(5))


def test_the_cases_hold_every_pair_of_every_array():
    names = {case.name for case in levels.cases()}
    held = {block.name for block in blocks() if {name for name, _ in block.named()} <= names}
    assert held == {block.name for block in blocks()}
    assert sum(block.array.pairs for block in blocks()) > 20000
    assert len(describe(names)) == len(blocks())


def test_what_bfloat16_cases_need_comes_with_the_package():
    """NumPy's bfloat16 is ml_dtypes': without it the cases of that dtype would fail as if the plugin had."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(need.startswith("ml_dtypes") for need in project["dependencies"])
    assert "bfloat16" not in project["optional-dependencies"]


@pytest.mark.parametrize("plugin", ["im2col", "implicitgemm", "winograd", "fft", "int8", "exact"])
def test_every_portable_solver_takes_some_case(plugin):
    """A solver that takes none would pass without having computed anything."""
    with described("amx") as processor:
        devices = [processor, target_device("gfx942"), target_device("pvc")]
        solvers = {name: each for name, each in plugins().solvers.items() if name.split(".")[0] == plugin}
        assert solvers
        problems = [case.problem for case in levels.cases("full")]
        idle = {
            name for name, each in solvers.items()
            if all(each.rejects(problem, device) for device in devices for problem in problems)
        }  # fmt: skip
    assert idle == set()
