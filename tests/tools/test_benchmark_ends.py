"""How the benchmark ends: by its time, a signal, a lost device; and what is compiled ahead of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import types

import pytest
from command_line import PATIENT, run_cli
from paths import SUPPORT

from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.api.problem import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement.peaks import Peak, Roof
from convdispatch.measurement.search.precompile import precompile
from convdispatch.measurement.shapes import Entry
from convdispatch.tools.benchmark import run
from convdispatch.tools.cli import options

TINY, OTHER = "mb1ic4ih9oc4kh3ph1", "mb1ic4ih6oc4kh1"
MORE = """
import os, time
from pathlib import Path
import pyopencl as cl
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Odd(Im2col):
    def __init__(self, name, count):
        self.name, self.count = name, count

    def configs(self, problem, device):
        return [{"turn": turn} for turn in range(self.count)]

    def cost(self, problem, device, config):
        return None if self.name == "odd.library" else 1.0 + config["turn"]

    def workspace(self, problem, device, config):
        return None

    def plan(self, context, problem, config):
        with Path(os.environ["COMPILED"]).open("a") as file:
            file.write(f"{problem} {self.name} {config['turn']}\\n")
        if self.name == "odd.loses" and problem.kh == 3:
            def refuse(*arguments, **named):
                raise cl.LogicError("clSomething failed: INVALID_COMMAND_QUEUE")
            cl.enqueue_copy = cl.enqueue_fill_buffer = refuse  # as a GPU's context after a kernel that faults
        if self.name == "odd.sleeps":
            time.sleep(600)
        if self.name == "odd.dies" and config["turn"] == 1:
            os.abort()
        return super().plan(context, problem, next(iter(super().configs(problem, _info(context)))))

def _info(context):
    from convdispatch.device import runtime
    return runtime.device_info(context.devices[0])

@hookimpl
def convdispatch_solvers():
    return [Odd(name, int(count)) for name, _, count in (w.partition("=") for w in os.environ["ODD"].split(","))]
"""


@pytest.fixture
def solvers(monkeypatch, tmp_path, device, read_anew):
    """``solvers(FAULTS="good,hangs")`` or ``solvers(ODD="odd.a=2")`` makes these the only ones, in children too."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "odd.py").write_text(MORE)
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("COMPILED", str(tmp_path / "compiled"))

    def only(**names):
        (kind, value), *_ = names.items()
        place = {"FAULTS": SUPPORT / "faulty_plugin", "ODD": folder}[kind]
        monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(place))
        monkeypatch.setenv("CONVDISPATCH_PLUGINS", {"FAULTS": "faulty", "ODD": "odd"}[kind])
        monkeypatch.setenv(kind, value)
        read_anew()

    return only


@pytest.fixture
def roofs(monkeypatch):
    """Ceilings that are known: they take 2 seconds, and one test that measures them is enough."""
    known = Roof("float32", Peak(1e12, "told"), Peak(1e11, "told"))
    monkeypatch.setattr(run, "measure_roof", lambda device, dtype: known)


def entries(*texts):
    return {"net": [Entry(text, ConvProblem.parse(text), 1) for text in texts]}


def test_who_crashes_costs_one_candidate_where_each_is_tried_in_a_child(solvers, device, roofs):
    solvers(FAULTS="good,crashes")
    with pytest.warns(ConvDispatchWarning, match="faulty.crashes is set aside"):
        (found,) = run.run(entries(TINY), device, isolate=True, budget_ms=60_000).measured.values()
    rows = {row.solver: (row.status, row.reason) for row in found.rows}
    assert rows["faulty.crashes"][0] == "failed"
    assert "killed by SIGABRT" in rows["faulty.crashes"][1]
    assert found.best.solver == "faulty.good"


def test_a_lost_device_ends_the_run_and_is_said(solvers, device, roofs):
    solvers(ODD="odd.good=1,odd.loses=1")
    command = [sys.executable, "-W", "ignore", "-m", "convdispatch", "bench", TINY, OTHER]
    done = subprocess.run([*command, "--no-isolate", "--budget", "60000"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "odd.loses left a device that nothing runs on: run again, with --isolate" in said
    assert "interrupted: 1 problems are not measured" in said


def test_the_time_ends_it_and_what_was_measured_is_there(solvers, device, roofs, tmp_path, monkeypatch):
    """After the first problem, however slow the machine is: then this clock jumps."""
    solvers(FAULTS="good")
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * (tmp_path / "r.json").exists())
    monkeypatch.setattr("convdispatch.tools.benchmark.run.time", clock)
    problems = [OTHER, *(f"mb1ic4ih{size}oc4kh3ph1" for size in range(9, 30))]
    options = ["--no-isolate", "--within", "900", "--budget", "600", "--json", str(tmp_path / "r.json")]
    done = run_cli("bench", *problems, *options, status=0)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["interrupted"]
    assert 0 < len(report["measured"]) < len(problems)
    assert "problems are not measured" in done.output


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
def test_a_benchmark_that_a_signal_ends_leaves_its_json(solvers, device, tmp_path, end):
    """As a job's time limit ends it: no warning, and no journal was asked for."""
    solvers(FAULTS="good")
    path = tmp_path / "r.json"
    command = [*PATIENT, "bench", "--no-isolate", "--budget", "300", "--json", str(path)]
    problems = [f"mb1ic4ih{size}oc4kh3ph1" for size in range(9, 200)]
    job = subprocess.Popen([*command, *problems], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    limit = time.monotonic() + 300
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    job.send_signal(end)
    said, _ = job.communicate(timeout=200)
    report = json.loads(path.read_text())
    assert report["interrupted"]
    assert report["measured"]
    if end == signal.SIGTERM:
        assert job.returncode == 130
        assert "problems are not measured" in said
        shown = shlex.join(["bench", "--no-isolate", "--budget", "300", "--json", "r.json", *problems])
        assert report["settings"]["command"] == f"convdispatch {shown}", (
            "again as it was, without this machine's folders"
        )


def test_no_regret_rests_on_two_candidates(solvers, device, roofs):
    solvers(FAULTS="good,slow")
    report = run.run(entries(TINY), device, isolate=False, budget_ms=3000)
    assert [found.regret for found in report.measured.values()] == [None]


# --- compiling ahead --------------------------------------------------------------------------------------------------


def compiled(tmp_path):
    return [tuple(line.split()) for line in (tmp_path / "compiled").read_text().splitlines()]


def test_each_problem_s_first_candidates_are_compiled_first(solvers, device, tmp_path):
    solvers(ODD="odd.a=2,odd.b=1")
    problems = [ConvProblem.parse(text) for text in (TINY, OTHER)]
    assert precompile(problems, runtime.address(device), 1, 60.0) == 6
    turns = [(name, turn) for _, name, turn in compiled(tmp_path)]
    assert turns == [(n, t) for n, t in (("odd.a", "0"), ("odd.b", "0"), ("odd.a", "1")) for _ in problems]


def test_a_library_is_not_loaded_in_each_process(solvers, device, tmp_path):
    solvers(ODD="odd.library=3,odd.a=1")
    assert precompile([ConvProblem.parse(TINY)], runtime.address(device), 1, 60.0) == 1
    assert [name for _, name, _ in compiled(tmp_path)] == ["odd.a"]


def test_a_compiler_that_dies_costs_its_candidate(solvers, device, tmp_path):
    solvers(ODD="odd.dies=3")
    problems = [ConvProblem.parse(text) for text in (TINY, OTHER)]
    assert precompile(problems, runtime.address(device), 2, 60.0) == 4
    assert sorted(turn for _, _, turn in compiled(tmp_path)) == ["0", "0", "1", "1", "2", "2"]


def test_compiling_ahead_ends_with_its_time(solvers, device):
    solvers(ODD="odd.sleeps=1")  # for ten minutes: it is the time that ends it, and nothing was compiled
    assert precompile([ConvProblem.parse(TINY)], runtime.address(device), 2, 0.3) == 0


def test_the_default_is_all_processors_for_a_gpu_alone(device):
    from dataclasses import replace

    info = replace(runtime.device_info(device), type="cpu")
    assert options.processes(None, info) == 0
    assert options.processes(3, info) == 3
    assert options.processes(None, replace(info, type="gpu")) == min(16, os.cpu_count())
    assert options.processes(0, replace(info, type="gpu")) == 0


# --- find, which has no child -----------------------------------------------------------------------------------------


def run_find(*words):
    command = [sys.executable, "-W", "ignore", "-m", "convdispatch", "find", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_find_stops_where_the_device_is_lost_and_isolated_goes_on(solvers, device, tmp_path):
    solvers(ODD="odd.good=1,odd.loses=1,odd.zealous=1")
    done = run_find(OTHER, TINY, "--budget", "60000", "--no-isolate")
    assert done.returncode == 1
    assert "odd.loses left a device that nothing runs on" in done.stderr
    assert "--isolate" in done.stderr
    again = run_find(OTHER, TINY, "--budget", "60000", "--isolate", "--again")
    assert again.returncode == 0, again.stderr
    assert str(ConvProblem.parse(TINY)) in again.stdout
    assert "odd.zealous" in again.stdout.partition(str(ConvProblem.parse(TINY)))[2]


def test_find_compiles_ahead(solvers, device, tmp_path):
    solvers(ODD="odd.a=2")
    done = run_find(TINY, "--budget", "20000", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert len(compiled(tmp_path)) >= 4, "two beforehand, two as they were measured"
