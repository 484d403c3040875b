"""``cache``: tables and folders are listed with their sizes, shown, and cleared where one asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run_cli

import convdispatch as cd
from convdispatch.device.cache import store
from convdispatch.selection import decision_store


@pytest.fixture
def places(tmp_path, monkeypatch):
    names = {"records": "CONVDISPATCH_DB", "rates": "CONVDISPATCH_RATES", "plugins": "CONVDISPATCH_PLUGIN_DIR"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "store"))
    for name, variable in names.items():
        monkeypatch.setenv(variable, str(tmp_path / name))
    for name in (*names, "store"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_bytes(bytes(3 << 20))
    (tmp_path / "xdg" / "pyopencl").mkdir(parents=True)
    (tmp_path / "xdg" / "pyopencl" / "a").write_bytes(b"a")
    store.PROGRAMS.put("a" * 40, bytes(2 << 20), "a kernel")
    store.FORMS.put("b" * 40, {"layout": "nhwc"}, "a net")
    decision_store.forget()
    yield tmp_path
    decision_store.forget()


def run(*words):
    done = run_cli("cache", *words, status=0)
    return done.stdout


def listed(*words):
    return json.loads(run(*words, "--json"))


def test_tables_and_folders_are_listed_with_their_sizes(places):
    found = listed("list")
    assert list(found) == [*store.TABLES, "verdicts", "answers", "pyopencl", "pytools", "records", "rates", "plugins"]
    for name in ("records", "rates", "plugins"):
        assert (found[name]["folder"], found[name]["bytes"]) == (str(places / name), 3 << 20)
    assert found["programs"]["folder"] == str(places / "store")
    assert found["programs"]["entries"] == found["forms"]["entries"] == found["pyopencl"]["entries"] == 1
    assert 2 << 20 < found["programs"]["bytes"] < 3 << 20
    assert found["decisions"]["entries"] == found["decisions"]["bytes"] == 0
    text = run("list")
    assert "2.0" in text
    assert "CONVDISPATCH_KERNEL_CACHE" in text


def test_a_table_is_shown(places, queue):
    cd.conv(np.ones((1, 3, 9, 11), np.float32), np.ones((4, 3, 3, 3), np.float32), queue=queue)
    problem = "fwd_f32_mb1ic3ih9iw11oc4kh3kw3"
    (decision,) = listed("show", "decisions")
    assert decision["of"].startswith(f"{problem} on ")
    text = run("show", "decisions")
    assert problem in text
    assert decision["value"]["solver"] in text
    assert "a net" in run("show", "forms")
    (program,) = (each for each in listed("show", "programs") if each["of"] == "a kernel")
    assert program["value"] is None
    assert program["bytes"] > 2 << 20


def test_tables_are_cleared_alone(places):
    assert "programs in" in run("clear", "programs")
    assert [listed("list")[name]["entries"] for name in ("programs", "forms")] == [0, 1]
    said = run("clear", "all")
    assert not any(row["entries"] for name, row in listed("list").items() if name in (*store.TABLES, "pyopencl"))
    assert "records" not in said
    assert (places / "store" / "deep" / "file").exists(), "it is nobody's table"
    for name in ("records", "plugins", "rates"):
        assert (places / name / "deep" / "file").exists()
    run("clear", "records", "rates")
    assert not (places / "records").exists()
    assert not (places / "rates").exists()


@pytest.mark.parametrize(
    "words", [("clear",), ("clear", "plugins"), ("clear", "sideways"), ("show", "records"), ("show",)]
)
def test_what_cannot_be_cleared_or_shown_is_refused(places, words):
    assert run_cli("cache", *words).exit_code == 2
    assert (places / "plugins" / "deep" / "file").exists()


def test_off_is_said(places, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    assert listed("list")["programs"]["folder"] == "off"
    assert listed("show", "programs") == []
    assert "0.0 MiB" in run("clear", "programs")


def test_doctor_names_the_folders(places):
    report = json.loads(run_cli("doctor", "--no-probe", "--json").stdout)
    assert report["folders"]["records"] == str(places / "records")
    assert report["folders"]["store"] == str(places / "store")
    assert str(places / "store") in run_cli("doctor", "--no-probe").output


def test_config_prints_the_folder_of_the_header():
    done = run_cli("config", "--include")
    assert (Path(done.output.strip()) / "convdispatch_plugin.h").exists()
