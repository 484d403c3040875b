"""Derived solvers: every rewriting against the reference, in NumPy over all shapes, on a device over some."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import shape_tables
from checking import call, make_operands

import convdispatch
from convdispatch import ConvProblem
from convdispatch.api import DeviceInfo, Solver
from convdispatch.device.rates import rates
from convdispatch.device.runtime import device_info
from convdispatch.measurement import reference
from convdispatch.measurement.conformance.checks import Examination
from convdispatch.selection.derivation import REWRITINGS, Derived, derived, may_beat, named
from convdispatch.selection.derivation.rewriting import MOST_GROUPS, Copy, Rewritten
from convdispatch.selection.plugins import loader
from convdispatch.selection.visible_problem import visible_problem

TABLES = [*shape_tables.load("near_miss"), *shape_tables.load("basic")]
DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")


# --- the mathematics, without a device --------------------------------------------------------------------------------


def copied(copy: Copy, source: np.ndarray, target: np.ndarray, part: int) -> None:
    """What rearrange.cl does, from the definition."""
    axes = copy.axes
    for t in itertools.product(*[range(axis.extent) for axis in axes]):
        whole = all((i - a.before) % a.step == 0 and 0 <= (i - a.before) // a.step < a.size for i, a in zip(t, axes))
        at = copy.target_part * part + sum(i * a.target_stride for i, a in zip(t, axes))
        start = copy.source_start + copy.source_part * part
        place = start + sum((i - a.before) // a.step * a.source_stride for i, a in zip(t, axes))
        target[at] = source[place] if whole else 0


def rewritten_result(problem: ConvProblem, found: Rewritten, operands: dict[str, np.ndarray]) -> np.ndarray:
    """The problem through one rewriting, the inner convolution by the reference."""
    inner, flat = found.inner, {name: array.ravel() for name, array in operands.items()}
    out = np.full(math.prod(problem.out_shape), np.nan)
    flat[problem.written] = out
    for part in range(found.parts):
        held = {name: np.full(math.prod(getattr(inner, name + "_shape")), np.nan) for name in found.operand_bytes}
        held |= {name: flat[source] for name, source in found.through.items()}
        for copy in found.copies:
            copied(copy, flat[copy.source], held[copy.target], part)
        read = {name: held[name].reshape(getattr(inner, name + "_shape")) for name in "xwy" if name != inner.written}
        held[inner.written][...] = reference.compute(inner, **read).ravel()
        for copy in found.back:
            copied(copy, held[copy.target], flat[copy.source], part)
    return out.reshape(problem.out_shape)


@pytest.mark.parametrize("name", REWRITINGS)
def test_every_shape_by_the_reference(name, full):
    """Every rewriting over every shape that it takes, in every direction: the whole result, bit for bit. Each in one
    layout in turn, or in both."""
    applied = 0
    for number, (entry, direction, layout) in enumerate(itertools.product(TABLES, DIRECTIONS, ("nchw", "nhwc"))):
        problem = entry.problem.replace(direction=direction, layout=layout)
        if (number // 2 % 2 != number % 2 and not full) or (problem.bytes > 30_000 and name != "flat"):
            continue  # the copies are loops in Python here
        found = REWRITINGS[name](problem)
        if not isinstance(found, str):
            applied += 1
            operands, expected = make_operands(problem, seed=number)
            got = rewritten_result(problem, found, operands.present())
            np.testing.assert_array_equal(got, expected, err_msg=f"{name} of {problem} ({entry.name})")
    assert applied > 20


def test_reasons_are_words():
    for text, name, words in [
        ("mb1ic2ih4oc2kh3", "flat", "1-D only, got 2-D"),
        ("mb1ic2ih4oc2kh3", "rotated", "bwd_data only, got fwd"),
        ("mb1ic2ih4oc2kh3", "padded", "padding only, got none"),
        ("mb1ic2ih4oc2kh3", "grouped", "groups only, got 1"),
        ("g65mb1ic65ih4oc65kh3", "grouped", f"at most {MOST_GROUPS} groups, got 65"),
        ("bwd_weights_g2mb1ic2ih4oc2kh3", "exchanged", "no groups, got 2"),
    ]:
        assert REWRITINGS[name](ConvProblem.parse(text)) == words


# --- on a device, through dispatch ------------------------------------------------------------------------------------

PLUGIN = '''
"""Forward only, 2-D, one group, the same padding on both sides: im2col behind a column of refusals."""
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl


class Narrow(Im2col):
    name = "narrow.forward"

    def rejects(self, problem, device):
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        if problem.ndim != 2:
            return f"2-D only, got {problem.ndim}-D"
        if problem.g != 1:
            return f"no groups, got {problem.g}"
        if (problem.ph, problem.pw) != (problem.ph_r, problem.pw_r):
            return "the same padding on both sides only"
        return super().rejects(problem, device)


class Unpadded(Narrow):
    name = "narrow.unpadded"

    def rejects(self, problem, device):
        if problem.ph or problem.pw:
            return f"no padding, got {problem.ph} and {problem.pw}"
        return super().rejects(problem, device)


@hookimpl
def convdispatch_solvers():
    return [Narrow(), Unpadded()]
'''
CHAINS = {
    "mb2ic3iw9oc5kw3pw1": "flat",
    "bwd_data_mb2ic5ih7oc4kh3ph1": "rotated",
    "bwd_data_mb2ic5ih9iw8oc4kh3ph1sh2": "rotated",
    "bwd_data_nhwc_mb2ic5ih8oc4kh1ph2": "rotated",
    "fwd_mb2ic4ih7oc6kh3ph1pw0ph_r0pw_r2": "padded",
    "fwd_nhwc_mb2ic4ih7oc6kh3ph1pw1ph_r2pw_r1": "padded",
    "g4mb2ic8ih7oc12kh3ph1": "grouped",
    "bwd_weights_mb2ic5ih9oc4kh3ph1sh2": "exchanged",
    "bwd_data_g2mb2ic4ih9oc6kh3ph1sh2ph_r0": "rotated+grouped",
    "bwd_data_g2mb2ic4iw9oc6kw3pw1sw2": "flat+rotated+grouped",
    "bwd_weights_nhwc_g2mb2ic4ih7oc6kh3ph1": "grouped+exchanged",
    "bwd_data_mb2ic5ih7oc4kh3ph1+bias+residual+relu": "rotated",
    "g2mb2ic4ih7oc6kh3ph1+bias+relu": "grouped",
    "bwd_data_nhwc_mb2ic5ih7oc4kh3ph1+accumulate": "rotated",
    "bwd_weights_g2mb2ic4ih7oc6kh3ph1+accumulate": "grouped+exchanged",
    "bwd_data_f64_mb2ic5ih7oc4kh3ph1": "rotated",
    "bwd_data_f16_mb2ic5ih8oc4kh3ph1sh2": "rotated",
    "bwd_data_mb2ic5ih8oc4kh3ph1+constant": "rotated",
    "fwd_mb2ic5ih8oc4kh3ph1ph_r0+bias+constant": "padded",
    "g2mb2ic4ih8oc4kh3ph1+constant": "grouped",
}
"""Problem to the chain of rewritings by which narrow.forward computes it."""


@pytest.fixture
def narrow(tmp_path, monkeypatch, read_anew):
    (tmp_path / "narrow.py").write_text(PLUGIN)
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    return loader.reload()


def own(loaded) -> dict:
    return {"narrow": {name: solver for name, solver in loaded.solvers.items() if name.startswith("narrow.")}}


@pytest.mark.parametrize("text", CHAINS)
def test_a_forward_solver_gets_the_rest(narrow, device, queue, text):
    """The shortest chain, and all the kit's checks: guards, stale workspace, order, queues, threads."""
    problem, info = ConvProblem.parse(text), device_info(device)
    name = f"narrow.forward+{CHAINS[text]}"
    made = derived(problem, info, own(narrow))
    assert name in made, sorted(made)
    solver = made[name]
    seen = visible_problem(solver, problem)
    config = next(iter(solver.configs(seen, info)))
    examination = Examination(solver, seen, config, solver.workspace(seen, info, config), queue)
    examination.run(long=True)
    if problem.constant_weights and "grouped" not in name:
        assert examination.plan.packed_size > 0


def test_the_calls_run_it_and_explain_shows_it(narrow, device):
    problem = ConvProblem.parse("bwd_data_g2mb2ic4ih9oc6kh3ph1sh2+bias+relu")
    operands, expected = make_operands(problem)
    with convdispatch.policy(solver="narrow.*"):
        found = convdispatch.explain(problem, device)
        got = call(problem, operands.present())
    np.testing.assert_array_equal(got, expected)
    assert found.chosen.startswith("narrow.forward+rotated")
    first = found.verdicts[0]
    assert first.plugin == "narrow"
    assert "rotated weights" in first.rewriting
    assert "2 groups in a loop" in first.rewriting
    assert "bytes moved" in str(found)
    assert "forward only, got bwd_data" in str(found)
    assert found.to_dict()["solvers"][0]["rewriting"] == first.rewriting


def test_the_cost_of_the_rewriting_is_in_the_choice(narrow, device):
    info = device_info(device)
    problem = ConvProblem.parse("bwd_data_g4mb2ic16ih9oc16kh3ph1sh2")
    solver = next(iter(derived(problem, info, own(narrow)).values()))
    config = next(iter(solver.configs(problem, info)))
    inner = solver.innermost(problem)
    assert solver.cost(problem, info, config) > 4 * solver.root.cost(inner, info, config) > 0
    with convdispatch.policy(solver="narrow.*"):
        order = [v for v in convdispatch.explain(problem, device).verdicts if v.status in ("chosen", "accepted")]
    assert [v.predicted_ms for v in order] == sorted(v.predicted_ms for v in order)


def test_a_plugin_that_computes_it_itself_is_left_alone(narrow, device):
    info = device_info(device)
    assert derived(ConvProblem.parse("mb2ic4ih9oc6kh3ph1"), info, own(narrow)) == {}
    with convdispatch.policy(solver="im2col*"):
        verdicts = convdispatch.explain("bwd_data_mb2ic4ih9oc6kh3ph1", device).verdicts
    assert not [v for v in verdicts if v.solver.startswith("im2col+")]


def test_a_registry_s_glob_does_not_mean_derived_ones(narrow, device, tmp_path, monkeypatch):
    file = tmp_path / "registry.yaml"
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(file))
    file.write_text("version: 1\nrules:\n  - prefer: ['narrow.*', 'im2col']\n")
    problem = "bwd_data_mb1ic3ih7oc5kh3ph1"
    assert convdispatch.explain(problem, device).chosen == "im2col"
    file.write_text("version: 1\nrules:\n  - prefer: ['narrow.*+*', 'im2col']\n")
    convdispatch.selection.plugins.registry._read.cache_clear()
    found = convdispatch.explain(problem, device)
    assert found.chosen == "narrow.forward+rotated"
    errata = tmp_path / "errata.yaml"
    errata.write_text("errata:\n  - {solver: narrow.forward, when: {direction: fwd}, reason: wrong}\n")
    monkeypatch.setenv("CONVDISPATCH_ERRATA", str(errata))
    assert convdispatch.explain(problem, device).chosen != "narrow.forward+rotated"


def test_find_measures_and_records_it(narrow, device, tmp_path, monkeypatch):
    problem = ConvProblem.parse("bwd_data_mb1ic6ih9oc7kh3ph1")
    with convdispatch.policy(solver="narrow.forward+*"):
        results = convdispatch.find(problem, device, budget_ms=2_000, store=False)
    assert results.winner is not None
    assert results.winner.solver == "narrow.forward+rotated"
    assert results.winner.error < 1e-5


def test_names():
    loaded = loader.plugins().solvers
    assert isinstance(named("im2col+rotated+grouped", loaded), Derived)
    assert named("im2col", loaded) is loaded["im2col"]
    for wrong in ("nobody", "nobody+rotated", "im2col+faster", "im2col+"):
        with pytest.raises(KeyError):
            named(wrong, loaded)
    assert loader.plugins().provider("im2col+rotated") == "im2col"


@pytest.mark.parametrize("part", range(8))
def test_every_shape_on_a_device(narrow, device, queue, full, part):
    """Every shape, direction and layout that needs rewriting."""
    if not full:
        pytest.skip("takes long: run with --full")
    info, ran = device_info(device), 0
    for number, (entry, direction) in enumerate(itertools.product(TABLES, DIRECTIONS)):
        if number % 8 != part:
            continue
        problem = entry.problem.replace(direction=direction, layout=("nchw", "nhwc")[number // 8 % 2])
        for solver in derived(problem, info, own(narrow)).values():
            config = next(iter(solver.configs(problem, info)))
            Examination(solver, problem, config, solver.workspace(problem, info, config), queue).run(long=False)
            ran += 1
    assert ran > 20


CPU = DeviceInfo("a CPU", "intel", "cpu", "simd512", compute_units=2, simd_width=16)


class Forward(Solver):
    """Forward convolutions, at a time that is not worth counting."""

    name = "test.forward"

    def __init__(self):
        self.asked = []

    def rejects(self, problem, device):
        self.asked.append(problem.direction)
        return None if problem.direction == "fwd" else f"forward only, got {problem.direction}"

    def configs(self, problem, device):
        return [{}]

    def cost(self, problem, device, config):
        return 1e-9

    def plan(self, context, problem, config):
        raise NotImplementedError


def test_a_derived_solver_is_asked_only_where_its_copies_take_less():
    """A chain whose copies alone take as long as the best direct solver is not shown to a solver."""
    problem = ConvProblem(direction="bwd_data", ic=64, oc=64, ih=56, iw=56, kh=3, kw=3, ph=1, pw=1, sh=2, sw=2)
    root = Forward()
    (made,) = derived(problem, CPU, {"test": {root.name: root}}).values()
    seconds = made.cost(problem, CPU, {})
    copies, known = made.rewritten(problem), rates(CPU)
    assert seconds == pytest.approx(copies.moved / known.bandwidth + copies.launches * known.launch, rel=1e-3)
    assert may_beat(1.01 * seconds, problem, CPU, {"test": {root.name: root}})
    unseen = Forward()
    assert not may_beat(0.5 * seconds, problem, CPU, {"test": {unseen.name: unseen}})
    assert set(unseen.asked) == {"bwd_data"}
