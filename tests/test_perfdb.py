"""The performance database: round trips, precedence, many processes, kills, damage, and folders nobody may write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convdispatch.api.device import DeviceInfo
from convdispatch.api.errors import ConvDispatchWarning, Frozen, InvalidArgument
from convdispatch.api.policy import frozen
from convdispatch.api.problem import ConvProblem
from convdispatch.packs import diff, export_pack, file_name, file_text, import_pack, prune, read_records
from convdispatch.perfdb import PerfDB, default_folders, record_packs, user_folder
from convdispatch.record import Damaged, Provenance, Record, device_key, stale

DEVICE = DeviceInfo("Toy (R) GPU @ 1GHz", "toy", "gpu", "toy_9", driver="1.0", compute_units=4)
KEY = "toy-toy-9-toy-r-gpu-1ghz-4cu"
PROBLEM = ConvProblem(mb=1, ic=3, ih=8, iw=8, oc=4, kh=3, kw=3)


def record(solver="im2col.gemm", ms=2.0, problem=PROBLEM, created="2026-01-01", **more) -> Record:
    values = {"config": {}, "device": KEY} | more
    return Record(
        problem=str(problem),
        solver=solver,
        median_ms=ms,
        ci_ms=(ms * 0.9, ms * 1.1),
        p20_ms=ms * 0.95,
        p80_ms=ms * 1.05,
        count=25,
        created=created,
        **values,
    )


@pytest.fixture
def folders(tmp_path):
    return {"user": tmp_path / "user", "pack": tmp_path / "pack", "shipped": tmp_path / "shipped"}


@pytest.fixture
def db(folders):
    return PerfDB(folders)


def solvers(records):
    return [r.solver for r in records]


# --- one record -------------------------------------------------------------------------------------------------------


def test_the_key_names_the_device_and_not_its_driver():
    assert device_key(DEVICE) == device_key(replace(DEVICE, driver="2.0")) == KEY
    assert device_key(DEVICE) != device_key(replace(DEVICE, compute_units=8))


@given(
    config=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.booleans(), st.text(max_size=5))),
    ms=st.floats(1e-6, 1e6),
    error=st.one_of(st.none(), st.floats(0, 1)),
    deterministic=st.sampled_from([None, True, False]),
    kernel=st.text("0123456789abcdef"),
)
def test_a_record_survives_its_text(config, ms, error, deterministic, kernel):
    made = record(
        config=config, ms=ms, error=error, deterministic=deterministic, provenance=Provenance(kernel_hash=kernel)
    )
    assert read_records(file_name([made]), file_text([made])) == ([made], [])


@given(st.data())
def test_any_change_of_the_text_is_noticed(data):
    made = record()
    text = file_text([made])
    place = data.draw(st.integers(0, len(text) - 1))
    altered = text[:place] + data.draw(st.characters(codec="ascii")) + text[place + 1 :]
    for damaged in (altered, text[:place]):
        if damaged != text:
            with pytest.raises(Damaged):
                read_records(file_name([made]), damaged)


@pytest.mark.parametrize(
    "change",
    [
        {"median_ms": 0},
        {"median_ms": -1},
        {"p20_ms": None},
        {"ci_ms": [1]},
        {"config": 3},
        {"count": 0},
        {"solver": ""},
    ],
)
def test_impossible_content_is_damage(change):
    with pytest.raises(Damaged):
        Record.from_json(record().to_json() | change)


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
    db.record(lucky, record("raced", 1.0))
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["raced", "lucky"]
    db.record(replace(lucky, solver="surely", ci_ms=(0.8, 0.89)))
    assert solvers(db.lookup(PROBLEM, DEVICE)) == ["surely", "raced", "lucky"]


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


# --- provenance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "today", "words"),
    [
        ({}, {"plugin_version": "2"}, None),
        ({"plugin": "p", "plugin_version": "1"}, {"plugin_version": "1"}, None),
        ({"plugin": "p", "plugin_version": "1"}, {"plugin_version": "2"}, "another version of p: 1, now 2"),
        ({"kernel_hash": "aa"}, {"kernel_hash": "bb"}, "another kernel text"),
        ({"driver": "1.0"}, {"driver": "1.1"}, "another driver: 1.0, now 1.1"),
        ({"plugin": "acme"}, {"plugin": "toy"}, "another plugin"),
    ],
)
def test_an_upgrade_makes_a_record_doubtful(db, then, today, words):
    reason = db.stale(record(provenance=Provenance(**then)), Provenance(**today))
    assert (reason is None) if words is None else (words in reason)


def test_a_memory_starved_record_is_retried_when_there_is_more():
    starved = record(optimal=False, provenance=Provenance(workspace_limit=1000))
    assert "limit of 1000 bytes" in stale(starved, Provenance())
    assert "limit of 1000 bytes" in stale(starved, Provenance(workspace_limit=2000))
    assert stale(starved, Provenance(workspace_limit=1000)) is None
    assert stale(replace(starved, optimal=True), Provenance()) is None


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_truncated_record_is_set_aside_and_said_once(folders):
    writer = PerfDB(folders)
    writer.record(record("good"))
    path = writer.record(record("bad"))
    path.write_text(path.read_text()[:-20])
    reader = PerfDB(folders)
    with pytest.warns(ConvDispatchWarning, match="truncated or altered") as said:
        assert solvers(reader.lookup(PROBLEM, DEVICE)) == ["good"]
    assert len(said) == 1
    assert not path.exists()
    assert (path.parent / "damaged" / path.name).exists()
    reader.refresh()
    assert solvers(reader.lookup(PROBLEM, DEVICE)) == ["good"]  # filterwarnings=error: nothing is said again


def test_damage_in_a_folder_of_others_is_passed_over_and_said_once(folders, monkeypatch):
    path = PerfDB([folders["shipped"]]).record(record("bad"))
    path.write_bytes(b"\xff\xfe\x00")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError("read-only")))
    reader = PerfDB(folders)
    with pytest.warns(ConvDispatchWarning, match="passed over"):
        assert reader.lookup(PROBLEM, DEVICE) == []
    reader.refresh()
    assert reader.lookup(PROBLEM, DEVICE) == []
    assert path.exists()


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
from test_perfdb import record
from convdispatch.perfdb import PerfDB
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
        cwd=Path(__file__).parent,
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
    assert not (folder / KEY / "damaged").exists()


def test_a_half_written_file_is_no_record(folders):
    path = PerfDB(folders).record(record())
    (path.parent / f".{path.name}.1.aa.tmp").write_text("half")
    assert len(PerfDB(folders).lookup(PROBLEM, DEVICE)) == 1


# --- packs, differences, pruning --------------------------------------------------------------------------------------


def test_export_and_import(db, tmp_path):
    made = [record(s, ms, provenance=Provenance("p", "1", "h", "d")) for s, ms in (("a", 1.0), ("b", 2.0))]
    for each in made:
        db.record(each)
    assert export_pack(db, tmp_path / "out.json") == 2
    assert len((tmp_path / "out.json").read_text().splitlines()) == 4
    other = PerfDB([tmp_path / "other"])
    assert import_pack(other, tmp_path / "out.json") == 2
    assert import_pack(other, tmp_path / "out.json") == 0
    assert other.lookup(PROBLEM, DEVICE) == made
    assert PerfDB([tmp_path / "other"]).lookup(PROBLEM, DEVICE) == made


def test_a_pack_serves_as_a_shipped_file(db, folders):
    db.record(record("a"))
    export_pack(db, folders["shipped"] / KEY / "nets.json", KEY)
    found = PerfDB([folders["pack"], folders["shipped"]]).lookup(PROBLEM, DEVICE)
    assert [(r.solver, r.source) for r in found] == [("a", "shipped")]


def test_a_bad_record_in_a_pack_costs_only_itself(folders):
    path = folders["shipped"] / KEY / "nets.json"
    path.parent.mkdir(parents=True)
    good, bad = record("good").to_json(), record("bad").to_json() | {"median_ms": -1}
    path.write_text(json.dumps({"schema": 1, "records": [bad, good]}))
    with pytest.warns(ConvDispatchWarning, match="1 records of .* are passed over: record 1: times must be positive"):
        assert solvers(PerfDB(folders).lookup(PROBLEM, DEVICE)) == ["good"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"records": 3}', '{"schema":1,"records":[{}]}', '{"schema":9,"records":[]}']
)
def test_what_cannot_be_imported_is_refused(db, tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"cannot import .*x\.json"):
        import_pack(db, tmp_path / "x.json")


def test_a_damaged_pack_is_set_aside(folders):
    path = folders["user"] / KEY / "pack.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema":1,"records":[')
    with pytest.warns(ConvDispatchWarning, match="not JSON"):
        assert PerfDB(folders).all(DEVICE) == []


def test_diff_names_what_became_slower(tmp_path):
    old, new = PerfDB([tmp_path / "old"]), PerfDB([tmp_path / "new"])
    problems = [PROBLEM.replace(mb=mb) for mb in (1, 2, 3, 4)]
    for problem, before, after in zip(problems, (1.0, 1.0, 4.0, 1.0), (1.01, 8.0, 2.0, None), strict=True):
        old.record(record("a", before, problem))
        if after:
            new.record(record("b", after, problem))
    changes = diff(old, new)
    assert [(c.problem, c.ratio, c.certain) for c in changes] == [
        (str(problems[1]), 8, True),
        (str(problems[2]), 0.5, True),
    ]


def test_prune_deletes_what_nobody_needs(db):
    keep = db.record(record(ms=2.0, created="2026-02-02"))
    old = db.record(record(ms=1.0, created="2026-01-01"))
    half = old.parent / ".x.json.1.aa.tmp"
    half.write_text("half")
    os.utime(half, (0, 0))
    recent = old.parent / ".y.json.1.aa.tmp"
    recent.write_text("being written")
    assert prune(db) == 2
    assert sorted(path.name for path in keep.parent.iterdir()) == sorted([keep.name, recent.name])
    assert [r.median_ms for r in db.lookup(PROBLEM, DEVICE)] == [2.0]


# --- places -----------------------------------------------------------------------------------------------------------


def test_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path))
    assert user_folder() == tmp_path
    sources = list(default_folders())
    assert (sources[0], sources[-1]) == ("user", "shipped")
    monkeypatch.delenv("CONVDISPATCH_DB")
    assert user_folder().name == "perfdb"


def test_a_tuning_pack_is_an_entry_point_whose_code_never_runs(monkeypatch, tmp_path):
    package = tmp_path / "toy_pack"
    (package / "records" / KEY).mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('a pack is data')")
    export_pack(_with(tmp_path / "db", record("packed")), package / "records" / KEY / "all.json")
    info = tmp_path / "toy_pack-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-pack\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[convdispatch.records]\ntoy = toy_pack\nbroken = no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(ConvDispatchWarning, match="tuning pack broken is set aside"):
        packs = record_packs()
    assert packs == {"toy": package / "records"}
    assert solvers(PerfDB({"user": tmp_path / "none", **packs}).lookup(PROBLEM, DEVICE)) == ["packed"]


def _with(folder, *records):
    db = PerfDB([folder])
    for each in records:
        db.record(each)
    return db
