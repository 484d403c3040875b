"""The performance database: precedence, many processes, kills, damage, and folders nobody may write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
from paths import SUPPORT
from records import DEVICE, KEY, PROBLEM, record, solvers

from convdispatch.api.errors import ConvDispatchWarning, Frozen
from convdispatch.api.policy import frozen
from convdispatch.selection.records.perfdb import PerfDB, default_folders, user_folder
from convdispatch.selection.records.record import file_text

# --- asking -----------------------------------------------------------------------------------------------------------


def test_round_trip_through_the_files(db, folders):
    made = [record("a", 3.0), record("b", 1.0, config={"tile": 8}), record("b", 2.0, config={"tile": 4})]
    for each in made:
        assert db.record(each).exists()
    for reader in (db, PerfDB(folders)):
        assert reader.lookup(PROBLEM, DEVICE) == [made[1], made[2], made[0]]
        assert reader.all(DEVICE) == [made[1], made[2], made[0]]
    assert PerfDB(folders).devices() == [KEY]


def test_what_is_not_known(db):
    assert db.lookup(PROBLEM, DEVICE) == []
    assert db.all("another-device") == []


def test_the_users_records_stand_before_faster_shipped_ones(folders):
    for source, each in [
        ("shipped", record("fast", 1.0)),
        ("shipped", record("both", 1.5)),
        ("pack", record("pack", 4.0)),
        ("user", record("both", 9.0)),
    ]:
        PerfDB([folders[source]]).record(each)
    found = PerfDB(folders).lookup(PROBLEM, DEVICE)
    assert [(r.solver, r.median_ms, r.source) for r in found] == [
        ("both", 9.0, "user"),
        ("pack", 4.0, "pack"),
        ("fast", 1.0, "shipped"),
    ]


def test_a_newer_record_of_the_same_choice_replaces(folders):
    PerfDB(folders).record(record(ms=1.0, created="2026-05-05"))
    writer = PerfDB(folders)
    writer.record(record(ms=3.0, created="2026-06-06"))
    writer.record(record(ms=2.0, created="2025-01-01"))  # older, though written later
    for reader in (writer, PerfDB(folders)):
        assert [r.median_ms for r in reader.lookup(PROBLEM, DEVICE)] == [3.0]


def test_of_a_tie_the_deterministic_one_stands_first_then_the_one_with_less_workspace(db):
    db.record(
        record("fast", 1.0, workspace=9, deterministic=False),
        record("steady", 1.01, workspace=9, deterministic=True),
        record("lean", 1.015, workspace=1, deterministic=True),
        record("slow", 2.0),
    )
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["lean", "fast", "steady", "slow"]


def test_a_lucky_look_does_not_stand_before_the_winner_of_a_race(db):
    lucky = replace(record("lucky", 0.9), count=3, ci_ms=(0.8, 5.0))
    db.record(lucky, record("benchmarked", 1.0))
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["benchmarked", "lucky"]
    db.record(replace(lucky, solver="surely", ci_ms=(0.8, 0.89)))
    db.record(replace(record("unbenchmarked", 0.5), benchmarked=False))
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["benchmarked", "unbenchmarked", "lucky", "surely"]
    db.record(replace(record("again", 0.95), benchmarked=True, screening_ms=2.0))
    assert solvers(PerfDB(db.folders).lookup(PROBLEM, DEVICE))[:2] == ["again", "benchmarked"]
    assert PerfDB(db.folders).lookup(PROBLEM, DEVICE)[0].screening_ms == 2.0


def test_files_are_read_once(db, folders, monkeypatch):
    db.lookup(PROBLEM, DEVICE)
    PerfDB(folders).record(record())
    monkeypatch.setattr(PerfDB, "_read", lambda *_: pytest.fail("a warm lookup read a file"))
    assert db.lookup(PROBLEM, DEVICE) == []
    monkeypatch.undo()
    db.refresh(DEVICE)
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["im2col.gemm"]


def test_frozen_forbids_files_but_not_what_is_known(db):
    with frozen(), pytest.raises(Frozen, match="read the performance database"):
        db.lookup(PROBLEM, DEVICE)
    db.record(record())
    with frozen():
        assert len(db.lookup(PROBLEM, DEVICE)) == 1
        with pytest.raises(Frozen, match="write"):
            db.record(record("b"))


def test_records_of_a_scope_are_seen_in_it_only_and_never_stored(db, folders):
    db.record(record("stored", 1.0))
    assert db.record(record("private", 5.0), scope="a policy") is None
    assert solvers(db.lookup(PROBLEM, DEVICE, scope="a policy")) == ["private", "stored"]
    assert solvers(db.lookup(PROBLEM, DEVICE, scope="another")) == ["stored"]
    assert solvers(db.lookup(PROBLEM, DEVICE)) == solvers(PerfDB(folders).lookup(PROBLEM, DEVICE)) == ["stored"]


def test_a_search_is_one_file(db, folders):
    path = db.record(record("a", 2.0), record("b", 1.0), record("c", 3.0, PROBLEM.replace(mb=2)))
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert solvers(PerfDB(folders).all(DEVICE)) == ["b", "a", "c"]


def test_the_generation_grows_with_what_is_known(db):
    before = db.generation
    db.record(record())
    assert db.generation > before


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_truncated_record_is_passed_over_and_said_once(folders):
    writer = PerfDB(folders)
    writer.record(record("good"))
    path = writer.record(record("bad"))
    path.write_text(path.read_text()[:-20])
    reader = PerfDB(folders)
    with pytest.warns(ConvDispatchWarning, match="truncated or altered") as said:
        assert solvers(reader.lookup(PROBLEM, DEVICE)) == ["good"]
    assert len(said) == 1
    assert path.exists()
    reader.refresh()
    assert solvers(reader.lookup(PROBLEM, DEVICE)) == ["good"]  # filterwarnings=error: nothing is said again


def test_a_newer_schema_is_left_alone(folders):
    text = file_text([record()]).replace('"schema":1', '"schema":999')
    path = folders["user"] / KEY / "newer.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(ConvDispatchWarning, match="schema 999"):
        assert PerfDB(folders).lookup(PROBLEM, DEVICE) == []
    assert path.exists()


def test_a_folder_that_cannot_be_written_keeps_results_in_memory(tmp_path):
    (tmp_path / "file").write_text("in the way of a folder")
    db = PerfDB([tmp_path / "file"])
    with pytest.warns(ConvDispatchWarning, match="cannot be written") as said:
        paths = [db.record(record("a")), db.record(record("b"))]
    assert paths == [None, None]
    assert len(said) == 1
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["a", "b"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    folder = tmp_path / "db"
    PerfDB([folder]).record(record("old"))
    (folder / KEY).chmod(0o555)
    try:
        db = PerfDB([folder])
        with pytest.warns(ConvDispatchWarning, match="cannot be written"):
            db.record(record("new"))
        assert solvers(db.lookup(PROBLEM, DEVICE)) == ["new", "old"]
    finally:
        (folder / KEY).chmod(0o755)


# --- many processes ---------------------------------------------------------------------------------------------------

WRITER = """
import sys
from records import record
from convdispatch.selection.records.perfdb import PerfDB
db, who = PerfDB([sys.argv[1]]), sys.argv[2]
for i in range(int(sys.argv[3])):
    path = db.record(record(f"{who}.{i}", 1.0 + i))
    print(path.name, f"{who}.{i}", flush=True)
"""


def writer(folder, who, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), who, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=SUPPORT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@pytest.mark.parametrize("after", [1, 7, 40])
def test_two_processes_record_at_once_and_one_is_killed(tmp_path, after):
    folder = tmp_path / "db"
    killed, lives = writer(folder, "killed", 100_000), writer(folder, "lives", 100)
    said = [killed.stdout.readline().split()[1] for _ in range(after)]
    killed.send_signal(signal.SIGKILL)
    said += killed.stdout.read().split()[1::2]
    said += lives.communicate()[0].split()[1::2]
    assert (killed.wait(), lives.returncode) == (-signal.SIGKILL, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged record would be said
        found = solvers(PerfDB([folder]).lookup(PROBLEM, DEVICE))
    assert len(said) >= 100 + after
    assert set(said) <= set(found)  # what record() returned for is there
    assert len(found) <= len(said) + 1  # and at most the one it had not yet returned for besides


def test_a_half_written_file_is_no_record(folders):
    path = PerfDB(folders).record(record())
    (path.parent / f".{path.name}.1.aa.part").write_text("half")
    assert len(PerfDB(folders).lookup(PROBLEM, DEVICE)) == 1


# --- places -----------------------------------------------------------------------------------------------------------


def test_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path))
    assert user_folder() == tmp_path
    sources = list(default_folders())
    assert (sources[0], sources[-1]) == ("user", "shipped")
    monkeypatch.delenv("CONVDISPATCH_DB")
    assert user_folder().name == "perfdb"
