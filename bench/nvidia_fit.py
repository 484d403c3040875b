"""What the nvidia plugin's cost models are fitted to: many configurations of layers drawn at random, timed on one GPU.

    python bench/nvidia_fit.py time --kind half --budget 150      # JSON lines in $OUT/half.jsonl, as they come
    python bench/nvidia_fit.py rate half.jsonl tf32.jsonl         # how well the costs predict and choose; no GPU needed

Layers are drawn with a fixed seed from the sizes below, whole families of them, and are nobody's net. Of each layer the
solvers' first configurations are timed, and some at random that are expected within ``--near`` times of the least.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))
from farm import Lost, farm

from convdispatch.api import ConvProblem
from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.selection.plugins.loader import plugins

H200 = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
CHANNELS = (24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768,
            896, 960, 1024, 1152, 1280, 1536, 2048)  # fmt: skip
SIZES = (6, 7, 8, 10, 12, 14, 15, 16, 18, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 112)
BATCHES = (1, 8, 16, 32, 48, 64, 128)
FAMILIES = (
    # how many, and what all of them have
    (30, {"kh": 1, "kw": 1}),
    (16, {"kh": 3, "kw": 3, "ph": 1, "pw": 1}),
    (8, {"kh": 3, "kw": 3, "ph": 1, "pw": 1, "sh": 2, "sw": 2}),
    (5, {"kh": 1, "kw": 1, "sh": 2, "sw": 2}),
    (4, {"kh": 5, "kw": 5, "ph": 2, "pw": 2}),
    (4, {"kh": 1, "kw": 7, "pw": 3}),
    (3, {"kh": 3, "kw": 3, "ph": 4, "pw": 4, "dh": 4, "dw": 4}),
)
MOST_BYTES, MOST_FLOPS, LEAST_FLOPS = 160e6, 80e9, 0.3e9
KINDS = {
    "half": {"dtype": "float16", "layout": "nhwc"},
    "tf32": {"dtype": "float32", "math": "tf32"},
    "tf32_nhwc": {"dtype": "float32", "math": "tf32", "layout": "nhwc"},
    "float32": {"dtype": "float32", "math": "float32"},
}


def drawn(kind: str, seed: int = 5) -> Iterator[ConvProblem]:
    """Layers of every family, each in three directions."""
    dice = random.Random(seed)
    for count, family in FAMILIES:
        found = 0
        while found < count:
            size = dice.choice(SIZES)
            problem = ConvProblem(mb=dice.choice(BATCHES), ic=dice.choice(CHANNELS), oc=dice.choice(CHANNELS),
                                  ih=size, iw=size, **family).replace(**KINDS[kind])  # fmt: skip
            tensors = sum(math.prod(s) for s in (problem.x_shape, problem.w_shape, problem.y_shape))
            if tensors * problem.itemsize < MOST_BYTES and LEAST_FLOPS < problem.flops < MOST_FLOPS:
                found += 1
                yield from (problem.replace(direction=direction) for direction in DIRECTIONS)


def offers(problem: ConvProblem, device: DeviceInfo, names: str, more: int, near: float) -> list[tuple]:
    """(predicted seconds, solver, configuration): ``name=count,...`` first ones, and some of what is near the least.

    Of a solver of which the first alone is asked, no other is taken.
    """
    dice, chosen, rest = random.Random(str(problem)), [], []
    for name, first in (each.split("=") for each in names.split(",")):
        solver = plugins().solvers[name]
        if (solver.limits if device is H200 else solver.rejects)(problem, device):
            continue
        configs = [dict(config) for config in solver.configs(problem, device)]
        every = [(solver.cost(problem, device, config), name, config) for config in configs]
        chosen += every[: int(first)]
        rest += every[int(first) :] if int(first) > 1 else []
    if not chosen:
        return []
    least = min(offer[0] for offer in chosen)
    rest = [offer for offer in rest if offer[0] < near * least]
    taken = [o for o in chosen if o[0] < 2.5 * least] + dice.sample(rest, min(more, len(rest)))
    joined = [(name, config) for _, name, config in taken if config.get("fixup")][:1]
    for name, config in joined:  # and the same with a launch that adds the parts
        apart = {key: value for key, value in config.items() if key != "fixup"}
        taken.append((plugins().solvers[name].cost(problem, device, apart), name, apart))
    return taken


_WORKER: dict = {}


def _begin(dtype: str, options: dict) -> None:
    import nvidia_h200

    nvidia_h200._begin(dtype, {"solver": "nvidia.*", **options})
    _WORKER.update(nvidia_h200._WORKER, alone=nvidia_h200._alone)


def _time(problem: ConvProblem) -> dict:
    """Build in parallel, time alone; the fastest and the last that work groups sum are checked."""
    bench, options = _WORKER["bench"], _WORKER["options"]
    row = {"problem": str(problem), "timed": [], "notes": []}
    plans = []
    for cost, name, config in offers(problem, bench.info, options["names"], *options["take"]):
        try:
            plans.append((plugins().solvers[name].plan(bench.context, problem, config), cost, name, config))
        except Exception as error:
            row["notes"].append(f"{name} {config}: {str(error)[:300]}")
    bench.load(problem)
    with _WORKER["alone"]():
        times = [bench.time(plan, options["seconds"]) for plan, *_ in plans]
    row["timed"] = [[ms, name, cost, config] for ms, (_, cost, name, config) in zip(times, plans, strict=True)]
    if options["check"] and plans:
        exact = bench.exact.plan(problem)
        kinds = {_kind(plan[3]): plan for plan in [*plans, plans[times.index(min(times))]]}
        with _WORKER["alone"]():
            row["errors"] = [
                [bench.error(plan, problem, exact), name, config] for plan, _, name, config in kinds.values()
            ]
    return row


def _kind(config: dict) -> tuple:
    return config.get("fixup"), config.get("bk"), config.get("block"), config.get("split", 1) > 1


@click.group()
def main() -> None:
    """Time, or rate."""


@main.command("time")
@click.option("--kind", type=click.Choice(list(KINDS)), required=True)
@click.option(
    "--solvers", "names", default="nvidia.tma=4,nvidia.wgmma=1", show_default=True, help="How many first ones."
)
@click.option("--more", default=5, show_default=True, help="Others near the least.")
@click.option("--near", default=1.8, show_default=True)
@click.option("--seed", default=5, show_default=True)
@click.option("--seconds", default=0.003, show_default=True)
@click.option("--check/--no-check", default=True)
@click.option("--jobs", default=14, show_default=True)
@click.option("--budget", default=100.0, show_default=True)
@click.option("--from", "path", type=click.Path(exists=True), help="Problems, one a line, instead of drawn ones.")
def time_(kind, names, more, near, seed, seconds, check, jobs, budget, path) -> None:
    """Configurations of all layers, in an order in which a run that is cut short has seen every family."""
    problems = list(drawn(kind, seed))
    random.Random(seed).shuffle(problems)
    if path:
        problems = [ConvProblem.parse(text) for text in Path(path).read_text().split()]
    options = {"names": names, "take": (more, near), "seconds": seconds, "check": check}
    until, count, begun = time.monotonic() + budget, 0, time.monotonic()
    worst: dict[tuple, tuple] = {}
    with Path(os.environ.get("OUT", "."), f"{kind}.jsonl").open("w") as file:
        for row in farm(jobs, _begin, (KINDS[kind]["dtype"], options), _time, problems, until=until, task_s=30.0):
            if isinstance(row, Lost):
                if row.why != "out of time":
                    print(f"LOST {row.task}: {row.why}", flush=True)
                continue
            print(json.dumps(row), file=file, flush=True)
            count += 1
            for note in row["notes"]:
                print(f"note {row['problem']}: {note}", flush=True)
            for error, name, config in row.get("errors", ()):
                kind_of = (name, *_kind(config))
                worst[kind_of] = max(worst.get(kind_of, (-1.0,)), (error, row["problem"], json.dumps(config)))
    for kind_of, found in worst.items():
        print(f"worst error {kind_of}: {found}", flush=True)
    print(f"{kind}: {count} of {len(problems)} problems, {time.monotonic() - begun:.0f} s")


def _peer(problem: ConvProblem) -> tuple[str, float]:
    from gpu import torch_ms

    return str(problem), torch_ms(problem, 0.003)


def _begin_peer() -> None:
    _peer(ConvProblem(mb=1, ic=8, ih=8, iw=8, oc=8, kh=3, kw=3))


@main.command()
@click.argument("file")
@click.option("--budget", default=30.0, show_default=True)
def peer(file: str, budget: float) -> None:
    """PyTorch's time of the problems of a file, in a file beside it."""
    problems = [ConvProblem.parse(json.loads(line)["problem"]) for line in Path(file).read_text().splitlines()]
    with Path(file).with_suffix(".peer.jsonl").open("w") as to:
        for found in farm(1, _begin_peer, (), _peer, problems, until=time.monotonic() + budget):
            if not isinstance(found, Lost):
                print(json.dumps(found), file=to, flush=True)


@main.command()
@click.argument("files", nargs=-1)
@click.option("--show", default=12, show_default=True, help="Problems of which the choice loses most.")
def rate(files: tuple[str, ...], show: int) -> None:
    """Errors of the costs as they are now, and what is lost by choosing with them among what was timed."""
    errors, lost = defaultdict(list), []
    for line in itertools.chain.from_iterable(Path(file).read_text().splitlines() for file in files):
        row = json.loads(line)
        problem = ConvProblem.parse(row["problem"])
        now = []
        for ms, name, _, config in row["timed"]:
            cost = plugins().solvers[name].cost(problem, H200, config) * 1e3
            errors[name, problem.dtype, problem.direction].append(math.log(cost / ms))
            now.append((cost, ms, name, config))
        if now:
            best, mine = min(now, key=lambda each: each[1]), min(now, key=lambda each: each[0])
            lost.append((mine[1] / best[1], row["problem"], mine, best))
    for key, found in sorted(errors.items()):
        mean = sum(found) / len(found)
        spread = math.sqrt(sum((each - mean) ** 2 for each in found) / len(found))
        print(f"{key}: {len(found)} timings, mean of the logarithm {mean:+.3f}, spread {spread:.3f}")
    for each in sorted(lost, key=lambda each: -each[0])[:show]:
        print(f"{each[0]:.2f} {each[1]}: chosen {each[2]}, best {each[3]}")
    mean = math.exp(sum(math.log(each[0]) for each in lost) / len(lost))
    print(f"{len(lost)} problems: the choice takes {mean:.3f} of the best's time")


if __name__ == "__main__":
    main()
