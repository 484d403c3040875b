"""Plugins that end processes: doctor names them, the next process skips them, find tries them in a child first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from anew import read_anew
from command_line import run_cli

import convdispatch as cd
from convdispatch.device import child
from convdispatch.selection.plugins import loader, verdicts

ENDS = {
    "crashes": ("import os; os.abort()", "it crashes as it is imported (SIGABRT)"),
    "segv": ("import ctypes; ctypes.string_at(0)", "it crashes as it is imported (SIGSEGV)"),
    "exits": ("import os; os._exit(0)", "it ends the process as it is imported (exit 0)"),
    "hangs": ("import time; time.sleep(1000)", "it hangs as it is imported: not done within 600 s"),
}
PLUGIN = """
import ctypes, os, time
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Odd(Im2col):
    name = "odd.solver"
    def rejects(self, problem, device):
        return None if problem.kh == 3 else "3x3 only"
    def cost(self, problem, device, config):
        return 1e-12
    def plan(self, context, problem, config):
        return Plan(super().plan(context, problem, config))

class Plan:
    def __init__(self, plan):
        self.plan, self.workspace_size = plan, plan.workspace_size
    def enqueue(self, queue, x, w, y, workspace, wait_for=None, **extras):
        {fault}
        return self.plan.enqueue(queue, x, w, y, workspace, wait_for, **extras)

@hookimpl
def convdispatch_solvers():
    return [Odd()]
"""
WRONG = """import pyopencl as cl, numpy as np
        return cl.enqueue_fill_buffer(queue, y, np.float32(1), 0, y.size)"""
HANGS = """open(os.environ["HANGING"] + f"/{os.getpid()}", "x")
        time.sleep(1000)"""
FAULTS = {
    "wrong": (WRONG, r"wrong: relative error"),
    "crashes": ("os.abort()", r"failed: in a child process: it was killed by SIGABRT"),
    "exits": ("os._exit(0)", r"failed: in a child process: it ended with status 0"),
    "hangs": (HANGS, r"failed: in a child process: it gave no answer within"),
}
PROBLEM = cd.ConvProblem(mb=1, ic=4, ih=6, iw=6, oc=4, kh=3, kw=3)
X, W = np.ones(PROBLEM.x_shape, np.float32), np.ones(PROBLEM.w_shape, np.float32)
CALL = """
import warnings, numpy as np, convdispatch as cd
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    y = cd.conv(np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32))
print((y == 36).all(), *[str(one.message) for one in said if one.category is cd.ConvDispatchWarning])
"""


@pytest.fixture
def put(tmp_path, monkeypatch, read_anew):
    """A function that writes the plugin ``odd``, beside im2col, in a world of its own."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "registry.yaml").write_text("rules:\n  - prefer: ['odd.*', 'im2col*']\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path / "plugins"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "im2col,odd")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(tmp_path / "registry.yaml"))
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def write(text):
        (tmp_path / "plugins" / "odd.py").write_text(textwrap.dedent(text))
        read_anew()

    return write


def call():
    return subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kind", ENDS)
def test_doctor_names_a_plugin_that_ends_the_process(put, monkeypatch, kind):
    text, words = ENDS[kind]
    run = subprocess.run

    def impatient(command, **more):
        """What hangs is waited for briefly, the others as long as a slow machine takes."""
        return run(command, **more | ({"timeout": 1.0} if kind == "hangs" and command[-1] == "odd" else {}))

    monkeypatch.setattr(child.subprocess, "run", impatient)
    put(text)
    result = run_cli("doctor", "--no-probe", "--json", catch_exceptions=False)
    report = json.loads(result.stdout)
    (odd,) = [entry for entry in report["plugins"] if entry["name"] == "odd"]
    assert odd["status"] == "failed"
    assert odd["reason"] == f"{words}; skipped"
    assert any("CONVDISPATCH_BLOCK=odd" in line for line in report["advice"])
    assert [entry["status"] for entry in report["plugins"] if entry["name"] == "im2col"] == ["loaded"]
    done = call()  # another process skips it, and is right
    assert done.returncode == 0
    assert done.stdout.startswith(f"True plugin odd was set aside: {words}; skipped")


def test_the_first_process_survives_a_plugin_that_nobody_looked_at(put):
    put(ENDS["segv"][0])
    for _ in range(2):
        done = call()
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"True plugin odd was set aside: {ENDS['segv'][1]}; skipped")


def test_doctor_again_lifts_it_and_so_does_another_text(put, tmp_path):
    sound = PLUGIN.format(fault="pass")
    put(f"import pathlib\nif pathlib.Path({str(tmp_path / 'bad')!r}).exists():\n    import os; os.abort()\n{sound}")
    (tmp_path / "bad").touch()
    run_cli("doctor", "--no-probe", catch_exceptions=False)
    (tmp_path / "bad").unlink()
    assert "set aside" in call().stdout
    run_cli("doctor", "--no-probe", catch_exceptions=False)
    assert "set aside" in call().stdout
    read_anew()
    result = run_cli("doctor", "--no-probe", "--again", "--json", catch_exceptions=False)
    assert [e["status"] for e in json.loads(result.stdout)["plugins"] if e["name"] == "odd"] == ["loaded"]
    assert call().stdout.strip() == "True"
    put("import os; os.abort()")
    run_cli("doctor", "--no-probe", catch_exceptions=False)
    put(sound)
    assert call().stdout.strip() == "True"


@pytest.mark.parametrize("kind", FAULTS)
def test_find_survives_and_a_fresh_process_does_not_choose_it_again(put, hanging, kind):
    fault, words = FAULTS[kind]
    put(PLUGIN.format(fault=fault))
    with pytest.warns(cd.ConvDispatchWarning, match=words):
        results = cd.find(PROBLEM, budget_ms=1500)
    assert results.winner.solver.startswith("im2col")
    read_anew()
    verdict = next(v for v in cd.explain(PROBLEM).verdicts if v.solver == "odd.solver")
    assert verdict.status == "quarantined"
    assert re.search(words + ".*seen earlier on this machine", verdict.reason)
    np.testing.assert_array_equal(cd.conv(X, W), np.full(PROBLEM.y_shape, 36, np.float32))
    assert cd.explain(PROBLEM.replace(ih=7, iw=7)).verdicts[0].solver == "odd.solver"  # of which nothing was seen
    verdicts.lift(PROBLEM)
    assert next(v for v in cd.explain(PROBLEM).verdicts if v.solver == "odd.solver").status != "quarantined"


def test_a_verified_plugin_needs_no_child(put, monkeypatch):
    from convdispatch.measurement.search import probing

    put(PLUGIN.format(fault="pass"))
    asked = []
    monkeypatch.setattr(probing.Prober, "ask", lambda self, solver, *a, **k: asked.append(solver) or ("right", ""))
    cd.find(PROBLEM, budget_ms=1500, store=False)
    assert set(asked) == {"odd.solver"}
    asked.clear()
    verdicts.trust("odd", loader.plugins().fingerprints["odd"])
    cd.find(PROBLEM, budget_ms=1500, store=False)
    assert not asked
    put(PLUGIN.format(fault="pass; pass"))  # another text
    cd.find(PROBLEM, budget_ms=1500, store=False)
    assert set(asked) == {"odd.solver"}


def test_a_damaged_file_costs_no_call(put, tmp_path):
    put(PLUGIN.format(fault="pass"))
    info = cd.runtime.device_info(cd.runtime.default_device())
    verdicts.note(PROBLEM, info, "im2col", loader.plugins().fingerprint("im2col"), "find: wrong")
    verdicts.trust("odd", "1")
    assert "im2col" not in cd.explain(PROBLEM).chosen
    for file in (tmp_path / "db").glob("*.verdicts"):
        file.write_bytes(file.read_bytes()[:-1])
    read_anew()
    assert not verdicts.verdicts()
    np.testing.assert_array_equal(cd.conv(X, W), np.full(PROBLEM.y_shape, 36, np.float32))


def test_two_processes_add_verdicts_at_once(put, tmp_path):
    put(PLUGIN.format(fault="pass"))
    program = "import sys; from convdispatch.selection.plugins import verdicts\n"
    program += "for number in range(40): verdicts.trust(f'{sys.argv[1]}{number}', '1')"
    both = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "ab"]
    assert [each.wait() for each in both] == [0, 0]
    read_anew()
    assert all(verdicts.trusted(f"{name}{number}", "1") for name in "ab" for number in range(40))
    assert not verdicts.trusted("a0", "2")


def test_clearing_answers_or_the_store_keeps_verdicts(put, tmp_path):
    put(PLUGIN.format(fault="pass"))
    verdicts.trust("odd", "1")
    verdicts.note_answers("odd", "1", {"odd.solver": "it hangs"})
    read_anew()
    assert verdicts.answers("odd", "1") == {"odd.solver": "it hangs"}
    run_cli("cache", "clear", "trials", "answers", catch_exceptions=False)
    assert verdicts.answers("odd", "1") == {}
    read_anew()
    assert verdicts.trusted("odd", "1")
    verdicts.lift()
    assert verdicts.trusted("odd", "1")
