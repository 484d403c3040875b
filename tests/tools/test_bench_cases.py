"""``python -m bench``: the list of cases, a case's help, a name that is none."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paths import ROOT

from bench.__main__ import summaries


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_every_case_says_what_it_measures_and_stands_in_the_readme():
    listed, page = run(), (ROOT / "bench" / "README.md").read_text()
    assert listed.returncode == 0
    for name, text in summaries().items():
        assert f"{name} " in listed.stdout
        assert text.endswith(".") or ":" in text, name
        assert f"`{name}`" in page, f"bench/README.md does not tell of {name}"


@pytest.mark.parametrize("name", ["layers", "overhead", "choice"])
def test_a_case_runs_by_its_name(name):
    told = run(name, "--help")
    assert told.returncode == 0, told.stderr
    assert "Usage" in told.stdout or "usage" in told.stdout


def test_a_name_that_is_none_gets_a_suggestion():
    told = run("layer")
    assert told.returncode == 2
    assert "no case is named 'layer'; did you mean layers?" in told.stderr


def test_recorded_commands_name_cases_that_exist():
    known, wrong = summaries(), []
    for file in (ROOT / "docs" / "results" / "data").glob("*.json"):
        words = file.read_text().split("python -m bench ")[1:]
        wrong += [f"{file.name}: {rest[:40]}" for rest in words if rest.split()[0].strip("`\",;'") not in known]
    assert wrong == []
