"""What a search holds on the device: counted as it is allocated, within the limit, and said at the end."""

from __future__ import annotations

import pyopencl as cl
import pytest

from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement.find import find
from convdispatch.measurement.search.trial import Harness
from convdispatch.selection import dispatch
from convdispatch.selection.choice import ranking

PROBLEM = ConvProblem.parse("mb2ic16ih28oc16kh3ph1")


@pytest.fixture
def held(monkeypatch):
    """Most bytes that were alive at once of all that the search allocated."""
    now = {"held": 0, "peak": 0}

    class Counted(cl.Buffer):
        def __del__(self):
            now["held"] -= self.bytes

    def fresh(queue, size, content=None):
        flags = cl.mem_flags.READ_WRITE | (0 if content is None else cl.mem_flags.COPY_HOST_PTR)
        memory = Counted(queue.context, flags, 0 if content is not None else max(size, 1), hostbuf=content)
        memory.bytes = max(size, 1)
        now["held"] += memory.bytes
        now["peak"] = max(now["peak"], now["held"])
        return memory

    monkeypatch.setattr(runtime, "fresh", fresh)
    return now


@pytest.mark.parametrize("constant", [False, True])
def test_the_peak_is_what_was_held(device, held, constant):
    results = find(PROBLEM.replace(constant_weights=constant), device, store=False, budget_ms=6000)
    assert len(results.having("measured", "cut")) > 2
    assert held["peak"] <= results.peak_bytes <= 1.5 * held["peak"]
    assert held["held"] == 0


def test_the_limit_holds_and_the_faster_ones_race(device, held):
    free = find(PROBLEM, device, store=False, budget_ms=6000)
    limit = free.peak_bytes * 2 // 3
    held["peak"] = 0
    results = find(PROBLEM, device, store=False, budget_ms=6000, memory_limit=limit)
    assert held["peak"] <= limit
    assert results.winner


def test_samplers_share_a_workspace(device):
    harness = Harness(PROBLEM, cl.CommandQueue(runtime.context(device)))
    info, before = runtime.device_info(device), harness.memory.held
    plans = [
        dispatch.make(candidate.solver, candidate.config, PROBLEM, runtime.context(device))
        for candidate in ranking.rank(PROBLEM, info)
        if not candidate.solver.name.startswith("onednn")
    ]
    plans = [plan for plan in plans if plan.workspace_size]
    samplers = [harness.sampler(plan, 1.0) for plan in plans]
    assert len(samplers) > 2
    assert harness.memory.held == before + max(plan.workspace_size for plan in plans)
    assert all(sample() > 0 for sample in samplers)
    harness.verify(plans[0])
    assert all(sample() > 0 for sample in samplers[:1]), "a sampler outlives the next verification"


@pytest.mark.parametrize(
    ("text", "limit"), [("mb2ic16ih28oc16kh3ph1+bias+relu", 0), ("bwd_weights_mb2ic16ih28oc16kh3ph1", 1 << 18)]
)
def test_no_candidate_is_timed_above_the_workspace_limit(device, held, text, limit):
    results = find(ConvProblem.parse(text), device, store=False, budget_ms=2000, workspace_limit=limit)
    assert results.winner.workspace <= limit
    assert not [one for one in results if one.median_ms is not None and one.workspace > limit]
    assert held["held"] == 0


def test_whose_workspace_is_stated_above_the_limit_is_not_compiled(device, monkeypatch):
    compiled, make = [], dispatch.make

    def counted(solver, *rest):
        compiled.append(solver.name)
        return make(solver, *rest)

    monkeypatch.setattr(dispatch, "make", counted)
    results = find(PROBLEM, device, store=False, budget_ms=1000, workspace_limit=0)
    above = {one.solver for one in results if "bytes of workspace, the limit is 0" in one.reason}
    assert "im2col" in above
    assert "im2col" not in compiled


def test_an_unproven_plugins_child_keeps_to_the_limit(faults, device):
    faults("good", "many")
    limited = find(PROBLEM, device, store=False, isolate=True, budget_ms=1000, workspace_limit=0)
    assert {one.status for one in limited} == {"refused"}
    assert all("bytes of workspace, the limit is 0" in one.reason for one in limited), [one.reason for one in limited]
