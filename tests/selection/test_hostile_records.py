"""Records, packs, lock files, rates, verdicts and reports that others wrote: refused or set aside, in words."""

from __future__ import annotations

import json

import pytest
from command_line import run_cli
from hypothesis import given, seed
from hypothesis import strategies as st
from records import DEVICE, KEY, PROBLEM, record, solvers
from strategies import FUZZ, answer, mutated

from convdispatch.api.errors import ConvDispatchWarning, InvalidArgument, InvalidPolicy
from convdispatch.device import jsontext, rates
from convdispatch.selection.choice import lockfile
from convdispatch.selection.records.packs import export_pack, import_pack
from convdispatch.selection.records.perfdb import PerfDB, perfdb
from convdispatch.selection.records.record import Damaged, NewerSchema, Record

BAD = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep_objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "below_pythons_limit": "[" * 500 + "]" * 500,
    "digits": '{"schema": 1, "records": [' + "9" * 5000 + "]}",
    "large": '{"schema": 1, "records": [{"schema": 1, "median_ms": ' + str(10**400) + "}]}",
    "huge_schema": '{"schema": ' + str(10**400) + ', "records": [], "problems": {}}',
    "surrogate": '{"schema": 1, "records": ["\\ud800"], "problems": {"\\udfff": 1}}',
    "bytes": b"\xff\xfe\x00{",
    "nul": b"\0" * 100,
    "empty": "",
}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pack(path, *records):
    return put(path, json.dumps({"schema": 1, "records": list(records)}))


# --- files that are no JSON of ours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_in_the_database_it_is_set_aside(tmp_path, bad):
    folder = PerfDB([tmp_path])
    folder.record(record("good"))
    put(tmp_path / KEY / "bad.json", bad)
    with pytest.warns(ConvDispatchWarning, match=r"bad\.json"):
        assert solvers(PerfDB([tmp_path]).lookup(PROBLEM, DEVICE)) == ["good"]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_it_is_not_imported(tmp_path, bad):
    with pytest.raises(InvalidArgument, match=r"cannot import .*bad\.json"):
        import_pack(PerfDB([tmp_path / "db"]), put(tmp_path / "bad.json", bad))
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_it_is_no_lock_file(tmp_path, bad):
    with pytest.raises(InvalidPolicy, match=r"bad\.lock"):
        lockfile.read(put(tmp_path / "bad.lock", bad))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_it_is_no_calibration(tmp_path, monkeypatch, bad):
    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path))
    put(rates.place(DEVICE), bad)
    rates.rates.cache_clear()
    with pytest.warns(ConvDispatchWarning, match="is no calibration"):
        assert rates.rates(DEVICE) == rates.estimate(DEVICE)
    rates.rates.cache_clear()


def test_rates_beyond_a_float_are_no_calibration(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path))
    for flops in (10**18, 10**39, 10**400, -1, "NaN", True and "1e999"):
        put(rates.place(DEVICE), f'{{"flops": {flops}, "bandwidth": 1e9, "launch": 1e-6}}')
        rates.rates.cache_clear()
        if flops == 10**18:
            assert rates.rates(DEVICE).flops == 1e18
            continue
        with pytest.warns(ConvDispatchWarning, match="is no calibration"):
            rates.rates(DEVICE)
    rates.rates.cache_clear()


# --- records that are JSON, and not what find writes -----------------------------------------------------------------

FIELDS = {
    "above": {"device": "../../x"},
    "absolute": {"device": "/tmp/x"},
    "dot": {"device": "."},
    "hidden": {"device": ".x"},
    "nul": {"device": "x\0"},
    "capital": {"device": "X"},
    "line": {"device": "x\n"},
    "long": {"device": "x" * 121},
    "number": {"device": 3},
    "windows": {"device": "c:\\x"},
    "problem": {"problem": "no problem"},
    "problem_number": {"problem": 3},
    "solver": {"solver": "a\nb"},
    "solver_long": {"solver": "a" * 20_000},
    "config": {"config": [1]},
    "count": {"count": True},
    "count_zero": {"count": 0},
    "median": {"median_ms": True},
    "error": {"error": "small"},
    "error_nan": {"error": float("nan")},
    "workspace": {"workspace": -1},
    "workspace_text": {"workspace": "1"},
    "benchmarked": {"benchmarked": "yes"},
    "default": {"default": 1},
    "optimal": {"optimal": None},
    "deterministic": {"deterministic": "true"},
    "look": {"screening_ms": "1"},
    "budget": {"budget_ms": [1]},
    "created": {"created": 2026},
    "conditions": {"conditions": "a\x1b[31m"},
    "version": {"version": None},
    "name": {"device_name": {}},
    "provenance": {"provenance": {"plugin": 3}},
    "provenance_list": {"provenance": [1, 2]},
    "limit": {"provenance": {"workspace_limit": "all"}},
    "times": {"ci_ms": [1.0, 2.0, 3.0]},
    "times_text": {"ci_ms": "12"},
    "times_turned": {"ci_ms": [1.9, 1.1]},
    "config_infinite": {"config": {"a": [float("inf")]}},
    "times_number": {"ci_ms": 3},
}


@pytest.mark.parametrize("changes", FIELDS.values(), ids=FIELDS)
def test_every_field_is_checked(tmp_path, changes):
    db = PerfDB([tmp_path / "inner" / "db"])
    file = pack(tmp_path / "inner" / "pack.json", record("good").to_json(), record("bad").to_json() | changes)
    with pytest.raises(InvalidArgument, match=r"cannot import .*record 2: "):
        import_pack(db, file)
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "pack.json"], "something was written"


def test_a_key_that_names_another_place_reaches_no_folder(tmp_path):
    db = PerfDB([tmp_path / "db"])
    for key in ("../x", "/tmp", "..", ""):
        with pytest.raises(InvalidArgument, match="a device's key"):
            db.lookup(PROBLEM, key)
    done = run_cli("db", "list", "--device", "../../x")
    assert (done.exit_code, "a device's key" in done.output) == (1, True), done.output


# --- places that refuse ----------------------------------------------------------------------------------------------


def test_an_import_that_cannot_be_stored_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_DB", "/proc/no-database")
    perfdb.cache_clear()
    done = run_cli("db", "import", str(pack(tmp_path / "pack.json", record("good").to_json())))
    perfdb.cache_clear()
    assert done.exit_code == 1
    assert "cannot import into /proc/no-database" in done.output
    assert "new records" not in done.output


@pytest.mark.parametrize("place", ["/proc/none/x.json", "{file}/x.json", "{folder}"])
def test_exports_and_locks_to_places_that_refuse(tmp_path, place):
    (tmp_path / "file").write_text("")
    path = place.format(file=tmp_path / "file", folder=tmp_path)
    with pytest.raises(InvalidArgument, match="cannot write"):
        export_pack(PerfDB([tmp_path / "db"]), path)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        lockfile.write(path, {})


# --- fuzz ------------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
GOOD = record("im2col").to_json()


@seed(2026)
@FUZZ
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), VALUES, max_size=3))
def test_a_record_of_any_values_is_sound_or_damaged(changes):
    try:
        made = Record.from_json(GOOD | changes)
    except (Damaged, NewerSchema):
        return
    assert Record.from_json(json.loads(made.text())) == made


PACK = json.dumps({"schema": 1, "records": [GOOD]}).encode()


@seed(2026)
@FUZZ
@given(mutated(PACK) | st.binary(max_size=60))
def test_json_is_a_value_or_a_value_error(data):
    answer(ValueError, lambda: json.dumps(jsontext.loads(data)).encode())
