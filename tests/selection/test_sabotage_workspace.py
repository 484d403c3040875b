"""Too large a workspace is one solver's fault: the next one runs; MemoryLimit only where nobody is left."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sabotaging import BIAS, FUSED, PLUGIN, W, X, check_one_warning, expected

import convdispatch as cd
from convdispatch.selection import prepared
from convdispatch.selection.choice import set_aside

PLAN = """
from convdispatch_im2col import Im2col
class Plan:
    def __init__(self, *arguments):
        self.plan = Im2col().plan(*arguments)
        self.workspace_size = max(SIZE, self.plan.workspace_size)
    def enqueue(self, queue, x, w, y, workspace, wait_for=None, **more):
        RUN
        return self.plan.enqueue(queue, x, w, y, workspace, wait_for, **more)
Bad.fuses = Im2col.fuses
Bad.configs = lambda self, *a: Im2col().configs(*a)
Bad.plan = lambda self, context, problem, config: Plan(context, problem, config)
"""
TIB, GIB = 1 << 40, 1 << 30


def wants(size, stated="None", run="pass"):
    text = PLAN.replace("SIZE", str(size)).replace("RUN", run)
    return PLUGIN.format(method="workspace", expression=stated) + "\nBad.cost = lambda self, *a: 1e-9\n" + text


@pytest.mark.parametrize("size", [1024 * TIB, 2**63, 10**30, 900 * GIB])
def test_an_undeclared_one(sabotage, size):
    sabotage(wants(size))
    said = check_one_warning("bad.solver asks for ")
    assert "of workspace, and " in said
    assert "the next candidate runs" in said


def test_a_declared_one_is_refused_in_words(sabotage):
    sabotage(wants(1024 * TIB, stated=str(1024 * TIB)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is stated honestly is no fault
        np.testing.assert_array_equal(cd.conv(X, W, BIAS, activation="relu"), expected())
    verdict = next(v for v in cd.explain(FUSED).verdicts if v.solver == "bad.solver")
    assert verdict.status == "refused"
    assert "needs 1.02e+03 TiB of workspace" in verdict.reason


def test_a_smaller_configuration_of_it_runs(sabotage):
    sabotage(
        wants(0, stated="1 << (50 if arguments[2]['n'] == 0 else 20)")
        + "\nBad.configs = lambda self, *a: [{**next(iter(Im2col().configs(*a))), 'n': n} for n in (0, 1)]\n"
    )
    verdict = next(v for v in cd.explain(FUSED).verdicts if v.solver == "bad.solver")
    assert (verdict.status, verdict.config["n"]) == ("chosen", 1)
    np.testing.assert_array_equal(cd.conv(X, W, BIAS, activation="relu"), expected())


def test_one_that_the_plan_takes_for_itself(sabotage):
    run = "import pyopencl as cl; raise cl.MemoryError('clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE')"
    sabotage(wants(0, run=run).replace("class Plan:", "class Plan:\n    recordable = False"))
    check_one_warning("bad.solver is set aside")


def test_where_nobody_is_left_the_least_is_named(sabotage):
    sabotage(wants(1024 * TIB))
    with cd.policy(solver="bad.*"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(cd.MemoryLimit, match=r"bad.solver needs least, 1.02e.03 TiB"):
            cd.conv(X, W)
    sabotage(wants(1024 * TIB, stated=str(3 * TIB)))
    with cd.policy(solver="bad.*"), pytest.raises(cd.MemoryLimit, match=r"bad.solver needs least, 3 TiB"):
        cd.conv(X, W)


def test_where_the_device_was_full_everybody_may_try_again(sabotage, monkeypatch):
    sabotage(wants(1 << 16))

    def full(queue, size):
        raise cd.MemoryLimit("nothing is left")

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(prepared.runtime, "allocate", full)
        with cd.policy(solver="bad.*"), pytest.raises(cd.MemoryLimit, match=r"bad.solver needs least, .* bytes|KiB"):
            cd.conv(X, W)
    assert not set_aside._quarantined
    with cd.policy(solver="bad.*"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cd.conv(X, W).shape == (2, 8, 4, 4)


def test_a_plan_that_raises_memory_error(sabotage):
    sabotage(PLUGIN.format(method="plan", expression="throw(MemoryError('no room'))"))
    check_one_warning("bad.solver is set aside")
