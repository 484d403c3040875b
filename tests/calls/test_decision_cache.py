"""What a machine's earlier processes chose is known to the next, until anything that a choice follows from changes."""

from __future__ import annotations

import dataclasses
import json

import pytest

from convdispatch.calls.planner_pool.decision_cache import DecisionCache
from convdispatch.device import rates, runtime
from convdispatch.selection.records.perfdb import user_folder

CHOSEN = {"solver": "im2col", "config": {"tile": 8, "gemm": {"kc": 27}}, "source": "predicted 0.1 ms", "seal": "a"}
KEY = "fwd_f32_mb1ic3ih9iw9oc8kh3kw3"


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path / "rates"))
    return tmp_path / "kernels"


@pytest.fixture(scope="module")
def device():
    return runtime.devices()[0]


def test_the_next_process_knows_it(device):
    DecisionCache(device).put(KEY, CHOSEN)
    assert DecisionCache(device).get(KEY) == CHOSEN
    assert DecisionCache(device).get(KEY + "+bias") is None
    DecisionCache(device).put(KEY, {**CHOSEN, "math": "ieee"})
    assert DecisionCache(device).get(KEY) == {**CHOSEN, "math": "ieee"}


def test_a_later_choice_replaces_an_earlier_one(device):
    other = {**CHOSEN, "solver": "fft.cpu"}
    for each in (CHOSEN, CHOSEN, other):
        DecisionCache(device).put(KEY, each)
    assert DecisionCache(device).get(KEY) == other


def _record(device, monkeypatch, tmp_path):
    user_folder().mkdir(parents=True)
    (user_folder() / "a.jsonl").write_text("{}")


def _rate(device, monkeypatch, tmp_path):
    path = rates.place(runtime.device_info(device))
    path.parent.mkdir(parents=True)
    path.write_text("{}")


def _registry(device, monkeypatch, tmp_path):
    (tmp_path / "registry.yaml").write_text("rules: []\n")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))


def _variable(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_ANYTHING", "1")


def _compiler(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", "core-avx2")


def _compute_units(device, monkeypatch, tmp_path):
    known = runtime.device_info(device)
    other = dataclasses.replace(known, compute_units=known.compute_units + 1)
    monkeypatch.setattr(runtime, "device_info", lambda device: other)


@pytest.mark.parametrize("change", [_record, _rate, _registry, _variable, _compiler, _compute_units])
def test_what_a_choice_follows_from_asks_anew(device, change, monkeypatch, tmp_path):
    DecisionCache(device).put(KEY, CHOSEN)
    change(device, monkeypatch, tmp_path)
    assert DecisionCache(device).get(KEY) is None


DAMAGE = [
    b"",
    b"\xff\x00",
    b"[]",
    b"[1, 2]",
    b'["k"]',
    b'["k", {"solver": 1, "config": {}}]',
    b'{"a": 1}',
    json.dumps(["k", {**CHOSEN, "math": 1}]).encode(),
]


def test_damaged_lines_are_passed_over(device, place):
    DecisionCache(device).put(KEY, CHOSEN)
    (path,) = place.glob("*.choices")
    path.write_bytes(b"\n".join(DAMAGE) + b"\n" + path.read_bytes() + json.dumps([KEY, CHOSEN]).encode()[:30])
    assert DecisionCache(device).get(KEY) == CHOSEN
    assert DecisionCache(device).get("k") is None


def test_a_disk_that_refuses_keeps_nothing_and_says_nothing(device, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (str(tmp_path / "file" / "below"), "off"):
        monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", folder)
        cache = DecisionCache(device)
        cache.put(KEY, CHOSEN)
        assert DecisionCache(device).get(KEY) is None
