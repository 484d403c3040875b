"""Ctrl-C and SIGTERM end the commands with a line, whatever holds them; a compiler at work does not abort the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convdispatch.selection.records.perfdb import PerfDB

PLUGIN = """
import ctypes, os, pathlib, sys, time
from convdispatch_im2col import Im2col
from convdispatch.api import Solver, build, hookimpl

class Odd(Im2col):
    def __init__(self, name):
        self.name = name
    def rejects(self, problem, device):
        wanted = {"odd.good": (1, 3, 5), "odd.hangs": (3,), "odd.slow": (5,)}[self.name]
        return None if problem.kh in wanted and problem.direction == "fwd" else "other kernels only"
    def cost(self, problem, device, config):
        return {"odd.good": 1.0, "odd.hangs": 2.0, "odd.slow": 3.0}[self.name] * problem.flops
    def plan(self, context, problem, config):
        if self.name == "odd.slow":
            note("compiling")
            body = "\\n".join(f"x = mad(x, {n}.5f, sin(x + {n}.25f)); if (x > {n}.125f) x = pow(x, 0.{n}f);"
                             for n in range(100, 6100))
            build(context, "kernel void slow(global float *p) { float x = p[get_global_id(0)]; "
                           + body + " p[0] = x; }")
        plan = super().plan(context, problem, config)
        return Hangs(plan) if self.name == "odd.hangs" else plan

def note(what):
    pathlib.Path(os.environ["NOTES"], what).touch()

class Hangs:
    def __init__(self, plan):
        self.plan, self.workspace_size = plan, plan.workspace_size
    def enqueue(self, *arguments, **more):
        lock, libc = ctypes.create_string_buffer(128), ctypes.CDLL(None)
        libc.pthread_mutex_lock(lock)
        note("hanging")
        libc.pthread_mutex_lock(lock)  # as a driver that waits for a kernel without end: no signal wakes it

@hookimpl
def convdispatch_solvers():
    return [Odd(name) for name in ("odd.good", "odd.hangs", "odd.slow")]
"""
GOOD, HANGS, SLOW = "mb1ic4ih6oc4kh1", "mb1ic4ih9oc4kh3", "mb1ic4ih9oc4kh5"
LINE = "interrupted"


@pytest.fixture
def start(tmp_path):
    """Starts a command in a process of its own, which has the plugin above beside im2col."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "odd.py").write_text(PLUGIN)
    jobs = []

    def begin(*words, plugins="odd", command=(sys.executable, "-W", "ignore", "-m", "convdispatch"), **more):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "CONVDISPATCH_PLUGIN_DIR": str(folder),
            "CONVDISPATCH_PLUGINS": plugins,
            "CONVDISPATCH_DB": str(tmp_path / "db"),
            "NOTES": str(tmp_path),
            **more,
        }
        job = subprocess.Popen(
            [*command, *map(str, words)],
            env=environment, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # Where this run is a background job, SIGINT is ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.kill()
        job.wait()


def wait_for(path: Path, job: subprocess.Popen) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


COMMANDS = {
    "find": ("find", GOOD, HANGS, "--budget", "60000", "--no-isolate"),
    "bench": ("bench", HANGS, "--budget", "60000", "--no-isolate"),
    "verify": ("verify", "odd", "--solver", "odd.hangs", "--level", "core", "--jobs", "0"),
}


@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param(
            words, number, id=f"{name}-{number.name}", marks=[] if (name == "bench") == turn else pytest.mark.full
        )
        for name, words in COMMANDS.items()
        for turn, number in enumerate((signal.SIGTERM, signal.SIGINT))
    ],
)
def test_a_kernel_that_hangs_does_not_hold_a_command(start, tmp_path, words, number):
    job = start(*words)
    wait_for(tmp_path / "hanging", job)
    time.sleep(0.2)  # until it hangs: what it does in Python before that would end as it should
    job.send_signal(number)
    _, said = job.communicate(timeout=120)
    assert job.returncode == 128 + number
    assert [line for line in said.splitlines() if LINE in line] == said.splitlines()[-1:]
    assert "recorded before is kept" in said
    if words[0] == "find":
        (key,) = (path.name for path in (tmp_path / "db").iterdir() if path.is_dir())
        assert PerfDB([tmp_path / "db"]).all(key)


def test_a_search_ends_cleanly_while_a_compiler_is_at_work(start, tmp_path):
    job = start("find", SLOW, "--budget", 8000, "--no-isolate", "--jobs", 0, CONVDISPATCH_KERNEL_CACHE="off")
    shown, said = job.communicate(timeout=200)
    assert job.returncode == 0, (shown, said)
    assert "odd.good" in shown
    assert (tmp_path / "compiling").exists()


def test_nothing_measured_is_an_error(start, tmp_path):
    job = start("find", "mb1ic4ih9oc4kh7", "--budget", 2000)
    _, said = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "nothing could be measured, and nothing is recorded, for fwd_f32_mb1ic4ih9iw9oc4kh7kw7" in said


def test_the_first_candidate_gets_its_compilation(start, tmp_path):
    job = start("find", GOOD, "--budget", 1, "--no-isolate", CONVDISPATCH_KERNEL_CACHE="off")
    shown, said = job.communicate(timeout=200)
    assert job.returncode == 0, (shown, said)
    assert "nothing could be measured" not in said
