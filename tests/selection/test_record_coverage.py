"""A record decides among what it measured, and no further: against predictions, looks, other sources, by every way."""

from __future__ import annotations

import itertools
import json

import pytest
from command_line import run_cli
from plans import LARGE
from records import record
from test_choices import PROBLEM, put

import convdispatch as cd
from convdispatch.selection import dispatch
from convdispatch.selection.choice import lockfile
from convdispatch.selection.choice.ranking import Choices, rank
from convdispatch.selection.explanation import explain
from convdispatch.selection.records import perfdb
from convdispatch.selection.records.record import Provenance, device_key, file_text, text_name

ALIKE = "version: 1\nrules:\n  - prefer: ['*.*']\n"
SOLVERS = "Made('loud.fast', True, 1e-5), Made('loud.slow', True, 6e-5), Made('loud.mid', True, 3e-5)"
"""Predicted: 0.01, 0.06 and 0.03 ms."""


@pytest.fixture
def known(tmp_path, monkeypatch, read_anew):
    """``known(records, ...)``: what runs then, and the sentence; a record is (solver, ms, more)."""
    turn = itertools.count()

    def choose(*records, loud=SOLVERS, rules=ALIKE, problem=PROBLEM):
        place = tmp_path / str(next(turn))
        place.mkdir()
        monkeypatch.setenv("CONVDISPATCH_DB", str(place / "db"))
        put(monkeypatch, place, rules, loud=loud, silent="Made('silent.s', False, None)")
        perfdb.perfdb.cache_clear()
        for solver, ms, more in records:
            perfdb.perfdb().record(made(solver, ms, **more))
        dispatch.forget()
        assert Choices(problem, LARGE).first == rank(problem, LARGE)[0]
        found = explain(problem, LARGE)
        return found.chosen.partition(".")[2], found.why

    return choose


def made(solver, ms, problem=PROBLEM, **more):
    return record(f"{'silent' if solver == 's' else 'loud'}.{solver}", ms, problem, device=device_key(LARGE), **more)


SCREENED = {"benchmarked": False}
OLD = {"provenance": Provenance("loud", "0.1", "feedfacefeedface", "1"), "version": "1.0"}
SMALL = {"optimal": False, "budget_ms": 50.0, "conditions": "73 candidates did not fit into 50 ms"}


@pytest.mark.parametrize("more", [{}, SCREENED, {"benchmarked": True}, OLD, SMALL, SMALL | SCREENED | OLD])
def test_what_no_record_measured_and_is_predicted_below_it_runs(known, more):
    first, why = known(("slow", 0.0607, more))
    assert first == "fast"
    assert "no record measured it, and it is predicted 0.01 ms, below loud.slow's 0.0607 ms" in why


@pytest.mark.parametrize(
    ("records", "first", "why"),
    [
        ([("fast", 0.02, {})], "fast", "a race of the incumbent, longer than others are predicted, lengthens these"),
        ([("fast", 0.02, SCREENED)], "fast", "a look may be far too long"),
        ([("fast", 0.02, {}), ("slow", 0.015, {})], "slow", "raced and faster"),
        ([("fast", 0.009, {}), ("slow", 0.015, {})], "fast", "nothing is predicted below it"),
        ([("slow", 0.02, {})], "fast", "the record has its own solver faster than predicted, and another below it"),
        ([("slow", 0.02, {}), ("fast", 0.03, {})], "slow", "mid is predicted above"),
        ([("slow", 0.005, SCREENED)], "slow", "a look below every prediction"),
        ([("slow", 0.5, {}), ("mid", 0.43, SCREENED)], "fast", "neither measured it"),
        ([("s", 0.05, {})], "fast", "who predicts nothing beat nobody"),
        ([("s", 0.005, {})], "s", "and here everybody"),
        ([("fast", 0.552, {}), ("slow", 0.4, SCREENED)], "slow", "the slowest sample of its look is below the race"),
        ([("fast", 0.552, {}), ("slow", 0.5, SCREENED)], "fast", "a look may be lucky"),
    ],
)
def test_how_far_a_record_goes(known, records, first, why):
    everyone = [(name, 0.9, {}) for name in ("mid",)] if len(records) == 2 and records[0][0] == "fast" else []
    assert known(*records, *everyone)[0] == first, why


def test_a_rule_keeps_behind_whom_it_puts_behind(known):
    rules = "version: 1\nrules:\n  - prefer: ['loud.slow', 'loud.*']\n"
    assert known(("slow", 0.0607, {}), rules=rules)[0] == "slow", "without a record it would run too"


def test_whom_a_rule_names_and_nobody_compared_stays(known):
    rules = "version: 1\nrules:\n  - prefer: ['silent.s', 'loud.*']\n"
    first, why = known(("slow", 0.0607, SCREENED), rules=rules)
    assert (first, "was not compared with it" in why) == ("s", True)
    assert known(("slow", 0.0607, {}), ("fast", 0.05, {}), rules=rules)[0] == "fast", "raced"


def test_a_look_replaces_no_race_of_the_same_kernel(known):
    race, look = {"created": "2026-01-01"}, SCREENED | {"created": "2026-02-01"}
    assert known(("fast", 0.02, race), ("slow", 0.03, {}), ("mid", 0.03, {}), ("fast", 0.07, look))[0] == "fast"
    new = look | {"provenance": Provenance(kernel_hash="b" * 16)}
    race |= {"provenance": Provenance(kernel_hash="a" * 16)}
    assert known(("fast", 0.02, race), ("slow", 0.03, {}), ("mid", 0.04, {}), ("fast", 0.07, new))[0] == "slow"


def test_what_is_inconclusive_decides_nothing_and_is_said(known):
    busy = {"inconclusive": "the device had other work"}
    first, why = known(("slow", 0.001, busy), ("fast", 0.5, busy))
    assert first == "fast"
    assert why.endswith("what is on record of loud.slow, loud.fast decides nothing: the device had other work")
    whole = [("slow", 0.02, {}), ("mid", 0.03, {}), ("fast", 0.04, {})]
    later = busy | {"created": "2026-09-01"}
    assert known(*whole, ("fast", 0.001, later), ("slow", 0.9, later))[0] == "slow", "and replaces nothing"


def test_a_pack_s_race_of_what_the_user_did_not_measure_counts(known, tmp_path, monkeypatch):
    pack = tmp_path / "pack"
    (pack / device_key(LARGE)).mkdir(parents=True)
    text = file_text([made("mid", 0.012)])
    (pack / device_key(LARGE) / text_name(text)).write_text(text)
    monkeypatch.setattr(perfdb, "record_packs", lambda: {"shop": pack})
    measured = ("slow", 0.0607, {}), ("fast", 0.05, {})
    assert known(*measured)[0] == "mid"
    assert known(*measured, ("mid", 0.2, {}))[0] == "fast", "the user's own counts"


def test_an_old_record_is_read_as_it_was_written(known):
    old = made("slow", 0.0607).to_json()
    del old["inconclusive"], old["benchmarked"], old["screening_ms"]
    found = type(made("slow", 1.0)).from_json(old)
    assert (found.sure, found.inconclusive, found.median_ms) == (True, "", 0.0607)


def test_a_lock_file_names_what_runs(known, tmp_path, monkeypatch):
    """Of a search that had time for one candidate it names no winner that beat nobody."""
    known(("slow", 0.0607, SCREENED | SMALL))
    monkeypatch.setattr("convdispatch.tools.cli.find._search", lambda *a, **k: [])
    monkeypatch.setattr("convdispatch.device.runtime.device_info", lambda device: LARGE)

    lock = tmp_path / "net.lock"
    run_cli("find", str(PROBLEM), "--lock", str(lock), status=0, catch_exceptions=False)
    assert lockfile.read(lock)[str(PROBLEM)].solver == "loud.fast"


NEAR = PROBLEM.replace(mb=3)


@pytest.mark.parametrize(
    ("records", "first"),
    [
        ([("s", 0.05, {"problem": NEAR})], "fast"),
        ([("s", 0.005, {"problem": NEAR})], "s"),
        ([("slow", 0.0607, {"problem": NEAR})], "fast"),
        ([("slow", 0.005, {"problem": NEAR, "inconclusive": "busy"}), ("fast", 0.9, {"problem": NEAR})], "fast"),
        ([("slow", 0.005, {"problem": NEAR}), ("fast", 0.9, {"problem": NEAR})], "slow"),
    ],
)
def test_a_neighbour_speaks_for_whom_it_measured(known, records, first):
    assert known(*records)[0] == first


def test_json_carries_it(known):
    known(("slow", 0.0607, {}))
    said = json.loads(json.dumps(explain(PROBLEM, LARGE).to_dict()))
    assert (said["chosen"], said["solvers"][1]["measured_ms"]) == ("loud.fast", 0.0607)
    with cd.policy(solver="loud.slow"):
        assert explain(PROBLEM, LARGE).chosen == "loud.slow"
