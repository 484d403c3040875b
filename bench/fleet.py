"""Tunes layers on 1, 2 and 4 GPUs of one machine by a cluster: how much sooner, what a task costs, what a death costs.

    python bench/fleet.py --gpus 2 --gpus 1 --problems 40 --budget 1000      # each with caches and records of its own
    python bench/fleet.py --device intel --gpus 1 --problems 4 --budget 300 --small --net lenet --batch 8  # a rehearsal

Every number of GPUs begins with empty caches of compiled kernels; what is timed is ``find_many``, from when each worker
has measured one small problem, which starts its processes, until the last record is stored.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from convdispatch.measurement import shapes

FIRST = "mb1ic16ih14oc16kh3ph1"
DIRECTIONS = ("fwd", "bwd_data", "bwd_weights")


@contextlib.contextmanager
def farm(devices: list[str], folder: Path) -> Iterator[str]:
    """A scheduler and a worker for each device, with caches of their own; its address."""
    env = {**os.environ, "CUDA_CACHE_PATH": str(folder / "cuda"), "XDG_CACHE_HOME": str(folder / "cache")}
    env |= {"CONVDISPATCH_DB": str(folder / "workers"), "CONVDISPATCH_KERNEL_CACHE": str(folder / "kernels")}
    env["CONVDISPATCH_RATES"] = "off"  # or only who comes first would measure them
    (folder / "cache").mkdir(parents=True)
    command = [sys.executable, "-m", "convdispatch"]
    processes = [subprocess.Popen([*command, "cluster", "--port", "0", "--json"], env=env, stdout=-1, text=True)]
    try:
        address = json.loads(processes[0].stdout.readline())["address"]
        for number, device in enumerate(devices):
            words = ["worker", address, "--device", device, "--name", f"worker{number}"]
            processes.append(subprocess.Popen([*command, *words], env=env, stdout=-1, text=True))
        for process in processes[1:]:
            if not process.stdout.readline():
                raise click.ClickException("a worker did not start")
        yield address
    finally:
        for some in (processes[1:], processes[:1]):  # the scheduler last, so that nobody looks for it
            for process in some:
                process.terminate()
            for process in some:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(8)
                process.kill()


@contextlib.contextmanager
def database(folder: Path) -> Iterator[None]:
    """Records go to an own folder."""
    from convdispatch.selection import dispatch
    from convdispatch.selection.records import perfdb

    os.environ["CONVDISPATCH_DB"] = str(folder / "db")
    perfdb.perfdb.cache_clear()
    dispatch.forget()
    yield
    perfdb.perfdb.cache_clear()


def stored() -> list[Any]:
    """Every record that was written."""
    from convdispatch.selection.records.perfdb import perfdb

    return [record for key in perfdb().devices() for record in perfdb().read_folder(perfdb().folder / key)]


def problems(count: int, small: bool) -> list[Any]:
    """Layers of several nets, each in the three directions, shuffled alike every time."""
    import random

    names = ("cpu10",) if small else ("resnet50", "vgg_a", "googlenet", "overfeat")
    found = [e.problem.replace(direction=d) for name in names for e in shapes.load(name) for d in DIRECTIONS]
    found = list(dict.fromkeys(found))
    random.Random(0).shuffle(found)
    return found[:count]


def tune(devices: list[str], wanted: list[Any], budget_ms: float) -> dict[str, Any]:
    """Seconds of find_many on these devices, and who did how much."""
    from convdispatch import find_many

    with tempfile.TemporaryDirectory() as name, farm(devices, Path(name)) as address, database(Path(name)):
        find_many([FIRST], address, budget_ms=200, agree=1, tell=print)
        begun, ended = time.perf_counter(), []
        found = find_many(wanted, address, budget_ms=budget_ms, agree=0, tell=print, each=lambda r: ended.append(r))
        spent = time.perf_counter() - begun
        by = {worker: sum(r.worker == worker for r in found) for worker in sorted({r.worker for r in found})}
        searching = sum(r.spent_ms for r in found) / 1e3
        made = {"gpus": len(devices), "problems": len(wanted), "found": len(found), "s": round(spent, 2), "by": by,
                "searching_s": round(searching, 2), "winners": sum(r.winner is not None for r in found),
                "records": len(stored()), "compile_ms": round(sum(x.compile_ms or 0 for r in found for x in r)),
                "tried": statistics.mean(sum(x.median_ms is not None for x in r) for r in found)}  # fmt: skip
        print(json.dumps(made), flush=True)
        return made


def overhead(address: str, count: int = 1000) -> float:
    """Milliseconds a task of no work takes a device, a few given at a time."""
    from convdispatch.cluster.connecting import Workers, connected
    from convdispatch.cluster.running import Job, Run
    from convdispatch.cluster.tasks import idle

    with connected(address) as client:
        run = Run(client, Workers(client))
        (key,) = run.kinds
        devices = len(run.kinds[key].workers)
        run.add(*(Job("", key, idle, (number,)) for number in range(count)))
        begun = time.perf_counter()
        assert sum(answer for _, answer in run.answers()) == count * (count - 1) // 2
        return (time.perf_counter() - begun) / count * 1e3 * devices


def death(address: str, wanted: list[Any], budget_ms: float) -> dict[str, Any]:
    """What is lost when a worker is killed in the middle, and what is measured twice."""
    import distributed

    from convdispatch import find_many

    killed = threading.Event()

    def kill(results: Any) -> None:
        if not killed.is_set():
            killed.set()
            with distributed.Client(address, set_as_default=False) as client:
                os.kill(client.run(os.getpid)[min(client.scheduler_info()["workers"])], signal.SIGKILL)

    told: list[str] = []
    found = find_many(wanted, address, budget_ms=budget_ms, agree=0, each=kill, tell=told.append)
    searched = {(r.problem, r.worker, r.solver, json.dumps(dict(r.config), sort_keys=True)) for r in stored()}
    twice = len(found) - len({str(r.problem) for r in found})
    made = {"killed": killed.is_set(), "wanted": len(wanted), "found": len(found), "twice": twice, "told": told,
            "records": len(stored()), "distinct": len(searched)}  # fmt: skip
    print(json.dumps(made), flush=True)
    return made


def agreement(address: str, wanted: list[Any], budget_ms: float) -> dict[str, Any]:
    """How many problems two devices of a kind disagree on."""
    from convdispatch import find_many

    told: list[str] = []
    found = find_many(wanted, address, budget_ms=budget_ms, agree=1, again=True, tell=told.append)
    made = {
        "problems": len(found),
        "disagree": sum("both records are in doubt" in words for words in told),
        "told": told,
    }
    print(json.dumps(made), flush=True)
    return made


def inference(net: str, batch: int, devices: list[str], rounds: int = 24) -> dict[str, Any]:
    """Pictures a second of one device and of all, brought from and to the host."""
    import numpy as np

    from convdispatch import inference as door
    from convdispatch.models import catalogue

    shape = (batch, 1, 28, 28) if net == "lenet" else (batch, 3, 224, 224)
    model = catalogue.create(net)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    made: dict[str, Any] = {"net": net, "batch": batch}
    every = door.build(model.eval(), shape, devices=devices, layout="nchw", queues=1)
    one = type(every)(every.nets[:1], batch)
    results = list(every.map([x] * (2 * len(devices))))
    made["equal"] = all(np.array_equal(result, results[0]) for result in results)
    for turn in range(2):
        for name, nets in (("one", one), (f"all {len(devices)}", every)):
            begun = time.perf_counter()
            for _ in nets.map(x for _ in range(rounds)):
                pass
            made[f"{name}, turn {turn}"] = round(rounds * batch / (time.perf_counter() - begun), 1)
    print(json.dumps(made), flush=True)
    return made


@click.command()
@click.option("--gpus", multiple=True, type=int, default=(1, 2, 4), show_default=True)
@click.option("--device", default="nvidia", show_default=True)
@click.option("--problems", "count", default=288, show_default=True)
@click.option("--budget", "budget_ms", default=3000.0, show_default=True)
@click.option("--small", is_flag=True, help="Layers for a CPU.")
@click.option("--net", default="resnet50", show_default=True)
@click.option("--batch", default=64, show_default=True)
def main(gpus: tuple[int, ...], device: str, count: int, budget_ms: float, small: bool, net: str, batch: int) -> None:
    """Print a line of JSON a part, and write all of them to $OUT/fleet.json after each."""
    from convdispatch.device import runtime

    there = [runtime.address(d) for d in runtime.devices() if runtime.device_info(d).vendor == device]
    if device != "nvidia":
        there *= max(gpus)  # a rehearsal: several workers of one device take turns
    wanted, made = problems(count, small), dict[str, Any]()

    def keep(name: str, value: Any) -> None:
        made[name] = value
        if os.environ.get("OUT"):
            Path(os.environ["OUT"], "fleet.json").write_text(json.dumps(made, indent=1))

    for number in gpus:
        if number <= len(there):
            keep(f"tune on {number}", tune(there[:number], wanted, budget_ms))
    most = [there[place] for place in range(min(max(gpus), len(there)))]
    with tempfile.TemporaryDirectory() as name, farm(most, Path(name)) as address, database(Path(name)):
        keep("overhead_ms", overhead(address))
        print(f"a task of no work takes {made['overhead_ms']:.2f} ms of a device", flush=True)
        keep("death", death(address, wanted[:12], budget_ms / 2))
        if len(most) > 1:
            keep("agreement", agreement(address, wanted[:6], budget_ms))
    keep("inference", inference(net, batch, most))


if __name__ == "__main__":
    main()
