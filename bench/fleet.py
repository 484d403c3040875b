"""Shows a cluster on 1, 2 and 4 GPUs of one machine, each part within a limit of seconds and told as it ends.

    python bench/fleet.py --gpus 2 --problems 24 --budget 1000 --within 160
    python bench/fleet.py --device intel --gpus 2 --problems 4 --budget 300 --small --net lenet --batch 8  # a rehearsal

*times*: ``find_many`` on all GPUs and on one, from when each worker has measured one small problem until the last
record is stored, each with empty caches of compiled kernels; and what a task of no work takes. *agreement*: the same
problems on two devices, and whose intervals lie apart. *killed*: a worker dies in the middle. *all*: a net's batches on
all devices of one process.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def started(address: str, workers: int) -> dict[str, Any]:
    """Waits until every worker has measured a small problem."""
    from convdispatch import find_many

    while len({record.worker for record in stored()}) < workers:
        find_many([FIRST], address, budget_ms=200, agree=1, again=True, tell=print)
    return {"workers": sorted({record.worker for record in stored()})}


def tune(address: str, wanted: list[Any], budget_ms: float) -> dict[str, Any]:
    """Seconds of find_many, and who did how much."""
    from convdispatch import find_many

    begun, ended = time.perf_counter(), list[float]()

    def each(results: Any) -> None:
        ended.append(round(time.perf_counter() - begun, 2))

    found = find_many(wanted, address, budget_ms=budget_ms, agree=0, tell=print, each=each)
    spent = time.perf_counter() - begun
    by = {worker: [r.spent_ms / 1e3 for r in found if r.worker == worker] for worker in {r.worker for r in found}}
    return {"problems": len(wanted), "found": len(found), "s": round(spent, 2), "first_s": ended[0],
            "by": {worker: {"problems": len(each), "searching_s": round(sum(each), 2)} for worker, each in by.items()},
            "winners": sum(r.winner is not None for r in found), "ended_s": ended,
            "tried": statistics.mean(sum(x.median_ms is not None for x in r) for r in found)}  # fmt: skip


def overhead(address: str, count: int = 400) -> float:
    """Milliseconds a task of no work takes a device, a few given at a time."""
    from convdispatch.cluster.connecting import Workers, connected
    from convdispatch.cluster.placing import Task
    from convdispatch.cluster.running import Run
    from convdispatch.cluster.tasks import idle

    with connected(address) as client:
        run = Run(client, Workers(client))
        (key,) = run.kinds
        devices = len(run.kinds[key].workers)
        run.add(*(Task("", key, idle, (number,)) for number in range(count)))
        begun = time.perf_counter()
        assert sum(answer for _, answer in run.answers()) == count * (count - 1) // 2
        return round((time.perf_counter() - begun) / count * 1e3 * devices, 2)


def agreement(address: str, wanted: list[Any], budget_ms: float) -> dict[str, Any]:
    """Problems on two devices of a kind: of each choice that both measured, how far apart, and which are in doubt."""
    from convdispatch import find_many

    messages: list[str] = []
    found = find_many(wanted, address, budget_ms=budget_ms, agree=1, tell=messages.append)
    benchmarked: dict[tuple[str, Any], dict[str, Any]] = {}
    for record in sorted(stored(), key=lambda record: record.created):
        if record.benchmarked and not record.doubt:
            benchmarked.setdefault((record.problem, record.choice), {})[record.worker] = record
    pairs = [list(sides.values()) for sides in benchmarked.values() if len(sides) > 1]
    ratios = sorted(max(r.median_ms for r in pair) / min(r.median_ms for r in pair) for pair in pairs)
    apart = sum(max(r.ci_ms[0] for r in pair) > min(r.ci_ms[1] for r in pair) for pair in pairs)
    best = [min((r for p in benchmarked.values() for r in p.values() if r.problem == str(q.problem)), default=None,
                key=lambda r: r.median_ms) for q in found]  # fmt: skip
    return {"problems": len(found), "choices that both benchmarked": len(pairs), "intervals apart": apart,
            "median ratio": ratios and round(statistics.median(ratios), 4), "largest ratio": ratios and ratios[-1],
            "in doubt": sum(bool(record.doubt) for record in stored()), "told": messages,
            "fastest": [(r.problem, r.solver, r.median_ms, r.ci_ms, r.worker) for r in best if r]}  # fmt: skip


def killed(address: str, wanted: list[Any], budget_ms: float) -> dict[str, Any]:
    """What is lost when a worker is killed in the middle, and what is measured twice; who did how much after."""
    import distributed

    from convdispatch import find_many

    dead = threading.Event()
    begun, messages = time.perf_counter(), list[str]()

    def kill(results: Any) -> None:
        if not dead.is_set():
            dead.set()
            with distributed.Client(address, set_as_default=False) as client:
                os.kill(client.run(os.getpid)[min(client.scheduler_info()["workers"])], signal.SIGKILL)

    found = find_many(wanted, address, budget_ms=budget_ms, agree=0, each=kill, tell=messages.append)
    records = [r for r in stored() if not r.doubt]
    distinct = {(r.problem, r.solver, json.dumps(dict(r.config), sort_keys=True)) for r in records}
    names = [str(r.problem) for r in found]
    return {"killed": dead.is_set(), "wanted": len(wanted), "found": len(found), "twice": len(names) - len(set(names)),
            "lost": len({str(p) for p in wanted} - set(names)), "records": len(records), "distinct": len(distinct),
            "by": {w: sum(r.worker == w for r in found) for w in {r.worker for r in found}},
            "s": round(time.perf_counter() - begun, 2), "told": messages}  # fmt: skip


def inference(net: str, batch: int, devices: Any, rounds: int = 24) -> dict[str, Any]:
    """Pictures a second of one device and of all, brought from and to the host."""
    import numpy as np

    from convdispatch import inference as door
    from convdispatch.models import catalogue

    shape = (batch, 1, 28, 28) if net == "lenet" else (batch, 3, 224, 224)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    begun = time.perf_counter()
    every = door.build(catalogue.create(net).eval(), shape, devices=devices, layout="nchw", queues=1)
    one, count = type(every)(every.nets[:1], batch), len(every.nets)
    results = list(every.map([x] * (2 * count)))
    made: dict[str, Any] = {"net": net, "batch": batch, "devices": count, "built_s": time.perf_counter() - begun,
                            "equal": all(np.array_equal(result, results[0]) for result in results)}  # fmt: skip
    rates: dict[str, list[float]] = {"one": [], "all": []}
    for _ in range(3):
        for name, nets in (("one", one), ("all", every)):
            begun = time.perf_counter()
            for _ in nets.map(x for _ in range(rounds)):
                pass
            rates[name].append(round(rounds * batch / (time.perf_counter() - begun), 1))
    ratio = statistics.median(rates["all"]) / statistics.median(rates["one"])
    return {**made, "pictures a second": rates, "ratio": round(ratio, 3)}


class Limits:
    """Runs parts, each within its limit and all within one; what one answers or fails by is told and kept at once."""

    def __init__(self, within_s: float) -> None:
        self._until, self.made = time.monotonic() + within_s, dict[str, Any]()

    def run(self, name: str, seconds: float, work: Callable[..., Any], *given: Any) -> Any:
        left = min(seconds, self._until - time.monotonic())
        begun = time.monotonic()
        try:
            if left <= 1:
                raise TimeoutError("no time is left")
            signal.setitimer(signal.ITIMER_REAL, left)
            made = work(*given)
        except Exception as error:
            made = {"failed": f"{type(error).__name__}: {error}", "after_s": round(time.monotonic() - begun, 1)}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.made[name] = made
        print(f"[{time.monotonic() - begun:.1f} s] {name}: {json.dumps(made)}", flush=True)
        if os.environ.get("OUT"):
            Path(os.environ["OUT"], "fleet.json").write_text(json.dumps(self.made, indent=1))
        return made


def _ends(*_: Any) -> None:
    raise TimeoutError("its time has ended")


@click.command()
@click.option("--gpus", multiple=True, type=int, default=(2,), show_default=True)
@click.option("--part", "parts", default="times,agreement,killed,all", show_default=True)
@click.option("--device", default="nvidia", show_default=True)
@click.option("--problems", "count", default=288, show_default=True)
@click.option("--budget", "budget_ms", default=3000.0, show_default=True)
@click.option("--within", "within_s", default=3600.0, show_default=True, help="Most seconds of it all.")
@click.option("--small", is_flag=True, help="Layers for a CPU.")
@click.option("--net", default="resnet50", show_default=True)
@click.option("--batch", default=64, show_default=True)
def main(gpus: tuple[int, ...], parts: str, device: str, count: int, budget_ms: float, **more: Any) -> None:
    """Print a line of JSON a part, and write all of them to $OUT/fleet.json after each."""
    from convdispatch.device import runtime

    signal.signal(signal.SIGALRM, _ends)
    limits, selected = Limits(more["within_s"]), parts.split(",")
    there = [runtime.address(d) for d in runtime.devices() if runtime.device_info(d).vendor == device]
    if device != "nvidia":
        there *= max(gpus)  # a rehearsal: several workers of one device take turns
    numbers = sorted({number for number in gpus if number <= len(there)}, reverse=True)
    if not numbers:
        raise click.UsageError(f"--gpus {gpus}: there are {len(there)} of {device}")
    most, wanted = numbers[0], problems(count, more["small"])
    search_s = 3 * count * budget_ms / 1e3 + 10
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        # All farms start at once, and the processes of those that wait lie idle meanwhile.
        wants = [*numbers, *([1] if "times" in selected and 1 not in numbers else [])]
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))) for _ in wants]
        managers = [farm(there[:number], folder) for number, folder in zip(wants, folders)]
        addresses = [*threads.map(lambda manager: manager.__enter__(), managers)]
        for manager in managers:
            stack.push(manager)
        for number, address, folder in zip(wants, addresses, folders):
            with database(folder / "start"):
                limits.run(f"start of {number}", 60, started, address, number)
        if "times" in selected:
            for number, address, folder in zip(wants, addresses, folders):
                with database(folder / "times"):
                    limits.run(f"times on {number}", search_s, tune, address, wanted, budget_ms)
            one = limits.made["times on 1"].get("s")
            limits.made["times"] = {n: round(limits.made[f"times on {n}"].get("s", 0) / one, 3) for n in wants if one}
            limits.run("overhead in ms", 20, overhead, addresses[0])
        if "agreement" in selected and most > 1:
            with database(folders[0] / "agreement"):
                limits.run("agreement", 40, agreement, addresses[0], wanted[:8], budget_ms)
        if "killed" in selected:
            with database(folders[0] / "killed"):
                limits.run("killed", 40, killed, addresses[0], wanted[:16], budget_ms / 2)
    if "all" in selected:
        devices = "all" if device == "nvidia" and most == len(there) else there[:most]
        limits.run("all", 90, inference, more["net"], more["batch"], devices)


if __name__ == "__main__":
    main()
