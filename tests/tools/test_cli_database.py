"""The commands over records: two searches at once of which one is killed; db list, export, import."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from command_line import run_cli
from paths import SUPPORT

from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins import loader
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import Record, device_key

PROBLEMS = [f"mb1ic4ih{size}oc4kh3ph1" for size in range(6, 11)]


@pytest.fixture
def folder(monkeypatch, tmp_path, read_anew):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(SUPPORT / "faulty_plugin"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "faulty")
    monkeypatch.setenv("FAULTS", "good,slow")
    read_anew()
    return tmp_path / "db"


def searching(*more):
    command = [sys.executable, "-m", "convdispatch", "find", *PROBLEMS, "--budget", "1000", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ))


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def test_two_searches_at_once_of_which_one_is_killed(device, folder):
    killed, lives = searching("--again"), searching("--again")
    limit = time.monotonic() + 120
    while len(files(folder)) < 3 and time.monotonic() < limit:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = {path.name: path.read_bytes() for path in files(folder)}
    said, _ = lives.communicate(timeout=300)
    assert (killed.returncode, lives.returncode) == (-signal.SIGKILL, 0), said
    now = {path.name: path.read_bytes() for path in files(folder)}
    assert before.items() <= now.items(), "what the killed one recorded stays as it was"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged record would be said
        known = perfdb.PerfDB([folder])
        info = runtime.device_info(device)
        missing = [text for text in PROBLEMS if not known.lookup(ConvProblem.parse(text), info)]
    # On a busy machine a search may find no time to trust; it says so, and nothing is lost by that.
    assert said.count("nothing could be measured") >= len(missing) < 3, said
    again, _ = searching().communicate(timeout=120)
    assert f"{len(PROBLEMS) - len(missing)} problems are measured already" in again


# --- db ---------------------------------------------------------------------------------------------------------------


def put(device, ms, solver="faulty.good", problem=PROBLEMS[0], created="2026-01-01T00:00:00Z"):
    info = runtime.device_info(device)
    made = Record(
        problem=str(ConvProblem.parse(problem)),
        device=device_key(info),
        solver=solver,
        config={},
        median_ms=ms,
        ci_ms=(ms * 0.99, ms * 1.01),
        p20_ms=ms,
        p80_ms=ms,
        count=25,
        created=created,
    )
    perfdb.perfdb().record(made)
    return made


def db(*words):
    return run_cli("db", *(str(word) for word in words))


def test_export_import_and_list(device, folder, tmp_path, monkeypatch):
    put(device, 1.0)
    put(device, 3.0, problem=PROBLEMS[1])
    put(device, 2.0, created="2026-02-01T00:00:00Z")  # measured again
    assert "2 records written" in db("export", tmp_path / "new.json").output
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "elsewhere"))
    perfdb.perfdb.cache_clear()
    assert "2 new records" in db("import", tmp_path / "new.json").output
    assert "0 new records" in db("import", tmp_path / "new.json").output
    listed = json.loads(db("list", "--json").output)
    assert {(row["problem"], row["median_ms"]) for row in listed if row["solver"] == "faulty.good"} == {
        (str(ConvProblem.parse(PROBLEMS[0])), 2.0),
        (str(ConvProblem.parse(PROBLEMS[1])), 3.0),
    }
    table = db("list")
    assert table.exit_code == 0
    assert "2 records in" in table.output


def test_tables_name_the_configuration_and_nothing_is_cut_where_output_is_piped(device, folder, monkeypatch):
    monkeypatch.setenv("FAULTS", "good,many")
    monkeypatch.setenv("COLUMNS", "80")
    loader.reload()
    try:
        problem = "mb1ic4ih9oc4kh3ph1"
        found = run_cli("find", problem, "-v", "--budget", "3000", status=0)
        listed = db("list").output
    finally:
        monkeypatch.undo()
        loader.reload()
    full = str(ConvProblem.parse(problem))
    for extra in (0, 4096, 8192):
        (line,) = [line for line in found.output.splitlines() if re.search(rf"extra={extra}( |$)", line)]
        assert "faulty.many" in line
        (line,) = [line for line in listed.splitlines() if f"extra={extra} " in line]
        assert "faulty.many" in line
        assert full in line
        assert "user" in line
    assert "screening" in found.output
    assert "screening" in listed


def test_a_file_that_is_no_pack_is_one_line(device, folder, tmp_path):
    (tmp_path / "no.json").write_text("[1]")
    done = db("import", tmp_path / "no.json")
    assert done.exit_code == 1
    assert done.output.startswith("Error:")
    assert "Traceback" not in done.output
