"""What a plugin's author is told: the plugin's own line, what failing cases share, a template to start from."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest
from command_line import run_cli

from convdispatch.api.fault_text import words
from convdispatch.api.problem import ConvProblem
from convdispatch.measurement.conformance.outcome import Outcome, errors_by_dtype

FAULTY = """
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

def helper(problem):
    return {}["kernels"]

class Faulty(Im2col):
    name = "faulty.one"
    def rejects(self, problem, device):
        return None
    def plan(self, context, problem, config):
        if any(getattr(problem, f"p{axis}{side}") for axis in "dhw" for side in ("", "_r")):
            helper(problem)
        return super().plan(context, problem, config)

@hookimpl
def convdispatch_solvers():
    return [Faulty()]
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch, read_anew):
    (tmp_path / "mine.py").write_text(FAULTY)
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,mine")
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    read_anew()


FAULT = next(number for number, line in enumerate(FAULTY.splitlines(), 1) if "return {}" in line)
PLACE = f"mine.py:{FAULT}"


@pytest.mark.filterwarnings("ignore::convdispatch.api.errors.ConvDispatchWarning")
def test_a_fault_names_the_plugins_own_last_line_everywhere(faulty, monkeypatch):
    found = run_cli("find", "mb1ic4ih6oc4kh3ph1", "--budget", "3000")
    assert f"KeyError: 'kernels' ({PLACE})" in found.output
    verified = run_cli("verify", "mine", "--level", "core", "--jobs", "0", "--case", "*3x3*")
    assert f"KeyError: 'kernels' ({PLACE})" in " ".join(verified.output.split())
    assert "in helper" not in found.output + verified.output
    monkeypatch.setenv("CONVDISPATCH_TRACEBACK", "0")
    whole = run_cli("--traceback", "verify", "mine", "--level", "core", "--jobs", "0", "--case", "*3x3*")
    assert "in helper" in whole.output


def test_the_log_has_the_whole_traceback(caplog):
    with caplog.at_level(logging.DEBUG, "convdispatch"):
        with pytest.raises(KeyError) as caught:
            {}["x"]
        assert words(caught.value).startswith("KeyError: 'x' (test_cli_authors.py:")
    assert "Traceback" in caplog.text
    assert words(ValueError("never raised")) == "ValueError: never raised"


def outcomes(status, *texts):
    return [
        Outcome("s", str(number), str(ConvProblem.parse(text)), "core", status, errors={"real": 10.0**-number})
        for number, text in enumerate(texts, 4)
    ]


def test_the_worst_error_of_each_dtype():
    texts = ("mb1ic4ih6oc4kh3", "mb2ic4ih9oc4kh1", "g2mb1ic4ih6oc4kh3sh2", "f64_mb1ic4ih6oc4kh3")
    assert errors_by_dtype(outcomes("passed", *texts)) == "float32 1e-04, float64 1e-07"


def test_verify_tells_each_fault_once(faulty):
    done = run_cli("verify", "mine", "--level", "core", "--jobs", "0", "--case", "*3x3*")
    said = " ".join(done.output.split())
    assert done.exit_code == 1
    assert said.count("your solver faulty.one fails") == 1
    assert said.count("KeyError: 'kernels'") == 1
    assert "float32 " in said


def test_a_new_plugin_builds_and_passes_what_it_does_not_refuse(tmp_path, device):
    done = run_cli("new-plugin", "zebra", "--folder", str(tmp_path / "new"), status=0)
    files = {str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert {"pyproject.toml", "README.md", "convdispatch_zebra/__init__.py"} <= files
    assert not [name for name in files if "acme" in (tmp_path / "new" / name).read_text().lower()]
    again = run_cli("new-plugin", "zebra", "--folder", str(tmp_path / "new"))
    assert "exists: name another --folder" in again.output
    assert run_cli("new-plugin", "Not A Name").exit_code == 2
    env = os.environ | {"CONVDISPATCH_PLUGIN_DIR": str(tmp_path / "new"), "CONVDISPATCH_DB": str(tmp_path / "db")}
    words = ["verify", "convdispatch_zebra", "--level", "core", "--json", str(tmp_path / "r.json")]
    done = subprocess.run([sys.executable, "-m", "convdispatch", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verdict"].startswith("passed")
