"""Tuning on real calls: what answers was verified, trials keep to their share, a winner is recorded and adopted."""

from __future__ import annotations

import time
import types

import numpy as np
import pytest
import small_net

from convdispatch import conv, frozen, policy
from convdispatch.api import ConvDispatchWarning, ConvProblem
from convdispatch.device import runtime
from convdispatch.device.commands.host_memory import HostMemory
from convdispatch.device.commands.queues import commands_of
from convdispatch.measurement import online, reference
from convdispatch.selection import dispatch
from convdispatch.selection.records.perfdb import perfdb

X, W = small_net.normal(2, 16, 12, 12), small_net.normal(16, 16, 3, 3, seed=1)
PROBLEM = ConvProblem.parse("mb2ic16ih12oc16kh3ph1")


@pytest.fixture(autouse=True)
def anew(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "records"))
    perfdb.cache_clear()
    dispatch.forget()
    yield
    perfdb.cache_clear()
    dispatch.forget()


@pytest.fixture
def tuner(queue):
    """The tuner of the problem's calls."""
    with policy(tune="online", share=1.0):
        conv(X, W, padding=1, queue=queue)
        prepared = dispatch.prepare(PROBLEM, queue.context)
    assert prepared.after is not None
    return prepared.after.__self__


def call_until(queue, done, share=1.0, seconds=90.0):
    """Call until ``done()``; every answer is right."""
    expected, until = reference.compute(PROBLEM, x=X, w=W), time.monotonic() + seconds
    with policy(tune="online", share=share):
        while not done() and time.monotonic() < until:
            found = conv(X, W, padding=1, queue=queue)
            assert reference.relative_error(found, expected) <= 1e-5
            time.sleep(0.002)
    assert done()


def records(queue):
    return perfdb().lookup(PROBLEM, runtime.device_info(queue.device))


def test_candidates_are_tried_recorded_and_answers_stay_right(queue, tuner):
    call_until(queue, lambda: tuner.done)
    assert tuner.verified
    assert {record.solver for record in records(queue)}, "what was right is kept"
    assert all(record.median_ms > 0 and record.conditions == "tuned on calls" for record in records(queue))
    assert all(record.benchmarked for record in records(queue)), "each in turns with what answered"


def test_what_answers_is_recorded_beside_the_candidate(queue, tuner):
    first = tuner.best.solver.name, dict(tuner.best.config)
    call_until(queue, lambda: records(queue))
    assert first in [(record.solver, dict(record.config)) for record in records(queue)]
    assert len(records(queue)) >= 2


def test_a_faster_candidate_is_adopted_without_planning(queue, tuner, monkeypatch):
    real, slow = online._run, tuner.best

    def run(plan, *given):
        real(plan, *given)
        if plan is slow:
            time.sleep(0.02)

    monkeypatch.setattr(online, "_run", run)
    call_until(queue, lambda: tuner.best is not slow)
    monkeypatch.setattr(dispatch, "_first_that_plans", lambda *given: pytest.fail("a call waits for a plan"))
    with policy(tune="online"):
        assert dispatch.prepare(PROBLEM, queue.context) is tuner.best
        conv(X, W, padding=1, queue=queue)


def test_a_wrong_candidate_never_answers(queue, tuner, monkeypatch):
    """Every candidate writes other numbers, and claims to be fast."""
    best, real = tuner.best, online._run

    def run(plan, commands, operands, constant):
        real(plan, commands, operands, constant)
        if plan is best:
            time.sleep(0.01)
        elif isinstance(operands["y"], HostMemory):
            operands["y"].bytes(0, 64)[:] = 0
        else:
            commands_of(commands).fill(operands["y"], np.float32(0), 0, 64).wait()

    monkeypatch.setattr(online, "_run", run)
    call_until(queue, lambda: tuner.done)
    assert tuner.best is best
    assert not records(queue)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_candidate_is_compared_with_what_the_verified_plan_writes(queue, tuner, factor):
    commands = runtime.queue(queue.device)
    right = reference.compute(PROBLEM, x=X, w=W).astype(np.float32)
    results = {name: runtime.allocate(commands, right.nbytes) for name in ("candidate", "best")}
    for name, values in (("candidate", right * np.float32(factor)), ("best", right)):
        commands_of(commands).write(results[name], np.ascontiguousarray(values))
    assert tuner._same(commands, results) == (factor == 1.0)


def test_a_first_plan_that_is_wrong_is_set_aside(queue, tuner, monkeypatch):
    monkeypatch.setattr(online, "sampled_fault", lambda problem, got, **given: "relative error 1")
    name, tuner.verified = tuner.best.solver.name, False

    def calls():
        until = time.monotonic() + 60
        while not tuner.done and time.monotonic() < until:
            conv(X, W, padding=1, queue=queue)
            time.sleep(0.01)

    with policy(tune="online", share=1.0), pytest.warns(ConvDispatchWarning, match="wrong on a call's data"):
        calls()
    assert dispatch.prepare(PROBLEM, queue.context).solver.name != name


def test_trials_keep_to_their_share(queue, tuner, monkeypatch):
    """By a clock on which a call takes a millisecond and a trial twenty."""
    clock = [tuner._last]
    tuner.calls_s = tuner.trials_s = 0.0

    def spend(*given):
        clock[0] += 0.02

    monkeypatch.setattr(online, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(tuner, "_spend", spend)
    object.__setattr__(tuner.policy, "share", 0.1)
    with policy(tune="online", share=0.1):
        for _ in range(1000):
            clock[0] += 0.001
            conv(X, W, padding=1, queue=queue)
    assert tuner.calls_s == pytest.approx(1.0)
    assert 0.1 <= tuner.trials_s + 1e-9 <= 0.1 * tuner.calls_s + 0.02 + 1e-6


def test_without_the_policy_and_frozen_nothing_is_tried(queue, tuner, monkeypatch):
    monkeypatch.setattr(tuner, "after", lambda *given: pytest.fail("tried"))
    dispatch.prepare(PROBLEM, queue.context).after = tuner.after
    conv(X, W, padding=1, queue=queue)
    out = np.empty((2, 16, 12, 12), np.float32)
    with policy(tune="online"), frozen():
        conv(X, W, padding=1, out=out, queue=queue)
