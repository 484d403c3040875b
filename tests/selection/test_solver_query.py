"""Queries are few: a default configuration is asked for alone, derived solvers only where they may win."""

from __future__ import annotations

import itertools
import statistics
from contextlib import ExitStack

import pytest
from processors import described

from bench.drawn import KINDS, drawn
from convdispatch.selection import dispatch, solver_query
from convdispatch.selection.choice.ranking import Choices, rank
from convdispatch.selection.derivation import solver as derivation
from convdispatch.selection.plugins import loader
from convdispatch.selection.solver_query import query
from convdispatch.tools.targets.described import DESCRIBED

DEVICES = ("avx512", "avx2", "h200", "mi300x")
MOST_QUERIES = {kind: 190 if kind == "tf32" else 105 for kind in KINDS}
"""Mean queries for a problem, of which 60 in the first one of a dtype and direction ask whether a solver serves the
device; for tf32 most are asked twice."""


def problems(device, count, seed=11):
    """``count`` drawn problems of each kind."""
    name = "cpu" if device.type == "cpu" else "gpu"
    return [(kind, problem) for kind in KINDS for problem in itertools.islice(drawn(name, kind, seed), count)]


@pytest.fixture(params=DEVICES)
def info(request):
    loader.reload()
    dispatch.forget()
    with ExitStack() as stack:
        if request.param.startswith("avx"):
            yield stack.enter_context(described(request.param))
        else:
            yield DESCRIBED[request.param]
    loader.reload()
    dispatch.forget()


def best_cost(candidate, problem, device):
    answers = query(candidate.solver, problem, device)
    return answers.cost(candidate.config)


def test_the_first_is_the_one_of_all_solvers(info, full):
    """500 problems on four devices in all: the same solver and configuration, or one that is predicted no slower."""
    for _, problem in problems(info, 21 if full else 1):
        first, best = Choices(problem, info).first, rank(problem, info)[0]
        if (first.solver.name, first.config) != (best.solver.name, best.config):
            costs = [best_cost(one, problem, info) for one in (first, best)]
            assert None not in costs, problem
            assert costs[0] <= costs[1], f"{problem}: {first} {best}"


def test_a_choice_asks_no_derived_solver_and_lists_no_configurations(info, monkeypatch):
    """The mean number of queries is bounded; nothing is listed where the default fits on the device."""
    asked, listed = [], []
    ask, list_configs = solver_query.ask, solver_query.SolverAnswers._list_configs
    for module in (solver_query, derivation):
        monkeypatch.setattr(module, "ask", lambda solver, *given: asked.append(solver.name) or ask(solver, *given))
    monkeypatch.setattr(
        solver_query.SolverAnswers, "_list_configs", lambda self: listed.append(self) or list_configs(self)
    )
    for kind, chosen in itertools.groupby(problems(info, 4), key=lambda pair: pair[0]):
        counts = []
        for _, problem in chosen:
            asked.clear()
            Choices(problem, info)
            counts.append(len(asked))
            assert not any("+" in name for name in asked), problem
        assert statistics.mean(counts) < MOST_QUERIES[kind], f"{kind}: {counts}"
        assert not listed, listed[0].solver.name


def test_the_default_is_the_first_of_the_configurations(info):
    """Of every solver that accepts: alone as in the list, whatever the math; and its problem is the list's."""
    seen = 0
    for _, problem in problems(info, 1):
        for solver in loader.plugins().solvers.values():
            answers = query(solver, problem, info)
            if answers.accepts:
                seen += 1
                shown = answers.shown(answers.default)
                assert answers.configs[0] == answers.default == next(iter(answers.within(None)))
                assert answers.shown(answers.configs[0]) == shown
                own = [dict(config) for config in solver.configs(shown, info)]
                assert all(dict(config) in list(map(dict, answers.configs)) for config in own)
                assert shown.math != problem.math or own[0] == answers.default
    assert seen > 20
