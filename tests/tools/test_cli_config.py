"""``config``: every folder that is written is listed with its size, and emptied where one asks for it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import convdispatch as cd
from convdispatch.selection import decision_store
from convdispatch.tools.cli import main


@pytest.fixture
def places(tmp_path, monkeypatch):
    names = {
        "kernels": "CONVDISPATCH_KERNEL_CACHE",
        "records": "CONVDISPATCH_DB",
        "rates": "CONVDISPATCH_RATES",
        "plugins": "CONVDISPATCH_PLUGIN_DIR",
    }
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for name, variable in names.items():
        monkeypatch.setenv(variable, str(tmp_path / name))
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_bytes(bytes(3 << 20))
    return tmp_path


def run(*words):
    done = CliRunner().invoke(main, ["config", *words])
    assert done.exit_code == 0, done.output
    return done


def test_folders_are_listed_with_their_sizes(places):
    found = json.loads(run("--json").stdout)
    assert {"decisions", "kernels", "cache", "pyopencl", "pytools", "records", "rates", "plugins"} == found.keys()
    for name in ("kernels", "records", "rates", "plugins"):
        assert (found[name]["path"], found[name]["bytes"]) == (str(places / name), 3 << 20)
    text = run().output
    assert "3.0" in text
    assert "CONVDISPATCH_KERNEL_CACHE" in text


def test_caches_are_emptied_and_records_stay(places):
    assert "3.0 MiB deleted" in run("--clear", "caches").output
    assert not (places / "kernels").exists()
    assert (places / "records" / "deep" / "file").exists()
    run("--clear", "records")
    assert not (places / "records").exists()
    assert (places / "plugins" / "deep" / "file").exists()
    assert CliRunner().invoke(main, ["config", "--clear", "plugins"]).exit_code == 2


def test_doctor_names_them(places):
    report = json.loads(CliRunner().invoke(main, ["doctor", "--no-probe", "--json"]).stdout)
    assert report["folders"]["records"] == str(places / "records")
    assert str(places / "kernels") in CliRunner().invoke(main, ["doctor", "--no-probe"]).output


def test_decisions_are_listed_and_cleared_alone(places, monkeypatch, queue):
    decision_store.forget()
    cd.conv(np.ones((1, 3, 9, 11), np.float32), np.ones((4, 3, 3, 3), np.float32), queue=queue)
    problem = "fwd_f32_mb1ic3ih9iw11oc4kh3kw3"
    text = run("--decisions").output
    assert problem in text
    (tables,) = json.loads(run("--decisions", "--json").stdout).values()
    assert tables["decisions"][problem]["solver"] in text
    run("--clear", "decisions")
    assert json.loads(run("--decisions", "--json").stdout) == {}
    assert (places / "kernels" / "deep" / "file").exists()
    decision_store.forget()
