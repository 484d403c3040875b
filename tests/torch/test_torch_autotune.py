"""``cudnn.benchmark``: measuring aside gives way to calls, takes what is clearly faster, and keeps out of captures."""

import queue
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from convdispatch.api import ConvProblem
from convdispatch.api.policy import Policy
from convdispatch.api.results import Result, Results
from convdispatch.calls.framework import autotune
from convdispatch.device import runtime
from convdispatch.device.child import Silent
from convdispatch.measurement import aside
from convdispatch.selection import dispatch
from convdispatch.selection.choice import ranking
from convdispatch.selection.records.perfdb import perfdb
from convdispatch.selection.records.record import Record, choice_text, device_key
from convdispatch.torch import captures, counting

PROBLEM = ConvProblem.parse("mb1ic8ih12oc16kh3ph1")
FOUND = {"records": [], "unsound": {}}


class StandIn:
    """A child that measures no device: it answers what the test says, when the test says so."""

    made: ClassVar[list] = []

    def __init__(self, module, setup, background):
        assert background
        self.said, self.answers, self.closed = [], queue.Queue(), False
        self.halted = self.may_halt = False
        self.answers.put({"ready": True, "may_halt": True})
        StandIn.made.append(self)

    def say(self, question):
        self.said.append(question)

    def hear(self, timeout):
        try:
            return self.answers.get(timeout=timeout)
        except queue.Empty:
            raise Silent("nothing yet") from None

    def how_it_ended(self):
        return "it ended"

    def halt(self):
        self.halted = True

    def kill(self):
        self.closed = True

    close = kill


@pytest.fixture
def aside_of(queue, monkeypatch, tmp_path):
    """What calls would ask for: ``(prepared, call, records)``."""
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    perfdb.cache_clear()
    dispatch.forget()
    StandIn.made = []
    monkeypatch.setattr(autotune, "Child", StandIn)
    monkeypatch.setattr(autotune, "_considered", set())
    monkeypatch.setattr(autotune, "_spent", 0.0)
    monkeypatch.setattr(autotune, "_pause", autotune.QUIET_S)
    monkeypatch.setattr(autotune, "_compiled", [])
    info = runtime.device_info(queue.device)
    prepared = dispatch.prepare(PROBLEM, queue.context)
    wanted = autotune._Request(PROBLEM, queue.device, Policy(), choice_text(prepared.solver.name, prepared.config))
    yield SimpleNamespace(prepared=prepared, wanted=wanted, info=info, context=queue.context)
    perfdb.cache_clear()
    dispatch.forget()


def record(info, solver, config, ms, **more):
    times = (ms, ms, ms)
    return Record(str(PROBLEM), device_key(info), solver, dict(config), ms, (ms, ms), *times[:2], 25, **more).to_json()


def ended(thread):
    thread.join(60)
    assert not thread.is_alive()


def asked_of(children, count):
    until = time.monotonic() + 60
    while not (StandIn.made and len(StandIn.made[-1].said) >= count) and time.monotonic() < until:
        time.sleep(0.005)
    return StandIn.made[-1]


def measured(aside_of, answer):
    """One problem through the thread's function; ``answer(child)`` is called when it was asked."""
    done, children = [], {}
    thread = threading.Thread(target=lambda: done.append(autotune._measured(aside_of.wanted, children)))
    thread.start()
    answer(asked_of(children, 1))
    ended(thread)
    if autotune._compiled:
        autotune._adopt()
    return done[0], children


def test_nothing_begins_while_calls_come(aside_of, monkeypatch):
    monkeypatch.setattr(autotune, "_last", time.monotonic() + 0.5)
    begin = time.monotonic()
    done, _ = measured(aside_of, lambda child: child.answers.put(FOUND))
    assert done
    assert time.monotonic() - begin > 0.5
    assert StandIn.made[0].said[0]["incumbent"] == aside_of.wanted.incumbent


def test_a_call_ends_the_child_and_nothing_is_recorded(aside_of, monkeypatch):
    def call(child):
        autotune._last = time.monotonic() + 1e-3

    done, children = measured(aside_of, call)
    (child,) = children.values()
    assert (done, child.halted, child.closed) == (False, True, False), "its end takes memory's time: not beside a call"
    monkeypatch.setattr(autotune, "_spent", 60_000.0)
    assert autotune._measured(aside_of.wanted, children)
    assert (children, child.closed) == ({}, True)
    assert not perfdb().lookup(PROBLEM, aside_of.info)
    assert aside_of.wanted.tries == 1


def test_after_a_call_the_next_search_waits_for_a_longer_pause(aside_of, monkeypatch):
    def call(child):
        autotune._last = time.monotonic() + 1e-3

    assert measured(aside_of, call)[0] is False
    StandIn.made = []
    autotune._last = begin = time.monotonic()
    assert measured(aside_of, lambda child: child.answers.put(FOUND))[0]
    assert time.monotonic() - begin > 2 * autotune.QUIET_S


def test_a_call_that_python_does_not_see_counts(aside_of, monkeypatch):
    counts = {"ours": 0, "left": 0, "compiling": 0}
    monkeypatch.setattr(counting, "counters", lambda: dict(counts))

    def call(child):
        counts["ours"] += 1

    assert measured(aside_of, call)[0] is False


def others(aside_of):
    return [c for c in ranking.rank(PROBLEM, aside_of.info) if c.solver.name != aside_of.prepared.solver.name]


def test_what_is_faster_is_made_here_and_taken_by_the_next_call(aside_of, monkeypatch):
    rival, mine = others(aside_of)[0], aside_of.prepared
    found = [record(aside_of.info, mine.solver.name, mine.config, 2e-4)]
    found.append(record(aside_of.info, rival.solver.name, rival.config, 1e-4))
    done, _ = measured(aside_of, lambda child: child.answers.put({"records": found, "unsound": {}}))
    assert done
    monkeypatch.setattr(dispatch, "_first_that_plans", lambda *given: pytest.fail("a call waits for a plan"))
    assert dispatch.prepare(PROBLEM, aside_of.context).solver.name == rival.solver.name


def test_calls_are_put_together_anew_once_for_all_that_is_found(aside_of, monkeypatch):
    """Each time they are, a training step's layers find their plans again: 30 problems took 30 slow steps."""
    rival, mine = others(aside_of)[0], aside_of.prepared
    found = [record(aside_of.info, mine.solver.name, mine.config, 2e-4)]
    found.append(record(aside_of.info, rival.solver.name, rival.config, 1e-4))
    adopted, wanted, waiting = [], aside_of.wanted, queue.SimpleQueue()
    monkeypatch.setattr(dispatch, "adopt", lambda *given: adopted.append((given[0], waiting.qsize())))
    monkeypatch.setattr(autotune, "_requests", waiting)
    monkeypatch.setattr(autotune, "_busy", 2)
    monkeypatch.setattr(StandIn, "say", lambda child, asked: child.answers.put({"records": found, "unsound": {}}))
    waiting.put(wanted)
    waiting.put(replace(wanted, policy=Policy(deterministic=True)))
    threading.Thread(target=autotune._work, daemon=True).start()
    assert autotune.drain(60)
    assert adopted == [(PROBLEM, 0), (PROBLEM, 0)]


@pytest.mark.parametrize("why", ["the device had other work", "X, which ran until then, was not measured beside them"])
def test_of_a_busy_device_the_choice_stays(aside_of, why):
    rival = others(aside_of)[0]
    found = [record(aside_of.info, rival.solver.name, rival.config, 1e-5, inconclusive=why)]
    measured(aside_of, lambda child: child.answers.put({"records": found, "unsound": {}}))
    assert len(perfdb().lookup(PROBLEM, aside_of.info)) == 1, "what was learned is kept"
    assert ranking.rank(PROBLEM, aside_of.info)[0].solver.name == aside_of.prepared.solver.name
    assert dispatch.prepare(PROBLEM, aside_of.context) is aside_of.prepared


def test_no_plan_is_made_inside_a_capture(aside_of, monkeypatch):
    class Graph:
        def capture_begin(self):
            pass

        def capture_end(self):
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    captures.watch_captures()
    begun = Graph.capture_begin
    captures.watch_captures()
    assert Graph.capture_begin is begun
    made, make = [], dispatch.make
    monkeypatch.setattr(dispatch, "make", lambda *given: made.append(time.monotonic()) or make(*given))
    rival, mine = others(aside_of)[0], aside_of.prepared
    found = [record(aside_of.info, mine.solver.name, mine.config, 2e-4)]
    found.append(record(aside_of.info, rival.solver.name, rival.config, 1e-4))
    graph, ends = Graph(), []

    def answer(child):
        child.answers.put({"records": found, "unsound": {}})
        graph.capture_begin()
        time.sleep(0.3)
        ends.append(time.monotonic())
        graph.capture_end()

    done, _ = measured(aside_of, answer)
    if done:  # else the capture came first, and the child was ended
        assert made
        assert made[0] < ends[0] - 0.2 or made[0] >= ends[0], "before the capture began, or after it"
    assert autotune._capturing == 0


def result(solver, ms, p20=None, p80=None):
    return Result(solver, {}, status="measured", median_ms=ms, p20=p20 or ms, p80=p80 or ms, ci=(ms, ms), count=25)


def test_a_busy_device_is_seen_by_the_incumbent_s_times():
    steady, busy = Results([result("a", 1.0)]), Results([result("a", 1.0, 0.7, 1.4)])
    assert aside.disturbance(steady, "a {}") == ""
    assert aside.disturbance(busy, "a {}") == "the device had other work: a took 0.7 to 1.4 ms"
    assert aside.disturbance(busy, "b {}") == ""


def test_what_is_hardly_faster_is_not_recorded():
    results = Results([result("b", 0.97), result("c", 0.9), result("a", 1.0), result("d", 1.1)])
    assert aside.worth(results, "a {}") == [False, True, True, True]
    assert aside.worth(results, "e {}") == [True] * 4


def test_a_problem_is_given_up_after_some_tries(aside_of, monkeypatch):
    monkeypatch.setattr(autotune, "_busy", 0)
    monkeypatch.setattr(autotune, "_thread", None)
    monkeypatch.setattr(autotune, "_requests", queue.SimpleQueue())
    monkeypatch.setattr(autotune, "_answer", lambda child, seconds: None)
    autotune.consider(PROBLEM, aside_of.wanted.device, Policy(), aside_of.prepared)
    assert autotune.drain(60)
    assert len(StandIn.made) == autotune.TRIES
    assert replace(aside_of.wanted).tries == 0
