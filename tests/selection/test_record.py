"""One record: the device it names, its text, and what makes it doubtful."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import DEVICE, KEY, record

from convdispatch.device.opencl import platforms
from convdispatch.selection.records.record import (
    Damaged,
    Provenance,
    Record,
    device_key,
    file_text,
    is_device_key,
    read_records,
    stale,
    text_name,
)


def test_the_key_names_the_device_and_not_its_driver():
    assert device_key(DEVICE) == device_key(replace(DEVICE, driver="2.0")) == KEY
    assert device_key(DEVICE) != device_key(replace(DEVICE, compute_units=8))


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first text waits for a table of all characters
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
    assert read_records(text_name(file_text([made])), file_text([made])) == ([made], [])


@given(st.data())
def test_any_change_of_the_text_is_noticed(data):
    made = record()
    text = file_text([made])
    place = data.draw(st.integers(0, len(text) - 1))
    altered = text[:place] + data.draw(st.characters(codec="ascii")) + text[place + 1 :]
    for damaged in (altered, text[:place]):
        if damaged != text:
            with pytest.raises(Damaged):
                read_records(text_name(file_text([made])), damaged)


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
    reason = stale(record(provenance=Provenance(**then)), Provenance(**today))
    assert (reason is None) if words is None else (words in reason)


def test_a_memory_starved_record_is_retried_when_there_is_more():
    starved = record(optimal=False, provenance=Provenance(workspace_limit=1000))
    assert "limit of 1000 bytes" in stale(starved, Provenance())
    assert "limit of 1000 bytes" in stale(starved, Provenance(workspace_limit=2000))
    assert stale(starved, Provenance(workspace_limit=1000)) is None
    assert stale(replace(starved, optimal=True), Provenance()) is None


TWO = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: {}\nmodel name\t: Intel(R) Xeon(R) Processor\nflags\t\t: fpu {}\n"


def test_two_generations_behind_one_name_have_keys_of_their_own():
    old = platforms.described(TWO.format(85, "avx2 avx512f avx512_vnni"), ["1024k", "33792k"])
    new = platforms.described(TWO.format(207, "avx2 avx512f avx512_vnni avx512_bf16 amx_tile"), ["2048k", "266240k"])
    assert (old, new) == ("f6m85 avx512_vnni 1024k 33792k", "f6m207 amx_tile 2048k 266240k")
    assert platforms.described(TWO.format(85, "avx2"), [], "core-avx2") == "f6m85 avx2 core-avx2"
    assert platforms.described("processor : 0\nBogoMIPS : 50\n", []) == ""
    one, other = (device_key(replace(DEVICE, processor=words)) for words in (old, new))
    assert one != other
    assert {one, other}.isdisjoint({KEY})
    assert is_device_key(one)
    assert is_device_key(device_key(replace(DEVICE, name="x" * 90 + " y" * 90, processor=new)))
