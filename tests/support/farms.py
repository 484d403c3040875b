"""Processes for tests: farms of them for clusters, a solver that says when it worked, a patient command line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from convdispatch.api.errors import NoDevice
from convdispatch.device import runtime
from convdispatch.selection import dispatch
from convdispatch.selection.records import perfdb

PATIENT = [
    sys.executable,
    "-c",
    "from convdispatch.tools.cli import interrupts, run; interrupts.DEAF_S = interrupts.ENDING_S = 300.0; run()",
]
"""The command line, with minutes to end in once a signal was sent: a busy machine takes longer than users wait."""

PACED = """
import os, time
from pathlib import Path
from convdispatch_im2col import Im2col
from convdispatch.api import hookimpl

class Paced(Im2col):
    name = "paced"

    def cost(self, problem, device, config):
        return 1.0

    def configs(self, problem, device):
        return list(super().configs(problem, device))[:1]

    def plan(self, context, problem, config):
        begun = time.time()
        plan = super().plan(context, problem, config)
        time.sleep(0.25)
        with Path(os.environ["PACED_LOG"]).open("a") as file:
            file.write(f"{problem} {begun} {time.time()} {os.environ.get('PACED_WAIT', '')}\\n")
        enqueue = plan.enqueue
        def slower(*arguments, **named):
            time.sleep(float(os.environ.get("PACED_WAIT") or 0))
            return enqueue(*arguments, **named)
        plan.enqueue = slower
        return plan

@hookimpl
def convdispatch_solvers():
    return [Paced()]
"""


class Farm:
    """A scheduler and its workers, each a process; ``options`` are those of all their commands."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.log, self.options = folder, folder / "log.txt", options
        self.processes: dict[str, subprocess.Popen] = {}
        self.address = json.loads(self.start("cluster", "cluster", "--port", "0", "--json"))["address"]

    def start(self, name, *words, **env):
        """The first line that a command prints, which then runs on."""
        env = {**os.environ, "PACED_LOG": str(self.log), "CONVDISPATCH_DB": str(self.folder / f"db-{name}"), **env}
        command = [sys.executable, "-m", "convdispatch", *words, *self.options]
        process = self.processes[name] = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        return process.stdout.readline()

    def worker(self, name, device="intel", **env):
        assert "offers" in self.start(name, "worker", self.address, "--device", device, "--name", name, **env)

    def end_one(self, name):
        process = self.processes.pop(name)
        process.terminate()
        process.wait(120)
        process.stdout.close()

    def end(self):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(120)
            process.stdout.close()


@contextlib.contextmanager
def farm_of_two(folder: Path, *options: str, second: Mapping[str, str] = MappingProxyType({})) -> Iterator[Farm]:
    """Two workers of one kind of device and their scheduler; the ``second`` may have variables of its own."""
    try:
        runtime.find_device("intel")
    except NoDevice as error:
        pytest.skip(str(error))
    made = Farm(folder, *options)
    threads = [
        threading.Thread(target=made.worker, args=("one",)),
        threading.Thread(target=made.worker, args=("two",), kwargs=dict(second)),
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def own_records(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database of a test's own."""
    patch.setenv("CONVDISPATCH_DB", str(folder))
    perfdb.perfdb.cache_clear()
    dispatch.forget()
    yield
    perfdb.perfdb.cache_clear()
