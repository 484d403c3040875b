"""First calls: of ever new sizes, which must not add up, and of several threads, which must not wait for each other."""

from __future__ import annotations

import gc
import textwrap
import threading

import numpy as np
import pytest

from convdispatch import ConvProblem, conv
from convdispatch.calls import call_cache
from convdispatch.device.programs import kernels
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader
from convdispatch.selection.prepared import Prepared

PLUGIN = """
import threading
from convdispatch.api import KernelPlan, Solver, hookimpl

GATES = {}  # image height to (event that plan() sets, event that it waits for)

class Ones(Solver):
    '''Writes ones; every size is a program of its own.'''
    name = "test.ones"
    def rejects(self, problem, device):
        return None if problem.direction == "fwd" else "forward only"
    def plan(self, context, problem, config):
        if problem.ih in GATES:
            begun, gate = GATES[problem.ih]
            begun.set()
            assert gate.wait(60)
        size = problem.mb * problem.oc * problem.oh * problem.ow
        return KernelPlan(context, __package__, "ones.cl", problem, config, [("ones", (size,), None, "y")])

@hookimpl
def convdispatch_solvers():
    return [Ones()]
"""


@pytest.fixture
def ones(tmp_path, monkeypatch, read_anew):
    """The plugin above alone; its solver's module."""
    folder = tmp_path / "plugins" / "test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(textwrap.dedent(PLUGIN))
    (folder / "ones.cl").write_text("kernel void ones(global REAL *y) { STORE(y, get_global_id(0), 1.0f); }\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(folder.parent))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "test")
    read_anew()
    solver = loader.plugins().solvers["test.ones"]
    return type(solver).plan.__globals__


def call(height: int, width: int = 4) -> np.ndarray:
    return conv(np.zeros((1, 1, height, width), np.float32), np.zeros((1, 1, 1, 1), np.float32))


def alive() -> int:
    gc.collect()
    return sum(type(thing) is Prepared for thing in gc.get_objects())


def test_new_sizes_do_not_add_up(ones, device, monkeypatch):
    """What is kept is bounded, and nothing else holds what was dropped."""
    monkeypatch.setattr(kernels, "NEW_SHARE", 64 * kernels.CALL_BYTES)
    dispatch.forget()
    before = alive()
    for size in range(4, 154):
        assert call(size).sum() == 4 * size
        assert len(dispatch._plans) <= 64
        assert len(call_cache.CALLS) <= 64
    assert alive() - before <= 64 + 64
    assert kernels.BUDGET.new_nbytes <= kernels.NEW_SHARE


def test_sizes_that_come_back_stay(ones, device):
    """A net of more layers than new sizes are kept: after the second round nothing is planned any more."""
    dispatch.forget()
    planned = []
    plan = dispatch._first_that_plans
    for turn in range(4):
        dispatch._first_that_plans = lambda problem, *rest: planned.append(problem.ih) or plan(problem, *rest)
        try:
            for size in range(4, 104):
                call(size)
        finally:
            dispatch._first_that_plans = plan
        assert len(planned) <= 200
        if turn == 2:
            del planned[:]
    assert planned == []


def test_a_first_call_waits_for_no_other_problems_plan(ones, device):
    begun, gate = threading.Event(), threading.Event()
    ones["GATES"][7] = begun, gate
    answers = {}
    threads = [threading.Thread(target=lambda name=name: answers.update({name: call(7)})) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    other = threading.Thread(target=lambda: answers.update(other=call(9)))
    other.start()
    other.join(60)
    found = list(answers)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert found == ["other"], "another problem's first call waited for a plan that was still being made"
    assert set(answers) == {"other", "a", "b"}
    assert (answers["a"] == 1).all()


def test_one_problem_is_planned_once_however_many_threads_ask(ones, device):
    counted = []
    plan = ones["Ones"].plan
    ones["Ones"].plan = lambda self, *rest: counted.append(1) or plan(self, *rest)
    try:
        threads = [threading.Thread(target=call, args=(11,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        ones["Ones"].plan = plan
    assert counted == [1]


def test_what_is_forgotten_while_it_is_planned_is_planned_anew(ones, device):
    begun, gate = threading.Event(), threading.Event()
    ones["GATES"][13] = begun, gate
    thread = threading.Thread(target=call, args=(13,))
    thread.start()
    assert begun.wait(60)
    dispatch.forget()  # as after new records
    gate.set()
    thread.join(60)
    problem = ConvProblem(ic=1, ih=13, iw=4, oc=1)
    assert not [key for key in dispatch._plans._all if key[1] == problem]
