"""The kit in child processes: what crashes, hangs or takes the device with it costs one solver one case; time ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from command_line import PATIENT, run_cli

from convdispatch.device import child
from convdispatch.measurement.conformance.verify import select, verify
from convdispatch.selection.plugins import loader

DEADLY = """
import os, time
from pathlib import Path
import pyopencl as cl
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Deadly(Im2col):
    def __init__(self, name):
        self.name = name

    def rejects(self, problem, device):
        if self.name == "deadly.a" and problem.kh == 1 and problem.sh == 2 and problem.ih == 7:
            os.abort()
        if self.name == "deadly.a" and problem.kh == 1 and problem.dh == 2:
            Path(os.environ["HANGING"], str(os.getpid())).touch()
            time.sleep(1000)
        return "nothing else" if problem.mb == 3 or problem.kh != 1 else super().rejects(problem, device)

    def plan(self, context, problem, config):
        if self.name == "deadly.c" and problem.ph:
            def refuse(*arguments, **named):
                raise cl.LogicError("clSomething failed: INVALID_COMMAND_QUEUE")
            cl.enqueue_copy = cl.enqueue_fill_buffer = refuse  # as a GPU's context after a kernel that faults
        return super().plan(context, problem, config)

@hookimpl
def convdispatch_solvers():
    return [Deadly(f"deadly.{letter}") for letter in "abcd"]
"""


SLOW = """
import time
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Slow(Im2col):
    name = "slow"

    def plan(self, context, problem, config):
        time.sleep(0.3)  # for each of more than a hundred cases, however fast the machine is
        return super().plan(context, problem, config)

@hookimpl
def convdispatch_solvers():
    return [Slow()]
"""


@pytest.fixture
def write_plugin(tmp_path, monkeypatch, read_anew):
    """``write_plugin(name, text)``: this process and its children find it."""

    def write(name, text):
        folder = tmp_path / "plugins"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        read_anew()

    return write


def test_one_solver_s_death_costs_nobody_else_a_case(device, write_plugin, hanging):
    write_plugin("deadly", DEADLY)
    names = {case.name for case in select("core", "1x1*")}
    report = verify("deadly", "core", case="1x1*", jobs=2, timeout_s=77)
    assert report.unasked == []
    for solver in ("deadly.a", "deadly.b", "deadly.c", "deadly.d"):
        assert {o.case for o in report.of(solver=solver)} == names
    failed = {(o.solver, o.case): o.reason for o in report.of(status="failed")}
    assert failed.pop(("deadly.a", "1x1_s2")) == "it was killed by SIGABRT"
    assert failed.pop(("deadly.a", "1x1_dilated")) == "it did not end within 77 s"
    # What took its device with it failed its own padded cases; those behind it ran in a new process.
    assert {solver for solver, _ in failed} == {"deadly.c"}
    padded = {case.name for case in select("core", "1x1*") if case.problem.ph}
    assert {case for _, case in failed} == padded
    assert all("INVALID_COMMAND_QUEUE" in reason for reason in failed.values())


@pytest.mark.parametrize("jobs", [0, 2])
def test_the_time_ends_it(device, write_plugin, monkeypatch, jobs):
    write_plugin("slow", SLOW)
    begun, some = time.monotonic(), []
    if not jobs:  # the time ends after the second case, however slow the machine is; children may not even have begun
        clock = types.SimpleNamespace(monotonic=lambda: begun + len(some), perf_counter=time.perf_counter)
        monkeypatch.setattr("convdispatch.measurement.conformance.verify.time", clock)
    report = verify("slow", "training", jobs=jobs, until=begun + 1.5, report=lambda *one: some.append(one))
    assert report.verdict() == "incomplete"
    ran = {outcome.case for outcome in report.outcomes}
    assert report.unasked
    assert len(ran) == 2 or jobs
    assert ran | set(report.unasked) == {case.name for case in select("training")}
    assert not ran & set(report.unasked)


def test_a_job_s_time_limit_leaves_a_report(device, tmp_path):
    path = tmp_path / "kit.json"
    command = [*PATIENT, "verify", "im2col", "--level", "training", "-v", "--json", str(path)]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert any(
        line.startswith(("passed", "refused")) for line in job.stderr
    )  # the first outcome; a slow one's progress
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=200)
    assert job.returncode == 130
    report = json.loads(path.read_text())
    assert report["verdict"] == "incomplete"
    assert report["outcomes"]
    assert report["unasked"]


def test_a_child_that_cannot_start_is_said(device, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col")
    loader.reload()
    try:
        monkeypatch.setenv("CONVDISPATCH_PLUGINS", "none")  # the children find no such plugin
        done = run_cli("verify", "im2col", "--level", "core", "--case", "1x1*", "--jobs", "2")
    finally:
        monkeypatch.undo()
        loader.reload()
    assert done.exit_code == 1
    assert "no process could be started to verify in" in done.output
    assert "im2col" in done.output


def test_several_plugins_in_one_command(device, tmp_path):
    names = ["im2col", "fft"]
    options = ["--level", "core", "--case", "1x1_of_1x1", "--jobs", "0", "--json", str(tmp_path / "kit.json")]
    done = run_cli("verify", *names, *options)
    assert "im2col passed, fft " in done.output
    assert done.exit_code == (0 if "fft passed" in done.output else 1)
    reports = [json.loads((tmp_path / f"kit-{name}.json").read_text()) for name in names]
    assert [report["plugin"]["name"] for report in reports] == names


# --- what these rest on ----------------------------------------------------------------------------------------------


HANGS = """
import time
from convdispatch.device.child import answer, ends_with_parent, questions
lines = questions()
setup = next(lines)
ends_with_parent()
print("a driver's own words", flush=True)
answer({"heard": setup})
for asked in lines:
    if "exit" in asked:
        raise SystemExit(asked["exit"])
    time.sleep(1000)
"""


@pytest.fixture
def hangs(tmp_path, monkeypatch):
    (tmp_path / "hangs_for_ever.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "hangs_for_ever"


def test_a_child_s_words_silence_and_end(hangs):
    one = child.Child(hangs, {"a": [1]})
    assert one.hear(30) == {"heard": {"a": [1]}}
    one.say({"sleep": 1})
    with pytest.raises(child.Silent, match=r"within 0\.2 s"):
        one.hear(0.2)
    one.close()
    other = child.Child(hangs, {}, background=True)
    assert other.hear(30) == {"heard": {}}
    if hasattr(os, "SCHED_IDLE"):
        assert os.sched_getscheduler(other._process.pid) == os.SCHED_IDLE
    other.say({"exit": 3})
    assert other.hear(30) is None
    assert other.how_it_ended() == "it ended with status 3"
    other.close()
    third = child.Child("no_such_module_here", {})
    assert third.hear(30) is None
    assert third.how_it_ended().startswith("it ended with status 1: ")
    assert "No module named" in third.how_it_ended()
    third.close()


ECHOES = """
import os, sys
print("printed before anything is asked")
from convdispatch.device.child import answer, questions
for said in questions(idle_s=said_nothing if (said_nothing := float(os.environ.get("IDLE", 0))) else None):
    print("\\x02convdispatch 7 9")  # a driver's words that look like a message
    os.write(1, b"and some past Python's buffers")
    answer({"heard": said, "pid": os.getpid()}, said.content[::-1])
"""


@pytest.fixture
def echoes(tmp_path, monkeypatch):
    (tmp_path / "echoes_bytes.py").write_text(ECHOES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "echoes_bytes"


def test_a_child_hears_and_says_bytes_whatever_is_printed(echoes):
    one, content = child.Child(echoes, {}), bytes(range(256)) * 1000
    assert one.hear(30)["heard"] == {}
    found = one.ask({"b": 2}, content)
    assert (found["heard"], found.content) == ({"b": 2}, content[::-1])
    assert found["pid"] == one.pid
    assert one.alive
    one.kill()
    with pytest.raises(EOFError, match="SIGKILL"):
        one.ask({"c": 3})
    assert not one.alive
    one.close()


def test_a_child_leaves_an_interrupt_to_its_parent_and_goes_when_nothing_is_asked(echoes):
    one = child.Child(echoes, {}, environment={"IDLE": "3"})
    assert one.hear(30)["heard"] == {}
    os.kill(one.pid, signal.SIGINT)
    assert one.ask({"d": 4})["heard"] == {"d": 4}
    if sys.platform.startswith("linux"):
        assert int(Path(f"/proc/{one.pid}/oom_score_adj").read_text()) > 0, "memory runs out: the child goes first"
    assert one.hear(30) is None
    assert one.how_it_ended() == "it ended with status 0"
    one.close()


@pytest.mark.parametrize("halted", [False, pytest.param(True, marks=pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux only: elsewhere no child is halted"))])  # fmt: skip
def test_a_child_ends_with_its_parent(hangs, halted):
    """Also while it hangs, or is halted: a process left behind would hold the device."""
    text = (
        "import time; from convdispatch.device.child import Child; one = Child('hangs_for_ever', {}); "
        "one.hear(30); one.say({'sleep': 1}); "
        f"{'one.halt(); ' if halted else ''}print(one._process.pid, flush=True); time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:  # ended; nobody reaps it here
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the child outlived its parent")


ENDLESS = """
import itertools, time
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Forever:
    def __init__(self, first):
        self.first = first

    def __iter__(self):
        yield self.first
        yield from ({**self.first, "number": number} for number in itertools.count())

class Endless(Im2col):
    name = "endless.im2col"

    def configs(self, problem, device):
        first = next(iter(super().configs(problem, device)))
        if "KIND" == "generator":
            return iter(Forever(first))
        if "KIND" == "object":
            return Forever(first)
        while True:
            time.sleep(0.1)

@hookimpl
def convdispatch_solvers():
    return [Endless()]
"""


@pytest.mark.parametrize(("kind", "words"), [
    ("generator", "configs must end, after 1000 at most"),
    ("object", "configs must end, after 1000 at most"),
    ("sleeps", "it did not end in 2 earlier cases, and is not asked any more"),
])  # fmt: skip
def test_configurations_without_an_end_come_to_a_verdict(device, write_plugin, hanging, kind, words):
    write_plugin("endless", ENDLESS.replace("KIND", kind))
    report = verify("endless", "core", device, case="1x1*", jobs=1, timeout_s=3.0)
    assert not report.passed
    assert {outcome.status for outcome in report.outcomes} == {"failed"}
    assert any(words in outcome.reason for outcome in report.outcomes)
