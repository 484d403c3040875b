"""Record on one machine, replay on another: the same words on both sides, and a comparison that says what it knows."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from command_line import run_cli

import convdispatch as cd
from convdispatch.api.errors import InvalidArgument
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader
from convdispatch.tools.benchmark import quiet
from convdispatch.tools.replay import TraceLine, compare, read_trace

FIRST, SECOND = "fwd_f32_mb1ic3ih8iw8oc4kh3kw3ph1pw1", "bwd_data_f32_mb1ic3ih8iw8oc4kh3kw3ph1pw1"
THERE = f"""warming up
convdispatch,1,{FIRST},im2col.gemm,Some CPU, 2 GHz,1024,10.0,100.0
convdispatch,1,{FIRST},im2col.gemm,Some CPU, 2 GHz,1024,30.0,300.0
convdispatch,1,{FIRST},im2col.gemm,Some CPU, 2 GHz,1024,20.0,200.0
convdispatch,1,{SECOND}+nonsense?,oh
convdispatch,1,{SECOND},implicitgemm.direct,Some CPU, 2 GHz,0,5.0,50.0
"""


@pytest.fixture
def there(tmp_path):
    path = tmp_path / "there.csv"
    path.write_text(THERE)
    return path


@pytest.fixture
def calm(monkeypatch):
    monkeypatch.setattr(quiet.OtherProcesses, "load", lambda self: 0.0)


def replay(*words):
    return run_cli("replay", *map(str, words))


def test_lines_are_read_and_others_passed_over(there):
    calls = read_trace(there)
    assert calls[0] == TraceLine(FIRST, "im2col.gemm", "Some CPU, 2 GHz", 1024, 10.0, 100.0)
    assert [call.problem for call in calls] == [FIRST, FIRST, FIRST, SECOND]
    text = "convdispatch,1,fwd_f32_mb1ic8ih9iw9oc8kh3kw3+clip(-1,2.5),a.b,CPU,0,12.5\n"
    there.write_text(text)
    (call,) = read_trace(there)
    assert (call.problem, call.done_us) == ("fwd_f32_mb1ic8ih9iw9oc8kh3kw3+clip(-1,2.5)", None)


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "x").write_text("hello\n")
    with pytest.raises(InvalidArgument, match="holds no line of a trace: CONVDISPATCH_LAYERS=trace writes"):
        read_trace(tmp_path / "x")
    with pytest.raises(InvalidArgument, match="cannot read"):
        read_trace(tmp_path / "missing")


def test_both_sides_are_medians_weighed_by_the_calls(there):
    calls = read_trace(there)
    here = [
        TraceLine(FIRST, "winograd.f4x3", "Card", 8, 4.0, 40.0),
        TraceLine(SECOND, "implicitgemm.direct", "Card", 0, 5.0, 100.0),
    ]
    compared = compare(calls, here)
    assert compared.devices == ("Some CPU, 2 GHz", "Card")
    first, second = compared.problems[FIRST]
    assert (first.calls, first.solver, first.host_us, first.done_us) == (3, "im2col.gemm", 20.0, 200.0)
    assert (second.calls, second.solver, second.workspace) == (1, "winograd.f4x3", 8)
    assert compared.ratio(FIRST) == 5.0
    assert compared.ratio(SECOND) == 0.5
    assert compared.whole == (3 * 200 + 50, 3 * 40 + 100)


def test_a_trace_that_did_not_wait_says_nothing_of_times(there):
    here = [TraceLine(FIRST, "a.b", "Card", 8, 4.0, None)]
    compared = compare(read_trace(there), here)
    assert compared.ratio(FIRST) is None
    assert compared.whole is None
    assert compared.problems[SECOND][1] is None


def test_the_calls_are_made_here_in_the_same_words(device, there, calm, tmp_path):
    here = tmp_path / "here.csv"
    done = replay(there, "--to", here)
    assert done.exit_code == 0, done.output
    calls = read_trace(here)
    assert [call.problem for call in calls] == [FIRST, FIRST, FIRST, SECOND]
    assert all(call.done_us >= call.host_us > 0 for call in calls)
    assert all(call.solver in done.output for call in calls)
    assert "there: Some CPU, 2 GHz" in done.output
    assert f"here: {calls[0].device}" in done.output
    assert "all calls that both made: 0.65 ms there" in done.output
    assert "there over here: withheld" not in done.output
    assert "CONVDISPATCH_TRACE_WAIT" not in os.environ
    assert loader.plugins().layers == [], "the layer is off again"
    again = replay(there, "--with", here, "--json")
    found = json.loads(again.output)
    assert found["problems"][FIRST][1]["calls"] == 3
    assert replay(here, "--to", tmp_path / "third.csv", "--most", 1).exit_code == 0
    assert len(read_trace(tmp_path / "third.csv")) == 2


def test_what_was_recorded_is_replayed(device, calm, tmp_path, monkeypatch):
    trace = tmp_path / "trace.csv"
    for name, value in (("LAYERS", "trace"), ("TRACE", str(trace)), ("TRACE_WAIT", "1")):
        monkeypatch.setenv(f"CONVDISPATCH_{name}", value)
    loader.reload()
    dispatch.forget()
    try:
        x, w = np.ones((1, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)
        cd.conv(x, w, np.ones(6, np.float32), padding=1, activation="relu")
        cd.conv(x, cd.constant(w))
        cd.conv_backward_weights(x, np.ones((1, 6, 6, 6), np.float32), w.shape)
    finally:
        monkeypatch.undo()
        loader.reload()
        dispatch.forget()
    recorded = read_trace(trace)
    assert all(call.done_us for call in recorded)
    done = replay(trace, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output[done.output.index("{") :])
    assert list(found["problems"]) == [call.problem for call in recorded]
    for there, here in found["problems"].values():
        assert there["solver"] == here["solver"], "the same machine chooses the same"


def test_what_cannot_run_here_is_said(device, there, calm, tmp_path):
    text = "convdispatch,1,fwd_f32_mb100000ic4096ih512iw512oc4096kh1kw1,x.y,Big,0,1.0,2.0\n"
    there.write_text(THERE + text)
    done = replay(there)
    assert done.exit_code == 1
    assert "fwd_f32_mb100000ic4096ih512iw512oc4096kh1kw1 did not run here: " in done.output
    assert "all calls that both made" in done.output


def test_a_busy_machine_withholds_the_ratio(device, there, monkeypatch):
    monkeypatch.setattr(quiet.OtherProcesses, "load", lambda self: 64.0)
    done = replay(there, "--most", 1)
    assert "Other work was running: a load of 64 by others" in done.output
    assert "there over here: withheld, the machine is busy" in done.output
