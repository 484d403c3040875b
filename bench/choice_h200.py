"""What is chosen without a search, beside cuDNN, both in PyTorch as CUDA graphs, in turns, by one function.

    python bench/choice_h200.py --kind half --net resnet50 --net families      # JSON lines in $OUT/half.pair.jsonl

Ours is the public call on PyTorch's tensors with nothing measured before; cuDNN's is what ``cudnn.benchmark`` finds.
Operands take turns beyond the cache. ``families`` is the table beside this file.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fair import Side, graph_side, medians, sets_of
from farm import Lost, farm
from nvidia_fit import KINDS

from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import shapes

NETS = ("convnet", "alexnet", "overfeat", "vgg_a", "googlenet", "resnet50", "families")


def entries(net: str) -> list[shapes.Entry]:
    """A table of the package, or the one beside this file."""
    if net == "families":
        return shapes.parse(Path(__file__).with_name("families.txt").read_text())
    return shapes.load(net)


def ours(problem: ConvProblem) -> Side:
    """The public call, captured; the solver's name is left in ``ours.chosen``."""
    import torch

    import convdispatch as cd

    kind = getattr(torch, problem.dtype)
    shaped = {name: getattr(problem, name + "_shape") for name in "xwy"}
    nbytes = sum(math.prod(shape) for shape in shaped.values()) * problem.itemsize
    sets = [
        {name: torch.randn(shape, device="cuda").to(kind) for name, shape in shaped.items()}
        for _ in range(sets_of(nbytes))
    ]
    axes = problem.axes
    keys = {"stride": tuple(getattr(problem, "s" + a) for a in axes),
            "dilation": tuple(getattr(problem, "d" + a) for a in axes),
            "padding": tuple((getattr(problem, "p" + a), getattr(problem, f"p{a}_r")) for a in axes),
            "groups": problem.g, "layout": problem.layout, "math": problem.math}  # fmt: skip

    def work(turn: int) -> None:
        given = sets[turn % len(sets)]
        if problem.direction == "fwd":
            cd.conv(given["x"], given["w"], out=given["y"], **keys)
        elif problem.direction == "bwd_data":
            cd.conv_backward_data(given["y"], given["w"], shaped["x"], out=given["x"], **keys)
        else:
            cd.conv_backward_weights(given["x"], given["y"], shaped["w"], out=given["w"], **keys)

    work(0)  # compiles
    torch.cuda.synchronize()
    return graph_side(work)


def _begin(seconds: float) -> None:
    global _lock, _seconds
    os.environ["CONVDISPATCH_BLOCK"] = "cudnn"
    os.environ["CONVDISPATCH_DB"] = tempfile.mkdtemp()
    _seconds, _lock = seconds, Path("/tmp/choice_h200.lock").open("w")  # noqa: SIM115 as long as the process
    import torch

    torch.zeros(1, device="cuda")


def _pair(given: tuple[str, str, ConvProblem]) -> dict:
    from gpu import torch_side

    from convdispatch.device import runtime
    from convdispatch.selection.choice import ranking

    net, name, problem = given
    row = {"net": net, "layer": name, "problem": str(problem)}
    try:
        mine = ours(problem)
        info = runtime.device_info(runtime.find_device("nvidia"))
        row["chosen"] = [[each.solver.name, dict(each.config)] for each in ranking.rank(problem, info)[:1]]
    except Exception as error:
        row.setdefault("chosen", f"{type(error).__name__}: {str(error)[:200]}")
        if "mine" not in locals():
            return row
    fcntl.flock(_lock, fcntl.LOCK_EX)
    try:
        found = medians({"ours": mine, "torch": torch_side(problem)}, _seconds)
    finally:
        fcntl.flock(_lock, fcntl.LOCK_UN)
    return row | found


@click.command(help=__doc__)
@click.option("--kind", type=click.Choice(list(KINDS)), required=True)
@click.option("--net", "nets", multiple=True, default=NETS)
@click.option("--every", default=1, show_default=True, help="One layer in so many.")
@click.option("--seconds", default=0.004, show_default=True, help="A sample.")
@click.option("--budget", default=90.0, show_default=True)
@click.option("--jobs", default=12, show_default=True)
def main(kind: str, nets: tuple[str, ...], every: int, seconds: float, budget: float, jobs: int) -> None:
    work = [
        (net, entry.name, entry.problem.replace(direction=direction, **KINDS[kind]))
        for net, direction in itertools.product(nets, DIRECTIONS)
        for entry in entries(net)
    ]
    random.Random(1).shuffle(work)
    ratios, begun = defaultdict(list), time.monotonic()
    with Path(os.environ.get("OUT", "."), f"{kind}.pair.jsonl").open("w") as file:
        for row in farm(jobs, _begin, (seconds,), _pair, work[::every], until=begun + budget, task_s=40.0):
            if isinstance(row, Lost):
                if row.why != "out of time":
                    print(f"LOST {row.task}: {row.why}", flush=True)
                continue
            print(json.dumps(row), file=file, flush=True)
            if "torch" not in row:
                print(f"FAILED {row}", flush=True)
                continue
            direction = ConvProblem.parse(row["problem"]).direction
            for key in ((row["net"], direction), (row["net"],), *([("nets",)] if row["net"] != "families" else [])):
                ratios[key].append((row["torch"] / row["ours"], row["layer"] if len(key) > 1 else row["problem"]))
    for key, found in sorted(ratios.items()):
        mean = math.exp(sum(math.log(each[0]) for each in found) / len(found))
        least = ", ".join(f"{each[1]} {each[0]:.2f}" for each in sorted(found)[:5])
        print(f"{kind} {' '.join(key)}: {len(found)} layers, geometric mean {mean:.3f}, below 1:"
              f" {sum(each[0] < 1 for each in found)}; {least}", flush=True)  # fmt: skip
    print(f"{kind}: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
