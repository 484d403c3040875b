"""What stands in a lock file or a record reaches neither a plan nor a kernel's text unless the solver offers it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from paths import ROOT

import convdispatch as cd
from convdispatch import runtime
from convdispatch.api import config_macros
from convdispatch.api.errors import PluginError
from convdispatch.measurement import reference
from convdispatch.selection import dispatch
from convdispatch.selection.choice import evidence, lockfile
from convdispatch.selection.plugins import loader
from convdispatch.selection.records.perfdb import perfdb
from convdispatch.selection.records.record import Record, device_key, now
from convdispatch.selection.solver_query import query

VENDOR = ROOT / "examples" / "vendor_plugin"
POINTWISE = cd.ConvProblem(mb=2, ic=5, ih=6, iw=7, oc=9, kh=1, kw=1)
DENSE = cd.ConvProblem(mb=2, ic=5, ih=9, iw=7, oc=9, kh=3, kw=3)
CODE = "1\n#define float double"
ATTACKS = {
    "vendor_text": (POINTWISE, "acme.direct1x1", {"block": 4, "x": CODE}),
    "vendor_name": (POINTWISE, "acme.direct1x1", {"block": 4, "x 1\n#define float double\n#define y": 1}),
    "vendor_value": (POINTWISE, "acme.direct1x1", {"block": "4\n#define float double"}),
    "vendor_zero": (POINTWISE, "acme.direct1x1", {"block": 0}),
    "vendor_missing": (POINTWISE, "acme.direct1x1", {}),
    "direct_parts": (DENSE, "implicitgemm.direct", {"parts": 0}),
    "direct_pr": (DENSE, "implicitgemm.direct", {"pr": 0}),
    "direct_lanes": (DENSE, "implicitgemm.direct", {"lanes": CODE}),
    "direct_huge": (DENSE, "implicitgemm.direct", {"parts": 10**18}),
    "im2col_text": (DENSE, "im2col", {"method": CODE}),
    "nested": (DENSE, "im2col", {"gemm": {"a": [[[]]]}}),
    "nan": (DENSE, "im2col", {"a": float("nan")}),
}


@pytest.fixture
def attacked(tmp_path, monkeypatch, read_anew):
    """The vendor's template beside two of the project's plugins, and an empty database."""
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(VENDOR))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "convdispatch_acme,im2col,implicitgemm")
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setattr(evidence, "_warned_solvers", set())
    read_anew()
    return tmp_path


def config_of(problem, solver, changes):
    """The solver's own first configuration with the attack's changes, or these alone where they replace its names."""
    info = runtime.device_info(runtime.default_device())
    own = dict(query(loader.plugins().solvers[solver], problem, info).configs[0])
    return {**own, **changes} if changes else {}


def check(problem):
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, problem.x_shape).astype(np.float32)
    w = rng.integers(-3, 4, problem.w_shape).astype(np.float32)
    np.testing.assert_array_equal(cd.conv(x, w), reference.compute(problem, x=x, w=w).astype(np.float32))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_lock_file_fixes_only_what_a_solver_offers(attacked, monkeypatch, name):
    problem, solver, changes = ATTACKS[name]
    lock = attacked / "net.lock"
    lockfile.write(lock, {str(problem): lockfile.Decision(solver, config_of(problem, solver, changes))})
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(lock))
    words = rf"net.lock fixes {solver} for {problem} with .* which is no configuration that it offers"
    with pytest.raises(cd.InvalidPolicy, match=words.replace("+", r"\+")):
        check(problem)


@pytest.mark.parametrize("solver", ["acme.direct1x1", "implicitgemm.direct", "im2col"])
def test_a_lock_file_fixes_what_is_offered(attacked, monkeypatch, solver):
    problem = POINTWISE if "acme" in solver else DENSE
    info, lock = runtime.device_info(runtime.default_device()), attacked / "net.lock"
    last = query(loader.plugins().solvers[solver], problem, info).configs[-1]
    lockfile.write(lock, {str(problem): lockfile.Decision(solver, last)})
    monkeypatch.setenv("CONVDISPATCH_LOCK", str(lock))
    check(problem)
    assert cd.explain(problem).chosen == solver
    assert cd.explain(problem).verdicts[0].config == json.loads(json.dumps(last))


@pytest.mark.parametrize("config", [3, "x", [], None])
def test_a_lock_file_whose_configuration_is_none(tmp_path, config):
    lock = tmp_path / "net.lock"
    lock.write_text(json.dumps({"schema": 1, "problems": {str(DENSE): {"solver": "im2col", "config": config}}}))
    with pytest.raises(cd.InvalidPolicy, match=r"the configuration of .* is a mapping, got"):
        lockfile.read(lock)


def put(problem, solver, config):
    """The fastest record of all is a solver's, with this configuration."""
    key = device_key(runtime.device_info(runtime.default_device()))
    made = Record(str(problem), key, solver, config, 1e-6, (1e-6, 1e-6), 1e-6, 1e-6, 30, error=1e-7, created=now())
    perfdb().record(made)
    dispatch.forget()


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"nan"}))
def test_a_record_names_only_what_a_solver_offers(attacked, name):
    problem, solver, changes = ATTACKS[name]
    put(problem, solver, config_of(problem, solver, changes))
    with pytest.warns(cd.ConvDispatchWarning, match=rf"{solver} does not offer its configuration"):
        check(problem)
    assert not str(cd.explain(problem).source).startswith("measured")


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"nan"}))
def test_what_a_neighbour_ran_runs_only_if_it_is_offered_here(attacked, name):
    problem, solver, changes = ATTACKS[name]
    put(problem.replace(mb=3), solver, config_of(problem, solver, changes))
    check(problem)


@pytest.mark.parametrize(
    ("config", "macro"),
    [
        ({"x": CODE}, "X"),
        ({"block": "4 "}, "BLOCK"),
        ({"block": "4); while(1"}, "BLOCK"),
        ({"block": ""}, "BLOCK"),
        ({"block": "a\\\n"}, "BLOCK"),
        ({"block": "é"}, "BLOCK"),
        ({"block": float("nan")}, "BLOCK"),
        ({"block": float("inf")}, "BLOCK"),
        ({"block": None}, "BLOCK"),
        ({"block": [1]}, "BLOCK"),
        ({"block": {"a": 1}}, "BLOCK"),
        ({"a b": 1}, "a b"),
        ({"x 1\n#define float double\n#define y": 1}, "define float"),
        ({"": 1}, "''"),
        ({"1a": 1}, "1a"),
        ({3: 1}, "3"),
    ],
)
def test_macros_take_identifiers_numbers_and_booleans(config, macro):
    with pytest.raises(PluginError, match=macro):
        config_macros(config)


def test_macros_that_are_right():
    values = {"tile": 8, "n": np.int64(3), "wide": True, "flat": np.bool_(False), "alpha": 0.5, "kind": "float4"}
    assert config_macros(values).splitlines() == [
        "#define TILE 8", "#define N 3", "#define WIDE 1", "#define FLAT 0", "#define ALPHA 0.5",
        "#define KIND float4",
    ]  # fmt: skip
