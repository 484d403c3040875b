"""A cluster of CPU workers: what is measured where, and once; workers that die; restarts."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from command_line import run_cli
from farms import PACED, farm_of_two, own_records

from convdispatch import find_many
from convdispatch.api.errors import NoDevice
from convdispatch.api.problem import ConvProblem
from convdispatch.cluster import offers
from convdispatch.cluster.running import Failed, Run, Task
from convdispatch.device import runtime
from convdispatch.selection.plugins import loader
from convdispatch.selection.records import perfdb

distributed = pytest.importorskip("distributed", reason="pip install 'convdispatch[cluster]'")

SIZES = range(5, 13)
PROBLEMS = [f"mb1ic4ih{size}oc4kh3ph1" for size in SIZES]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """In this module, in every process: the paced solver alone."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "plugins").mkdir()
    (folder / "plugins" / "paced.py").write_text(PACED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONVDISPATCH_PLUGIN_DIR", str(folder / "plugins"))
        patch.setenv("CONVDISPATCH_PLUGINS", "paced")
        patch.setenv("PACED_LOG", str(folder / "log.txt"))
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        loader.reload()
        yield folder
    loader.reload()


@pytest.fixture(scope="module")
def farm(plugin):
    """Two workers of one kind of device; the second's solver is slower."""
    with farm_of_two(plugin, second={"PACED_WAIT": "0.004"}) as made:
        yield made


@pytest.fixture
def records(tmp_path, monkeypatch):
    """An own database; calling it answers every record that was ever written there."""

    def written():
        db = perfdb.perfdb()
        return [record for key in db.devices() for record in db.read_folder(db.folder / key)]

    with own_records(tmp_path / "db", monkeypatch):
        yield written


def client_of(farm):
    return distributed.Client(farm.address, set_as_default=False)


def test_problems_are_measured_once_on_one_device_at_a_time_and_recorded_with_who_did_it(farm, records):
    told = []
    with client_of(farm) as client:
        found = find_many(PROBLEMS[:4], client=client, budget_ms=300, tell=told.append)
        assert find_many(PROBLEMS[:4], client=client, budget_ms=300, tell=told.append) == []  # goes on
    assert told == []
    assert {str(results.problem) for results in found} == {str(ConvProblem.parse(text)) for text in PROBLEMS[:4]}
    info = runtime.device_info(runtime.find_device("intel"))
    assert all(results.device == info and results.winner.solver == "paced" for results in found)
    assert {results.worker.partition("/")[0] for results in found} == {"one", "two"}
    written = records()
    assert sorted(record.problem for record in written) == sorted(str(results.problem) for results in found)
    by_problem = {str(results.problem): results.worker for results in found}
    assert all(record.worker == by_problem[record.problem] for record in written)
    assert all(record.provenance.plugin == "paced" and record.provenance.kernel_hash for record in written)
    assert all(record.provenance.driver == info.driver for record in written)
    # Both workers' searches compile on the one CPU, and their times never overlap.
    spans = sorted(tuple(map(float, line.split()[1:3])) for line in farm.log.read_text().splitlines())
    assert len(spans) >= 4
    assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("name", "env"), [("pocl", {}), ("intel", {"CL_CONFIG_CPU_TARGET_ARCH": "core-avx2"})], ids=["pocl", "avx2"]
)
def test_every_kind_of_device_gets_every_problem(farm, records, name, env):
    try:
        runtime.find_device(name)
    except NoDevice as error:
        pytest.skip(str(error))
    if env and "simd512" not in offers.offers_of_this_machine(["intel"])[0].key:
        pytest.skip("AVX2 is what this processor's own kind has")
    farm.worker("other", name, **env)
    try:
        found = find_many(PROBLEMS[:2], farm.address, "all", budget_ms=300)
    finally:
        farm.end_one("other")
    assert {(str(r.problem), r.worker.startswith("other/")) for r in found} == {
        (str(ConvProblem.parse(text)), other) for text in PROBLEMS[:2] for other in (True, False)
    }
    assert len({record.device for record in records()}) == 2
    assert len({(r.device.vendor, r.device.arch) for r in found}) == 2


def test_a_worker_that_is_killed_costs_its_task_alone(farm, records):
    """Killed with all its processes in the middle: its task runs again elsewhere, nothing is lost, nothing twice."""
    before = len(farm.log.read_text().splitlines())
    found, told = [], []
    killed = threading.Event()

    def kill(results):
        found.append(results)
        if not killed.is_set():
            killed.set()
            with client_of(farm) as client:
                pids = client.run(os.getpid)
                names = {a: w["name"] for a, w in client.scheduler_info()["workers"].items()}
            os.kill(next(pid for address, pid in pids.items() if names[address].startswith("one/")), signal.SIGKILL)

    find_many(PROBLEMS, farm.address, budget_ms=300, each=kill, tell=told.append)
    assert killed.is_set()
    wanted = sorted(str(ConvProblem.parse(text)) for text in PROBLEMS)
    assert sorted(str(results.problem) for results in found) == wanted
    assert sorted(record.problem for record in records()) == wanted
    begun = len(farm.log.read_text().splitlines()) - before
    assert begun <= len(PROBLEMS) + 2  # what the dead worker was at, and what it had answered but not yet handed over
    assert [words for words in told if "waiting" not in words] == []


def test_an_interrupt_keeps_what_is_done_and_the_next_run_goes_on(farm, records, plugin):
    command = [sys.executable, "-m", "convdispatch", "find", *PROBLEMS, "--budget", "300"]
    command += ["--cluster", farm.address, "--device", "cpu", "--json"]
    # Where this run is a background task, SIGINT is ignored, and children inherit that.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heard) as process:
        until = time.monotonic() + 60
        while not records() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert "run again to go on" in err, err
    done = {results["problem"] for results in json.loads(out)}
    assert 1 <= len(done) < len(PROBLEMS)
    assert {record.problem for record in records()} == done
    perfdb.perfdb().refresh()
    rest = find_many(PROBLEMS, farm.address, budget_ms=300)
    assert {str(results.problem) for results in rest} == {str(ConvProblem.parse(text)) for text in PROBLEMS} - done


def test_what_an_interrupt_finds_recorded_has_been_told_of(farm, records, monkeypatch):
    """Ctrl-C in the middle of recording: the search is whole, in the database and in what was told."""
    written, told = perfdb.PerfDB.record, []

    def interrupted(self, *new):
        signal.raise_signal(signal.SIGINT)
        written(self, *new)

    monkeypatch.setattr(perfdb.PerfDB, "record", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            find_many(PROBLEMS[:4], farm.address, budget_ms=300, each=told.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [record.problem for record in records()] == [str(results.problem) for results in told]
    assert len(told) == 1


def test_a_task_costs_little_beside_its_work_and_failures_are_said(farm):
    with client_of(farm) as client:
        run = Run(client)
        (key,) = run.kinds
        run.add(*(Task(str(i), key, int, (i,)) for i in range(100)))
        assert sorted(answer for _, answer in run.answers()) == list(range(100))
        run.add(Task("no number", key, int, ("x",)))
        ((_, failed),) = run.answers()
        assert isinstance(failed, Failed)
        assert "invalid literal" in str(failed)
        with pytest.raises(NoDevice, match="no worker of the cluster offers a device that"):
            find_many(PROBLEMS, client, devices=["nvidia"])


def test_plugins_are_verified_and_layers_timed_on_every_kind_of_device(farm, tmp_path):
    report = tmp_path / "kit.json"
    options = ["--level", "core", "--case", "1x1_s*", "--cluster", farm.address]
    done = run_cli("verify", "paced", *options, "--json", str(report), status=0)
    assert "paced" in done.output
    assert "passed" in done.output
    (made,) = json.loads(report.read_text())
    assert made["verdict"].startswith("passed")
    assert len(made["outcomes"]) == len({outcome["case"] for outcome in made["outcomes"]}) >= 1
    assert made["environment"]["device"]["vendor"] == "intel"
    told = tmp_path / "bench.json"
    done = run_cli("bench", *PROBLEMS[:2], "--no-find", "--cluster", farm.address, "--json", str(told), status=0)
    (measured,) = [json.loads(path.read_text()) for path in tmp_path.glob("bench*.json")]
    assert {str(ConvProblem.parse(text)) for text in PROBLEMS[:2]} == set(measured["measured"])
