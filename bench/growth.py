"""How a cluster grows: what records cost to write, to keep and to merge, and what tasks cost the scheduler.

python bench/growth.py records --count 1000000      # synthetic records of searches, in a folder of its own
python bench/growth.py tasks --count 100000         # tasks of no work, given to the scheduler at once
python bench/growth.py tasks --count 5000 --devices 8 --paced   # as find_many gives them, a few a device at a time
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from convdispatch.api.problem import ConvProblem
from convdispatch.selection.records.packs import export_pack, import_pack
from convdispatch.selection.records.perfdb import PerfDB
from convdispatch.selection.records.record import Provenance, Record
from convdispatch.selection.records.record_files import file_name, file_text

SEARCH = 16
"""Records of a search."""
KEY = "nvidia-sm-90-nvidia-h200-132cu"


def searches(count: int) -> Iterator[list[Record]]:
    """``count`` records in searches of SEARCH, each for another problem; texts and figures as long as real ones."""
    for number in range(-(-count // SEARCH)):
        problem = ConvProblem(mb=1 + number % 64, ic=16 * (1 + number // 64 % 64), ih=7 + number // 4096, iw=7,
                              oc=16 + number % 1024, kh=3, kw=3, ph=1, pw=1)  # fmt: skip
        made = []
        for place in range(min(SEARCH, count - number * SEARCH)):
            median = 0.0512345678 * (1 + place / 7)
            config = {"tile": [128, 64 + place], "split": 1, "format": "bfloat16x2", "stages": 4, "swap": False}
            made.append(
                Record(
                    problem=str(problem), device=KEY, solver=f"nvidia.wgmma{place % 5}", config=config,
                    median_ms=median, ci_ms=(median * 0.9987654321, median * 1.0012345678),
                    p20_ms=median * 0.9987654321, p80_ms=median * 1.0012345678, count=25, benchmarked=True,
                    screening_ms=median, error=1.2345678e-07, workspace=1 << 20, deterministic=True, default=place == 0,
                    device_name="NVIDIA CUDA: NVIDIA H200", provenance=Provenance("nvidia", "0.1.0", "0123456789abcdef",
                    "570.86.15"), budget_ms=3000.0, created=f"2026-01-01T00:00:{number % 60:02}.000000+00:00",
                    version="0.1.0", worker="node17/0:3",
                )
            )  # fmt: skip
        yield made


def peak_gib() -> float:
    """Most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@click.group()
def main() -> None:
    """Measure one of them."""


@main.command()
@click.option("--count", default=1_000_000, show_default=True)
@click.option("--synced", default=400, show_default=True, help="Searches that are stored as find does, synced to disk.")
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Written once, then only read.")
@click.option("--packed/--no-packed", default=False, help="Also as one file, which is exported and imported.")
def records(count: int, synced: int, folder: Path | None, packed: bool) -> None:
    """Records a second to write, bytes on disk, seconds to read and merge all of them."""
    with tempfile.TemporaryDirectory() as aside:
        place = (folder or Path(aside)) / "many" / KEY
        if not place.exists():
            begun = time.perf_counter()
            place.mkdir(parents=True)
            for made in searches(count):
                (place / file_name(made)).write_text(file_text(made))
            print(f"written without a wait for the disk: {time.perf_counter() - begun:.1f} s", flush=True)
        db = PerfDB([Path(aside) / "few"])
        first = list(searches(synced * SEARCH))
        db.lookup("", KEY)
        begun = time.perf_counter()
        for made in first:
            db.store(*made)
        spent = time.perf_counter() - begun
        print(f"stored as find does: {len(first) / spent:.0f} searches/s, {SEARCH * len(first) / spent:.0f} records/s",
              flush=True)  # fmt: skip
        size, files = _size(place)
        print(f"{files} files, {size / 2**20:.0f} MiB of text, {size / count:.0f} bytes a record", flush=True)
        many = PerfDB([place.parent])
        begun = time.perf_counter()
        known = many.all(KEY)
        spent = time.perf_counter() - begun
        print(f"read and merged: {len(known)} records in {spent:.1f} s, {spent / len(known) * 1e6:.0f} us each, "
              f"{peak_gib():.1f} GiB at most", flush=True)  # fmt: skip
        if packed:
            pack = Path(aside) / "pack.json"
            begun = time.perf_counter()
            export_pack(many, pack)
            print(f"exported to one file: {time.perf_counter() - begun:.1f} s", flush=True)
            begun = time.perf_counter()
            new = import_pack(PerfDB([Path(aside) / "imported"]), pack)
            print(f"imported from it: {new} in {time.perf_counter() - begun:.1f} s, {peak_gib():.1f} GiB", flush=True)


def _size(folder: Path) -> tuple[int, int]:
    files = [path.stat().st_size for path in folder.iterdir()]
    return sum(files), len(files)


@main.command()
@click.option("--count", default=100_000, show_default=True)
@click.option("--devices", default=4, show_default=True, help="Workers, each of one pretended device.")
@click.option("--paced", is_flag=True, help="The same way as find_many; else all tasks at once.")
def tasks(count: int, devices: int, paced: bool) -> None:
    """Milliseconds that a task of no work takes, from its submission to its answer, with all devices busy."""
    import distributed

    from convdispatch.cluster.connecting import Workers
    from convdispatch.cluster.placing import Task
    from convdispatch.cluster.requirements import distributed as quiet
    from convdispatch.cluster.running import Run
    from convdispatch.cluster.tasks import idle

    quiet()
    offers = _pretended(devices)
    with distributed.LocalCluster(n_workers=0, dashboard_address=None, silence_logs=40) as cluster:
        nannies = [_start(cluster.scheduler_address, offer) for offer in offers]
        with distributed.Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(devices)
            before = _busy(client)
            begun = time.perf_counter()
            if paced:
                run = Run(client, Workers(client))
                run.add(*(Task("", KEY, idle, (number,)) for number in range(count)))
                total = sum(answer for _, answer in run.answers())
            else:
                made = client.map(idle, range(count), resources={KEY: 1}, pure=False, batch_size=10_000)
                total = sum(client.gather(made))
            spent = time.perf_counter() - begun
            assert total == count * (count - 1) // 2
            busy = _busy(client) - before
        print(f"{count} tasks on {devices} devices, {'a few a device' if paced else 'all at once'}: {spent:.1f} s, "
              f"{spent / count * 1e3:.2f} ms a task; scheduler and client {busy / count * 1e3:.2f} ms of a core "
              f"each; {peak_gib():.2f} GiB at most")  # fmt: skip
        for nanny in nannies:
            nanny.kill()
            nanny.wait()


def _busy(client: object) -> float:
    return time.process_time()  # the scheduler of a LocalCluster runs in this process


def _pretended(devices: int) -> list:
    from convdispatch import __version__
    from convdispatch.cluster.offers import Offer

    info = {"name": "pretended", "vendor": "none", "type": "gpu", "arch": "", "platform": "", "driver": ""}
    info |= {"max_work_item_sizes": [1, 1, 1], "extensions": []}
    return [Offer(KEY, f"0:{n}", f"node/{n}", info, 0, (), __version__) for n in range(devices)]


def _start(address: str, offer: object):
    """A worker's process without a nanny and without a device."""
    import json
    import subprocess
    import sys

    text = (
        "import asyncio, json, sys, distributed\n"
        "from convdispatch.cluster.offers import Offer\n"
        "address, offer, resources = sys.argv[1], *map(json.loads, sys.argv[2:])\n"
        "class Offers(distributed.WorkerPlugin):\n"
        "    def setup(self, worker): worker.convdispatch_offer = Offer(**offer)\n"
        "async def main():\n"
        "    async with distributed.Worker(address, nthreads=1, resources=resources, dashboard=False,\n"
        "            plugins=[Offers()]) as worker: await worker.finished()\n"
        "asyncio.run(main())"
    )
    words = [sys.executable, "-c", text, address, offer.text(), json.dumps(offer.resources)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
