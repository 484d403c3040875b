"""What runs first is known without asking plugins that predict nothing, wherever they cannot be first."""

from __future__ import annotations

import itertools

import pytest
import shape_tables
from plans import LARGE
from records import record

import convdispatch as cd
from convdispatch.api import DeviceInfo
from convdispatch.selection import dispatch, solver_query
from convdispatch.selection.choice import lockfile, ranking
from convdispatch.selection.choice.ranking import Choices, rank
from convdispatch.selection.plugins import loader
from convdispatch.selection.records.perfdb import perfdb
from convdispatch.selection.records.record import device_key
from convdispatch.selection.solver_query import query
from convdispatch.selection.visible_problem import unfused_seconds
from convdispatch.tools.targets.described import DESCRIBED

PLUGIN = """
from convdispatch.api import Solver, hookimpl
class Made(Solver):
    def __init__(self, name, predicts, cost): self.name, self.predicts, self.seconds = name, predicts, cost
    asked = 0
    def rejects(self, problem, device):
        type(self).asked += not self.predicts
        if problem.kh == 5 and self.predicts: return "no 5"
        if problem.direction != "fwd": return "forward only"
    def cost(self, problem, device, config): return self.seconds if problem.kh == 3 else None
    def plan(self, context, problem, config): raise NotImplementedError
@hookimpl
def convdispatch_solvers(): return [%s]
"""
CPU = DeviceInfo("a CPU", "intel", "cpu", "simd512", compute_units=2, simd_width=16, local_mem_size=32768)
PROBLEM = cd.ConvProblem(mb=2, ic=4, ih=6, iw=6, oc=8, kh=3, kw=3)
ALIKE = "version: 1\nrules:\n  - prefer: ['*.*']\n"


def put(monkeypatch, tmp_path, rules, **made):
    for name, solvers in made.items():
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(PLUGIN % solvers)
    (tmp_path / "registry.yaml").write_text(rules)
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path / "plugins"))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "loud,silent")
    loader.reload()
    dispatch.forget()


@pytest.fixture
def asked(tmp_path, monkeypatch, read_anew):
    """``asked(rules, problem)``: the first choice's name, and whether the plugin that predicts nothing was asked."""

    def ask(rules=ALIKE, problem=PROBLEM, loud="Made('loud.a', True, 1.0)", silent="silent.s", **given):
        put(monkeypatch, tmp_path, rules, loud=loud, silent=f"Made('{silent}', False, None)")
        with cd.policy(**given):
            found = Choices(problem, LARGE)
            kind = type(next(s for s in loader.plugins().solvers.values() if not s.predicts))
            first, was = found.first, kind.asked > 0
            assert first == rank(problem, LARGE)[0]
            assert list(found) == rank(problem, LARGE)
            assert kind.asked, "whoever wants all candidates gets all"
        return first.solver.name, was

    return ask


RULE = "version: 1\nrules:\n  - prefer: ['{}']\n"


@pytest.mark.parametrize(
    ("rules", "changes", "first", "was_asked"),
    [
        (ALIKE, {}, "loud.a", False),
        ("version: 1\n", {}, "loud.a", False),
        (
            RULE.format("loud.*"),
            {"problem": PROBLEM.replace(kh=1, kw=1)},
            "loud.a",
            False,
        ),  # predicts nothing this time
        (ALIKE, {"problem": PROBLEM.replace(kh=1, kw=1)}, "loud.a", False),
        (ALIKE, {"problem": PROBLEM.replace(kh=1, kw=1), "silent": "a.silent"}, "a.silent", True),
        (ALIKE, {"problem": PROBLEM.replace(kh=5, kw=5)}, "silent.s", True),
        (RULE.format("silent.s"), {}, "silent.s", True),
        (RULE.format("silent.s+*"), {}, "loud.a", True),
        (ALIKE, {"loud": "Made('loud.a', True, 0.0)", "silent": "a.silent"}, "loud.a", False),
        (ALIKE, {"solver": "*"}, "loud.a", True),
        (ALIKE, {"solver": "silent.*"}, "silent.s", True),
        (ALIKE, {"deterministic": True}, "loud.a", False),
    ],
)
def test_a_plugin_that_predicts_nothing_is_asked_where_it_may_be_first(asked, rules, changes, first, was_asked):
    assert asked(rules, **changes) == (first, was_asked)


@pytest.fixture
def db(tmp_path, monkeypatch, read_anew):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    read_anew()
    return perfdb()


@pytest.mark.parametrize(
    ("solver", "problem", "first", "was_asked"),
    [
        ("loud.a", PROBLEM, "loud.a", False),
        ("loud.a", PROBLEM.replace(mb=3), "loud.a", False),
        ("silent.s", PROBLEM, "silent.s", True),
        ("silent.s", PROBLEM.replace(mb=3), "silent.s", True),  # near by, faster than all who predict
        ("silent.s", PROBLEM.replace(mb=64, ih=99), "loud.a", True),  # too far away, but it might have been nearer
        ("silent.s", PROBLEM.replace(direction="bwd_data"), "loud.a", False),
    ],
)
def test_a_record_of_it_has_it_asked(asked, db, solver, problem, first, was_asked):
    db.record(record(solver, problem=problem, device=device_key(LARGE)))
    assert asked() == (first, was_asked)


@pytest.mark.parametrize(
    ("times", "first", "was_asked"), [((2.0, 1.0), "silent.s", True), ((1.0, 2.0), "loud.a", False)]
)
def test_a_record_of_it_behind_the_winners_says_nothing(asked, db, times, first, was_asked):
    for solver, ms in zip(("loud.a", "silent.s"), times, strict=True):
        db.record(record(solver, ms, problem=PROBLEM, device=device_key(LARGE)))
    assert asked() == (first, was_asked)


def test_a_lock_file_has_it_asked(asked, monkeypatch, tmp_path):
    lockfile.write(tmp_path / "lock", {str(PROBLEM): lockfile.Decision("silent.s", {})})
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(tmp_path / "lock"))
    assert asked() == ("silent.s", True)


@pytest.mark.parametrize(
    ("rules", "only", "asks"), [("packaged", "", False), ("none", "", False), ("none", "winograd,fft", True)]
)
def test_the_first_is_the_same_where_derived_solvers_are_not_asked(
    rules, only, asks, tmp_path, monkeypatch, read_anew, full
):
    """On a GPU and a CPU, each problem in one way, with --full in all: with all plugins nothing derived can be first,
    with two that have gaps it often is."""
    if rules == "none":
        (tmp_path / "registry.yaml").write_text("version: 1\n")
        monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", only)
    read_anew()
    derive, asked, answers = ranking.derived, [], set()
    monkeypatch.setattr(ranking, "derived", lambda *given: asked.append(given[0]) or derive(*given))
    ways = list(itertools.product(("fwd", "bwd_data", "bwd_weights"), (LARGE, CPU)))
    entries = [*shape_tables.load("near_miss"), *shape_tables.load("basic")]
    in_turn = zip(entries[::2], itertools.cycle(ways))
    for entry, (direction, device) in itertools.product(entries[::3], ways) if full else in_turn:
        problem = entry.problem.replace(direction=direction)
        asked.clear()
        try:
            first, was_asked = Choices(problem, device).first, bool(asked)
        except cd.NoSolver:
            continue
        best = rank(problem, device)[0]
        assert (first.solver.name, first.config, first.source) == (best.solver.name, best.config, best.source)
        answers.add((was_asked, "+" in best.solver.name))
    assert answers == ({(False, False), (True, True)} if asks else {(False, False)})


LAYERS = [
    "fwd_bf16_nhwc_mb64ic256ih56iw56oc64kh1kw1",
    "bwd_data_bf16_nhwc_mb64ic128ih28iw28oc512kh1kw1+norm(relu)+sums",
    "fwd_bf16_nhwc_mb64ic128ih28iw28oc128kh3kw3ph1pw1+sums",
    "bwd_weights_bf16_nhwc_mb64ic128ih28iw28oc128kh3kw3ph1pw1",
    "fwd_f16_nhwc_mb1ic512ih7iw7oc512kh3kw3ph1pw1+bias+relu",
    "bwd_data_f16_mb8ic64ih56iw56oc64kh3kw3sh2sw2ph1pw1",
    "fwd_f32_tf32_mb64ic64ih56iw56oc64kh3kw3ph1pw1",
    "bwd_weights_f32_mb8ic3ih64iw64oc64kh7kw7sh2sw2ph3pw3",
    "fwd_f32_nhwc_g32mb8ic128ih28iw28oc128kh3kw3ph1pw1",
    "bwd_data_f32_mb2ic8ih7iw7oc8kh3kw3ph2pw2",
]


@pytest.mark.parametrize("text", LAYERS)
def test_no_configuration_takes_less_than_the_least_seconds(text):
    problem, known = cd.ConvProblem.parse(text), 0
    for device in (DESCRIBED["h200"], DESCRIBED["a100"], DESCRIBED["mi210"]):
        for solver in loader.plugins().solvers.values():
            least, answers = solver_query.least_seconds(solver, problem, device), query(solver, problem, device)
            if least and answers.accepts:
                costs = [answers.cost(config) + unfused_seconds(solver, problem, device) for config in answers.configs]
                assert min(costs) >= least * (1 - 1e-9)
                known += 1
        best = rank(problem, device)[0]
        first = Choices(problem, device).first
        assert (first.solver.name, first.config, first.source) == (best.solver.name, best.config, best.source)
    assert known > 3


@pytest.mark.parametrize(
    ("text", "lists"),
    [("fwd_bf16_nhwc_mb64ic256ih56iw56oc64kh1kw1", 1), ("bwd_data_bf16_nhwc_mb64ic128ih28iw28oc128kh3kw3ph1pw1", 8)],
)
def test_solvers_that_cannot_be_first_list_no_configurations(text, lists, monkeypatch):
    """And those for other devices and dtypes are not queried about a second problem."""
    problem, device, asked = cd.ConvProblem.parse(text), DESCRIBED["h200"], []
    dispatch.forget()
    Choices(problem.replace(mb=32), device)
    ask = solver_query.ask

    def noted(solver, method, *given):
        asked.append((solver.name, method))
        return ask(solver, method, *given)

    monkeypatch.setattr(solver_query, "ask", noted)
    assert Choices(problem, device).first.solver.name == "nvidia.tma"
    assert len([solver for solver, method in asked if method == "configs"]) <= lists
    assert len({solver for solver, method in asked if method == "rejects"}) < len(loader.plugins().solvers) / 2
