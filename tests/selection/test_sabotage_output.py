"""What plugins print, say and fork: standard output is the command's, sentences are short, and each is said once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections import Counter

import pytest
from command_line import run_cli
from sabotaging import PLUGIN, PROBLEM, check_one_warning

import convdispatch as cd
from convdispatch.api.fault_text import plain, words
from convdispatch.measurement.conformance import workers
from convdispatch.selection.plugins import loader, verdicts

LOUD = (
    PLUGIN.format(method="rejects", expression="loud('asked') or None")
    + """
def loud(word):
    print("{python", word)
    os.write(1, b"{descriptor " + word.encode() + b"\\n")
loud("imported")
__import__("atexit").register(print, "{at the end")
"""
)


def command(tmp_path, *words):
    """A command in a process of its own, in the sabotage's world."""
    return subprocess.run(
        [sys.executable, "-m", "convdispatch", *words], capture_output=True, text=True, timeout=570, cwd=tmp_path
    )


@pytest.mark.parametrize(
    "line",
    [
        ["explain", str(PROBLEM), "--json"],
        ["info", "--json"],
        ["doctor", "--no-probe", "--json"],
        ["find", "mb1ic2ih4oc2kh3", "--budget", "500", "--no-isolate", "--json"],
        ["verify", "im2col", "--case", "1x1", "--json", "/dev/stdout"],
    ],
    ids=lambda line: line[0],
)
def test_json_parses_whatever_plugins_print(sabotage, tmp_path, line):
    sabotage(LOUD)
    ended = command(tmp_path, *line)
    assert "{python imported" in ended.stderr
    assert "{descriptor imported" in ended.stderr
    if line[0] == "verify":  # its tables are standard output too
        assert "{" not in ended.stdout.partition("{")[0]
    else:
        assert json.loads(ended.stdout)


def test_help_and_version_stay_on_standard_output(tmp_path):
    for line in (["--help"], ["find", "--help"], ["--version"]):
        ended = command(tmp_path, *line)
        assert ended.stdout.strip()
        assert not ended.stderr.strip()


def test_python_prints_are_parted_inside_other_programs_too(sabotage):
    sabotage(LOUD)
    before = sys.stdout
    result = run_cli("explain", str(PROBLEM), "--json")
    assert json.loads(result.stdout)["problem"] == str(PROBLEM)
    assert sys.stdout is before


HOSTILE = "'\\x1b]0;pwned\\x07' + 'a\\x1b[31mred\\x1b[0m\\x1bP1$r\\x1b\\\\' + chr(0x202e) + chr(7) + '\\n' + 'b' * 9000"


def test_a_plugins_words_are_one_short_line_without_control(sabotage):
    sabotage(PLUGIN.format(method="rejects", expression=HOSTILE))
    verdict = next(v for v in cd.explain(PROBLEM).verdicts if v.solver == "bad.solver")
    assert verdict.reason.startswith("ared ")
    assert len(verdict.reason) == 500
    assert verdict.reason.isprintable()
    sabotage(PLUGIN.format(method="cost", expression=f"throw(ValueError({HOSTILE}))"))
    said = check_one_warning("its cost() raised ValueError: ared")
    assert said.isprintable()
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1b]0;never ended", ""),
        ("a\rb\x00c\u2028d", "a b c d"),
        ("\x1bcreset", "reset"),
        ("plain words", "plain words"),
    ],
)
def test_plain(text, left):
    assert plain(text) == left
    said = words(ValueError(text)).removeprefix("ValueError").removeprefix(": ")
    assert said == (left if "\r" not in text else "a")  # its first line


FORKS = "\nif os.fork() == 0:\n    __import__('time').sleep(0.1)\nelse:\n    os.wait()\n"
WAITS = "pid = os.fork()\n    pid and os.waitpid(pid, 0)"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_as_it_is_imported(sabotage, tmp_path):
    sabotage(PLUGIN.format(method="cost", expression="1.0") + FORKS, preferred=False)
    process = os.getpid()
    check_one_warning("plugin bad was set aside: it forks as it is imported")
    assert os.getpid() == process
    ended = command(tmp_path, "verify", "bad", "--case", "1x1")
    assert ended.returncode
    assert "it forks as it is imported" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_as_it_is_asked(sabotage):
    text = PLUGIN.format(method="rejects", expression="forked()") + f"\ndef forked():\n    {WAITS}\n    return None\n"
    sabotage(text)
    process = os.getpid()
    check_one_warning("its rejects() forked the process")
    assert os.getpid() == process


def test_what_is_no_outcome_is_a_death_in_words():
    class Child:
        closed = False

        def __init__(self):
            self.said = [{"asked": "x"}, {"ready": True}]

        def ask(self, question):
            pass

        def hear(self, limit_s):
            return self.said.pop(0)

        def close(self):
            self.closed = True

    case = workers.Case("core:1", PROBLEM, "core")
    child = Child()
    (outcome,) = workers._run(child, case, 1.0, Counter())
    assert outcome.reason.startswith("it answered what is no outcome: {'ready': True}")
    assert child.closed


def test_verify_names_a_plugin_that_ends_the_process_at_the_first_run(sabotage, tmp_path):
    """Whichever way it ends it: ``test_verdicts.py``."""
    sabotage(PLUGIN.format(method="cost", expression="1.0") + "\nos._exit(3)\n", preferred=False)
    ended = command(tmp_path, "verify", "bad", "--case", "1x1")
    assert ended.returncode == 1
    assert "the plugin 'bad' did not load: it " in ended.stderr
    assert "as it is imported" in ended.stderr
    verdicts.refresh()


def test_one_warning_for_each_kind_of_fault(sabotage):
    sabotage(
        PLUGIN.format(method="cost", expression="throw(ValueError(str(arguments[0]))) if arguments[0].mb < 9 else 'x'")
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for mb in range(1, 12):
            assert cd.explain(PROBLEM.replace(mb=mb)).chosen.startswith("im2col")
    said = [str(one.message) for one in caught if one.category is cd.ConvDispatchWarning]
    assert len(said) == 2, said
    assert "its cost() raised ValueError" in said[0]
    assert "its cost() answered 'x'" in said[1]
    assert loader.plugins().solvers["bad.solver"]
