"""What plugins say may hold brackets and colons: the commands show it as it is."""

from __future__ import annotations

import re

import pytest
from command_line import run_cli

WORDS = "install [onednn] or [/bold], [link=x] :smile: [1, 2]"
PLUGIN = f"""
from convdispatch.api import Solver, hookimpl

class Says(Solver):
    name = "says.words"
    def rejects(self, problem, device):
        return None if problem.kh == 1 else {WORDS!r}
    def plan(self, context, problem, config):
        raise ValueError({WORDS!r})

def unavailable():
    return {WORDS!r}

@hookimpl
def convdispatch_solvers():
    return [Says()]
"""


@pytest.fixture
def says(tmp_path, monkeypatch, read_anew):
    (tmp_path / "says.py").write_text(PLUGIN)
    (tmp_path / "raises.py").write_text(f"raise RuntimeError({WORDS!r})")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,says,raises")
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    read_anew()


@pytest.mark.filterwarnings("ignore::convdispatch.api.errors.ConvDispatchWarning")
@pytest.mark.parametrize(
    ("command", "times"),
    [
        (["doctor", "--no-probe"], 2),
        (["find", "mb1ic4ih6oc4kh3", "--budget", "500"], 1),
        (["find", "mb1ic4ih6oc4kh1", "--budget", "9000", "-v"], 1),
        (["verify", "says", "--level", "core", "--jobs", "0", "--case", "*3x3*", "-v"], 1),
        (["explain", "mb1ic4ih6oc4kh3"], 1),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else None,
)
def test_brackets_are_text(says, command, times):
    result = run_cli(*command, catch_exceptions=False)
    text = re.sub(r"\s+", " ", result.output)
    assert text.count(WORDS) >= times, result.output
