"""Solvers that break their contract in every way: conv() is right all the same, and one warning says who and what."""

from __future__ import annotations

import numpy as np
import pytest
from sabotaging import BIAS, FUSED, PLUGIN, PROBLEM, W, X, check_one_warning, expected

import convdispatch as cd
from convdispatch import runtime
from convdispatch.selection.plugins import loader
from convdispatch.selection.solver_query import MOST_CONFIGS, query

RAISES = {
    "Exception": ("throw(Exception('on fire'))", "raised Exception: on fire"),
    "SystemExit": ("throw(SystemExit(3))", "raised SystemExit: 3"),
    "os_exit": ("__import__('sys').exit('bye')", "raised SystemExit: bye"),
    "RecursionError": ("sink()", "raised RecursionError: maximum recursion"),
    "BaseException": ("throw(Odd('strange'))", "raised Odd: strange"),
    "GeneratorExit": ("throw(GeneratorExit())", "raised GeneratorExit"),
    "MemoryError": ("throw(MemoryError('no room'))", "raised MemoryError: no room"),
}
KINDS = {
    "text": "'fast'",
    "nothing": "''",
    "nan": "float('nan')",
    "inf": "float('inf')",
    "negative": "-1",
    "none": "None",
    "int": "3",
    "bool": "True",
    "huge": "10**400",
    "empty": "[]",
    "list": "[1, 2]",
    "set": "{'a'}",
    "dict": "{'block': 4}",
    "endless": "endless()",
    "late": "late()",
    "keys": "[{1: 2}]",
    "values": "[{'a': {1, 2}}]",
    "nan_value": "[{'a': float('nan')}]",
    "object": "object()",
    "evil": "type('Evil', (), {'__repr__': lambda self: throw(Odd('repr'))})()",
}
RIGHT = {
    "rejects": {"text", "none"},
    "configs": set(),
    "cost": {"none", "int"},
    "workspace": {"none", "int", "huge"},
}
"""Kinds that are answers, or for which a plan would be made: these are no faults of the method."""
CASES = [
    pytest.param(method, expression, f"its {method}() {words}", id=f"{method}-{kind}")
    for method in RIGHT
    for kind, (expression, words) in [
        *((kind, (text, "answered" if kind != "late" or method != "configs" else "raised ValueError: no more"))
          for kind, text in KINDS.items() if kind not in RIGHT[method]),
        *RAISES.items(),
    ]
]  # fmt: skip


@pytest.mark.parametrize(("method", "expression", "words"), CASES)
def test_conv_is_right_whatever_a_solver_answers(sabotage, method, expression, words):
    sabotage(PLUGIN.format(method=method, expression=expression))
    said = check_one_warning(words)
    assert "solver bad.solver of plugin bad is set aside for" in said
    verdict = next(v for v in cd.explain(FUSED).verdicts if v.solver == "bad.solver")
    assert verdict.status == "quarantined"


@pytest.mark.parametrize("method", ["configs", "cost", "workspace"])
def test_a_policy_meets_no_raw_exception(sabotage, method):
    sabotage(PLUGIN.format(method=method, expression="throw(SystemExit(3))"))
    with (
        cd.policy(solver="bad.*", workspace_limit=1 << 20),
        pytest.warns(cd.ConvDispatchWarning, match="SystemExit: 3"),
        pytest.raises(cd.NoSolver, match=rf"bad.solver: its {method}\(\) raised SystemExit: 3"),
    ):
        cd.conv(X, W)


@pytest.mark.parametrize("method", [*RIGHT, "plan"])
def test_ctrl_c_passes(sabotage, method):
    sabotage(PLUGIN.format(method=method, expression="throw(KeyboardInterrupt())"))
    with pytest.raises(KeyboardInterrupt):
        cd.conv(X, W)


@pytest.mark.parametrize("kind", sorted(set(RAISES) - {"MemoryError"}))  # which is no fault of a solver's: MemoryLimit
def test_a_plan_that_raises_anything(sabotage, kind):
    expression, words = RAISES[kind]
    sabotage(PLUGIN.format(method="plan", expression=expression))
    check_one_warning(words.removeprefix("raised "))


PLAN = """
class Plan:
    workspace_size = 0
    def enqueue(self, queue, x, w, y, workspace, wait_for=None, bias=None, residual=None):
        import pyopencl as cl
        return cl.enqueue_marker(queue)
    {line}
def made(self, context, problem, config):
    return Plan()
Bad.plan = made
"""
PLANS = {
    "size_text": ("workspace_size = '64'", "must return workspace_size"),
    "size_negative": ("workspace_size = -1", "must return workspace_size"),
    "size_bool": ("workspace_size = True", "must return workspace_size"),
    "size_nan": ("workspace_size = float('nan')", "must return workspace_size"),
    "size_raises": ("workspace_size = property(lambda self: throw(SystemExit(2)))", "SystemExit: 2"),
    "enqueue_none": ("enqueue = None", "must return workspace_size"),
    "returns_none": ("enqueue = lambda self, *a, **k: None", "enqueue must return an event, got None"),
    "returns_text": ("enqueue = lambda self, *a, **k: 'done'", "enqueue must return an event, got 'done'"),
    "exits": ("enqueue = lambda self, *a, **k: throw(SystemExit(4))", "failed as it ran: SystemExit: 4"),
    "odd": ("enqueue = lambda self, *a, **k: throw(Odd('strange'))", "failed as it ran: Odd: strange"),
    "raises": ("enqueue = lambda self, *a, **k: throw(ValueError('x'))", "failed as it ran: ValueError: x"),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_that_is_none(sabotage, kind):
    line, words = PLANS[kind]
    sabotage(PLUGIN.format(method="cost", expression="1.0") + PLAN.format(line=line))
    check_one_warning(words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("packed_size = 'much'", "must state packed_size"),
        ("packed_size = 64", "must state packed_size"),
        ("packed_size = -4", "must state packed_size"),
        ("pack_key = ['a']", "must give a text as pack_key"),
    ],
)
def test_a_plan_whose_packing_is_none(sabotage, line, words):
    sabotage(PLUGIN.format(method="cost", expression="1.0") + PLAN.format(line=line))
    with pytest.warns(cd.ConvDispatchWarning, match=words):
        np.testing.assert_array_equal(cd.conv(X, cd.constant(W), BIAS, activation="relu"), expected())


ATTRIBUTES = {
    "fuses_text": ("fuses = 'bias'", "fuses"),
    "fuses_unknown": ("fuses = {'swish'}", "fuses"),
    "fuses_none": ("fuses = None", "fuses"),
    "deterministic": ("deterministic = 'yes'", "deterministic"),
    "exact": ("exact = 1", "exact"),
    "name_empty": ("name = ''", "name"),
    "name_spaces": ("name = 'bad solver\\n'", "name"),
    "name_derived": ("name = 'bad+flat'", "name"),
    "name_raises": ("name = property(lambda self: throw(SystemExit(5)))", "SystemExit: 5"),
}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_an_attribute_of_the_wrong_kind_sets_the_plugin_aside(sabotage, kind):
    line, words = ATTRIBUTES[kind]
    text = PLUGIN.format(method="cost", expression="1.0")
    sabotage(text.replace("@hookimpl", f"Bad.{line}\n\n@hookimpl"), preferred=False)
    check_one_warning(words)


@pytest.mark.parametrize("kind", RAISES)
def test_an_import_that_raises_anything(sabotage, kind):
    expression, words = RAISES[kind]
    sabotage(PLUGIN.format(method="cost", expression="1.0") + f"\n{expression}\n", preferred=False)
    assert "plugin bad was set aside: import " + words in check_one_warning(words)


def test_a_solver_is_asked_once_a_problem(sabotage):
    text = PLUGIN.format(method="cost", expression="count(self, 'cost', 1.0)")
    sabotage(
        text
        + """
asked = []
def count(self, what, value):
    asked.append(what)
    return value
Bad.rejects = lambda self, *a: count(self, 'rejects', None)
Bad.configs = lambda self, *a: count(self, 'configs', [{}])
Bad.workspace = lambda self, *a: count(self, 'workspace', 0)
"""
    )
    for _ in range(3):
        cd.explain(PROBLEM)
    solver = loader.plugins().solvers["bad.solver"]
    assert sorted(__import__("sys").modules[type(solver).__module__].asked) == [
        "configs", "cost", "rejects", "workspace",
    ]  # fmt: skip


def test_find_passes_over_a_solver_whose_later_configuration_has_no_cost(sabotage):
    sabotage(
        PLUGIN.format(method="cost", expression="'dear' if arguments[2]['n'] else 1.0")
        + "\nBad.configs = lambda self, *a: [{'n': n} for n in range(3)]\n"
        + PLAN.format(line="")
    )
    with pytest.warns(cd.ConvDispatchWarning, match=r"bad.solver .* its cost\(\) answered 'dear'"):
        results = cd.find(PROBLEM, budget_ms=30_000, store=False)
    assert results.winner.solver.startswith("im2col")
    assert next(r for r in results if r.solver == "bad.solver").status == "refused"


def test_as_many_configurations_as_are_allowed(sabotage):
    sabotage(PLUGIN.format(method="configs", expression=f"[{{'n': n}} for n in range({MOST_CONFIGS})]"))
    info = runtime.device_info(runtime.default_device())
    assert len(query(loader.plugins().solvers["bad.solver"], PROBLEM, info).configs) == MOST_CONFIGS
