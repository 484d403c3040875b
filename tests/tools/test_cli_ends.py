"""How commands end: exit statuses, and mistakes that are told before anything is measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from command_line import PATIENT, run_cli

PROBLEM = "mb1ic4ih6oc4kh3"


@pytest.mark.parametrize(
    "words",
    [
        ("bench", PROBLEM, "--json"),
        ("verify", "im2col", "--json"),
        ("find", PROBLEM, "--lock"),
        ("pack", PROBLEM, "-o"),
        ("db", "export"),
    ],
    ids=lambda words: "-".join(word.strip("-") for word in words if word != PROBLEM),
)
def test_places_are_tried_before_anything_is_measured(words, tmp_path, monkeypatch):
    """A bench of minutes ended in "Not a directory", and was lost."""
    from convdispatch.device import runtime

    monkeypatch.setattr(runtime, "find_device", lambda *_: pytest.fail("something was measured"))
    (tmp_path / "file").write_text("")
    for place, said in (("missing/x.json", "there is no folder"), ("file/x", "there is no folder"), (".", "cannot be")):
        done = run_cli(*words, tmp_path / place, status=2)
        assert said in " ".join(done.output.split()), done.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_mistakes_are_usage_errors_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_DB", "/proc/records")
    from convdispatch.selection.records import perfdb

    perfdb.perfdb.cache_clear()
    cases = [
        (("bench",), "name a net, a problem, a model or a file"),
        (("bench", PROBLEM, "--solver", "winogard.*"), "no solver's name matches 'winogard.*'"),
        (("find", PROBLEM), "records cannot be written to /proc/records"),
        (("explane", PROBLEM), "No such command 'explane'. Did you mean explain?"),
        (("db", "lst"), "Did you mean list?"),
    ]
    try:
        for words, said in cases:
            done = run_cli(*words)
            assert done.exit_code == 2, (words, done.output)
            assert said in " ".join(done.output.split()), done.output
    finally:
        monkeypatch.undo()
        perfdb.perfdb.cache_clear()


def test_what_asks_for_json_is_told_in_json_when_it_fails():
    for words in (("explain", "mb1", "--json"), ("find", "nonet", "--json")):
        done = run_cli(*words, status=1)
        assert json.loads(done.stdout)["error"], done.output


@pytest.mark.parametrize("words", [("bench", "cpu10"), ("verify", "im2col", "--jobs", "0"), ("find", "resnet50")])
def test_an_interrupt_is_130_whatever_is_shown_then(words, tmp_path):
    env = os.environ | {"CONVDISPATCH_DB": str(tmp_path / "db")}
    job = subprocess.Popen([*PATIENT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    said: list[str] = []
    started = threading.Event()

    def read():
        for line in job.stderr:
            said.append(line)
            started.set()

    threading.Thread(target=read, daemon=True).start()
    started.wait(120)  # the first line of progress
    time.sleep(0.2)
    job.send_signal(signal.SIGINT)
    out = job.stdout.read()
    assert job.wait(120) == 130, (out, said)
    assert "interrupted" in out + "".join(said)


def test_a_time_limit_is_no_interrupt(tmp_path):
    words = ["bench", "cpu10", "--within", "0.01", "--json", str(tmp_path / "r.json")]
    done = subprocess.run([sys.executable, "-m", "convdispatch", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "time limit reached: 10 problems are not measured" in done.stdout
    assert "interrupted" not in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["time_limit"]


def test_a_trace_begins_with_a_header(tmp_path, monkeypatch):
    from convdispatch.measurement.grammar import read_file
    from convdispatch.selection.layers import trace

    monkeypatch.setenv("CONVDISPATCH_TRACE", str(tmp_path / "t.csv"))
    for solver in ("one", "two"):
        trace.write(f"{trace.PREFIX}fwd_f32_mb1ic4ih6iw6oc4kh3kw3,{solver},CPU,0,1.0")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert [len(line.split(",")) for line in lines] == [8, 7, 7]
    assert lines[0].startswith("convdispatch,version,problem,solver")
    assert len(list(read_file(tmp_path / "t.csv"))) == 2
