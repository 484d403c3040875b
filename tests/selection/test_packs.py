"""Packs of records: export, import, pruning, and those that a package brings."""

from __future__ import annotations

import json

import pytest
from records import DEVICE, KEY, PROBLEM, record, solvers

from convdispatch.api.errors import ConvDispatchWarning, InvalidArgument
from convdispatch.selection.records.packs import export_pack, import_pack
from convdispatch.selection.records.perfdb import PerfDB, record_packs
from convdispatch.selection.records.record import Provenance


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
