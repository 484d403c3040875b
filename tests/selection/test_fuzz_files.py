"""``python -m bench fuzz_files`` for a moment: every reader takes its whole file, and some that were changed."""

from __future__ import annotations

import json
import random

import pytest

from convdispatch import runtime
from convdispatch.device import rates
from convdispatch.selection.plugins import verdicts

FILES = 15
"""Of each reader."""


@pytest.fixture(scope="module")
def fuzz():
    from bench.cases import fuzz_files

    return fuzz_files


READERS = (
    "registry", "lock", "pack", "records", "verdicts", "rates", "plan_pack", "problems", "trace",
    "onnx", "decisions", "trials", "icd", "store",
)  # fmt: skip


def test_every_reader_is_here(fuzz):
    assert tuple(fuzz.READERS) == READERS


@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_a_value_or_a_sentence(fuzz, name, monkeypatch, tmp_path):
    for variable in ("CONVDISPATCH_DB", "CONVDISPATCH_RATES", "XDG_CACHE_HOME", "CONVDISPATCH_KERNEL_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))
    runtime.default_device()
    if name == "onnx":
        pytest.importorskip("onnx")
    try:
        whole = fuzz.READERS[name][0]()
        fuzz.READERS[name][1](written(tmp_path, name, whole))
        for number in range(FILES):
            source = random.Random(f"{name} {number}")
            data = fuzz.mutate(source, whole)
            assert fuzz.attempt(name, data, 0o600) is None, data[:500]
    finally:
        rates.rates.cache_clear()
        verdicts.refresh()


def written(folder, name, data):
    (folder / "whole").mkdir()
    path = folder / "whole" / ("file.onnx" if name == "onnx" else "file")
    path.write_bytes(data)
    return path


def test_values_are_swapped_and_bytes_are_not_always_json(fuzz):
    whole = json.dumps({"a": [1, {"b": 2}], "c": "d"}).encode()
    found = {fuzz.mutate(random.Random(number), whole) for number in range(200)}
    kinds = [isinstance(fuzz._structure(data), dict) for data in found]
    assert len(found) > 100
    assert {True, False} == set(kinds)
