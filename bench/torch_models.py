"""Unchanged PyTorch models under enable(), beside PyTorch: inference, training, graphs, compilers, host time, ranks.

    python bench/torch_models.py                       # every row that this machine has devices for
    python bench/torch_models.py --rows resnet50-train,overhead --budget 300
    python bench/torch_models.py --list

Each row runs in a child process with a limit of its own and prints as it goes; both sides of a row are timed by one
function, in turns, in one process. A row says the error of our result against PyTorch's and what was not routed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch_precision
from torch_rows import AHEAD, fused, graph, infer, overhead, say, train

HERE = Path(__file__).resolve()


def ranks(row: str, count: int) -> None:
    """ResNet-50 by DistributedDataParallel on ``count`` GPUs, plain and ours; phase by phase, by ``torch_ranks.py``."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    found = subprocess.run(
        [*command, str(HERE.with_name("torch_ranks.py")), "--seconds", "180"], text=True, capture_output=True
    )
    for line in found.stdout.splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            if said["rank"] == 0:
                say(row=row, **said)
    if found.returncode:
        say(row=row, failed=found.stderr[-1500:])


ROWS: dict[str, tuple[str, Callable[[str], None], float]] = {
    "resnet50-train": ("cuda", lambda row: train(row, "resnet50"), 150),
    "vgg16-train": ("cuda", lambda row: train(row, "vgg16"), 150),
    "resnet50-infer": ("cuda", lambda row: infer(row, "resnet50", 64), 200),
    "vgg16-infer": ("cuda", lambda row: infer(row, "vgg16", 64), 200),
    "resnet50-graph": ("cuda", graph, 150),
    "overhead": ("cuda", overhead, 60),
    "resnet50-train-tf32": ("cuda", lambda row: train(row, "resnet50", tf32=True), 150),
    "vgg16-train-tf32": ("cuda", lambda row: train(row, "vgg16", tf32=True), 150),
    "resnet50-infer-tf32": ("cuda", lambda row: infer(row, "resnet50", 64, tf32=True), 200),
    "vgg16-infer-tf32": ("cuda", lambda row: infer(row, "vgg16", 64, tf32=True), 200),
    "resnet50-train-last": ("cuda", lambda row: train(row, "resnet50", last=True), 150),
    "resnet50-infer-first": ("cuda", lambda row: infer(row, "resnet50", 64, last=False), 200),
    **{
        f"{net}-infer-{precision}-{batch}": (
            "cuda",
            lambda row, net=net, batch=batch, precision=precision: torch_precision.infer(row, net, batch, precision),
            200,
        )
        for net in ("resnet50", "vgg16")
        for precision in ("float16", "tf32")
        for batch in (1, 16, 64)
    },
    **{
        f"resnet50-infer-{precision}-{batch}-max": (
            "cuda",
            lambda row, batch=batch, precision=precision: torch_precision.infer(
                row, "resnet50", batch, precision, ("reduce-overhead", "max-autotune")
            ),
            400,
        )
        for precision in ("float16", "tf32")
        for batch in (1, 64)
    },
    "resnet50-train-bf16": ("cuda", lambda row: torch_precision.train(row, "resnet50", "bfloat16"), 200),
    "vgg16-train-bf16": ("cuda", lambda row: torch_precision.train(row, "vgg16", "bfloat16"), 200),
    "ddp-1": ("cuda1", lambda row: ranks(row, 1), 200),
    "ddp-2": ("cuda2", lambda row: ranks(row, 2), 200),
    "ddp-4": ("cuda4", lambda row: ranks(row, 4), 240),
    "cpu-1": ("cpu", lambda row: infer(row, "resnet50", 1, "cpu", last=False), 120),
    "cpu-8": ("cpu", lambda row: infer(row, "resnet50", 8, "cpu", last=False), 180),
    "cpu-1-passive": ("cpu-passive", lambda row: infer(row, "resnet50", 1, "cpu", last=False), 120),
    "cpu-8-passive": ("cpu-passive", lambda row: infer(row, "resnet50", 8, "cpu", last=False), 180),
    "cpu-1-spin": ("cpu-spin", lambda row: infer(row, "resnet50", 1, "cpu", last=False), 120),
    "cpu-8-spin": ("cpu-spin", lambda row: infer(row, "resnet50", 8, "cpu", last=False), 180),
    "cpu-1-fused": ("cpu", lambda row: fused(row, "resnet50", 1), 120),
    "cpu-8-fused": ("cpu", lambda row: fused(row, "resnet50", 8), 180),
    "cpu-1-fused-mobilenet": ("cpu", lambda row: fused(row, "mobilenet_v2", 1), 120),
    "cpu-8-fused-mobilenet": ("cpu", lambda row: fused(row, "mobilenet_v2", 8), 120),
    "cpu-1-fused-vgg": ("cpu", lambda row: fused(row, "vgg16", 1), 120),
    "cpu-8-fused-vgg": ("cpu", lambda row: fused(row, "vgg16", 8), 180),
    "cpu-1-last": ("cpu", lambda row: infer(row, "resnet50", 1, "cpu", last=True), 120),
}
"""Name: (what it needs, work, seconds)."""


def devices() -> int:
    """How many GPUs PyTorch sees; asked in a child, so that this process holds none."""
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    return int(found.stdout or 0) if found.returncode == 0 else 0


def first_runs(names: list[str], seconds: float) -> None:
    """Rows side by side, untimed."""
    begin = time.monotonic()
    more = os.environ | {AHEAD: "1"}
    commands = [[sys.executable, str(HERE), "--row", name] for name in names]
    children = [subprocess.Popen(each, start_new_session=True, env=more) for each in commands]
    for child in children:
        try:
            child.wait(max(1.0, begin + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
    say(first_runs=names, seconds=round(time.monotonic() - begin, 1))


@click.command(help=__doc__)
@click.option("--rows", help="Names, separated by commas; a trailing * stands for anything.")
@click.option("--budget", default=1500.0, show_default=True, help="Seconds for everything.")
@click.option("--ahead", is_flag=True, help="First run all rows once, side by side: their programs are then on disk.")
@click.option("--list", "listing", is_flag=True, help="Name the rows.")
@click.option("--row", hidden=True)
def main(rows: str | None, budget: float, ahead: bool, listing: bool, row: str | None) -> None:
    """Run rows, each in a child."""
    if row:
        ROWS[row][1](row)
        return
    import fnmatch

    wanted = [name for name in ROWS if rows is None or any(fnmatch.fnmatchcase(name, g) for g in rows.split(","))]
    if listing:
        print("\n".join(wanted))
        return
    gpus, end = devices(), time.monotonic() + budget
    if ahead:
        first_runs([name for name in wanted if ROWS[name][0] == "cuda" and gpus], budget)
    for name in wanted:
        needs, _, limit = ROWS[name]
        enough = needs.startswith("cpu") or gpus >= int(needs.removeprefix("cuda") or 1)
        left_s = end - time.monotonic()
        if not enough or left_s < 10:
            say(row=name, skipped=f"{gpus} GPUs here, it needs {needs}" if not enough else "the budget is spent")
            continue
        begin = time.monotonic()
        # PyTorch's threads on the CPU spin for a while after each operator, and take cores from OpenCL's.
        more = {"cpu-passive": {"OMP_WAIT_POLICY": "passive"}, "cpu-spin": {"GOMP_SPINCOUNT": "3000"}}.get(needs, {})
        command = [sys.executable, str(HERE), "--row", name]
        child = subprocess.Popen(command, start_new_session=True, env=os.environ | more)
        try:
            code = child.wait(min(limit, left_s))
            say(row=name, seconds=round(time.monotonic() - begin, 1), **({} if code == 0 else {"failed_with": code}))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
            say(row=name, failed=f"longer than {min(limit, left_s):.0f} s")


if __name__ == "__main__":
    main()
