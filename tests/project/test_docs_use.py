"""Every command and snippet of docs/use and of the README runs: each page from top to bottom, in an empty folder.

Python blocks of a page share one scope. Of a console block each line that begins with ``$`` runs; other lines are its
output. A block that needs what a test has not (a GPU, a network, minutes) has a line before it that says so:
``<!-- not run: needs a GPU -->``. ``<!-- needs: torch -->`` names packages without which the block and those after it
are left out. ``<!-- alone -->`` gives a Python block a process of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from command_line import run_cli
from paths import ROOT

PAGES = sorted((ROOT / "docs" / "use").glob("*.md"))
SECONDS = 600
"""Most that a command in a process of its own may take, on a machine that is busy; each takes a few."""


def blocks(text: str) -> list[tuple[list[str], str, str]]:
    """The fenced blocks of a page: the marks before each, its language, its text."""
    found = re.findall(r"((?:^[ ]*<!-- [^\n]* -->\n)*)^[ ]*```(\w+)\n(.*?)^[ ]*```", text, re.DOTALL | re.MULTILINE)
    return [(re.findall(r"<!-- (.*?) -->", marks), language, block) for marks, language, block in found]


def commands(block: str) -> list[str]:
    """The commands of a console block, without their comments; a line that ends in a backslash goes on."""
    lines = [line.lstrip() for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.join(shlex.split(line[2:], comments=True)) for line in lines if line.startswith("$ ")]


def execute(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a ``convdispatch`` command in this process, with the variables that stand before it."""
    words = shlex.split(command)
    with monkeypatch.context() as patched:
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            patched.setenv(*words.pop(0).split("=", 1))
        assert words[0] == "convdispatch", f"{command}: only convdispatch runs here; mark other blocks as not run"
        done = run_cli(*words[1:])
    assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"


def test_marks_and_commands_are_read():
    text = "<!-- not run: needs a GPU -->\n```console\n$ one  # why\nout\n```\n\n```python\nx = 1\n```\n"
    assert blocks(text) == [(["not run: needs a GPU"], "console", "$ one  # why\nout\n"), ([], "python", "x = 1\n")]
    assert commands("$ A=1 b 'c d'  # why\nout\n$ e \\\n  f\n") == ["A=1 b 'c d'", "e f"]


def test_a_command_that_fails_is_seen(monkeypatch):
    with pytest.raises(AssertionError, match="mb1ic4qq7"):
        execute("convdispatch explain mb1ic4qq7", monkeypatch)
    with pytest.raises(AssertionError, match="only convdispatch runs here"):
        execute("pip list", monkeypatch)


def test_no_more_pages_than_tasks():
    assert len(PAGES) <= 13


@pytest.fixture
def folder(tmp_path, monkeypatch, read_anew):
    """An empty folder to stand in, with records of its own, by which nothing is chosen afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "records"))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_what_a_page_says_runs(page, monkeypatch):
    scope: dict = {"__name__": "__main__"}
    ran = 0
    for marks, language, block in blocks(page.read_text(encoding="utf-8")):
        if any(mark.startswith("not run: ") for mark in marks):
            continue
        for package in [word for mark in marks if mark.startswith("needs: ") for word in mark[7:].split()]:
            pytest.importorskip(package, reason=f"{page.name} needs {package} from here on; {ran} blocks ran")
        if language == "console":
            assert commands(block), f"{page.name}: no line of this console block begins with $:\n{block}"
            for command in commands(block):
                execute(command, monkeypatch)
        elif language == "python" and "alone" in marks:
            done = subprocess.run(
                [sys.executable, "-c", block], capture_output=True, text=True, timeout=SECONDS, env=os.environ
            )
            assert done.returncode == 0, done.stderr
        elif language == "python":
            exec(compile(block, str(page), "exec"), scope)
        ran += language in ("console", "python")
    assert ran, f"{page.name} has no block that runs"
