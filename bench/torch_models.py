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
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from torch_rows import AHEAD, ROUNDS, graph, images, infer, left, net, overhead, say, switches, timed, train

HERE = Path(__file__).resolve()


def ranks(row: str, count: int) -> None:
    """ResNet-50 by DistributedDataParallel on ``count`` GPUs, ours and plain."""
    for side in ("ours", "torch"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
        found = subprocess.run([*command, str(HERE), "--rank-of", side], text=True, capture_output=True)
        lines = [line for line in found.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            say(row=row, **json.loads(line))
        if found.returncode or not lines:
            say(row=row, side=side, failed=found.stderr[-1500:])


def one_rank(side: str) -> None:
    """What ``torchrun`` starts."""
    import torch

    import convdispatch.torch as ct

    number = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(number)
    torch.distributed.init_process_group("nccl")
    switches(False)
    if side == "ours":
        ct.enable()
    model = torch.nn.parallel.DistributedDataParallel(net("resnet50", "cuda", True, False), device_ids=[number])
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x, labels = images(64, "cuda", False), torch.randint(0, 1000, (64,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    for _ in range(5):
        step()
    times = []
    for _ in range(ROUNDS):
        torch.distributed.barrier()
        times.append(timed(step, True, 1.0))
    count = torch.distributed.get_world_size()
    if torch.distributed.get_rank() == 0:
        rate = 64 * count / (1e-3 * statistics.median(times))
        say(side=side, gpus=count, ms_a_step=round(statistics.median(times), 2), images_a_second=round(rate), **left())
    torch.distributed.destroy_process_group()


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
    "ddp-1": ("cuda1", lambda row: ranks(row, 1), 200),
    "ddp-2": ("cuda2", lambda row: ranks(row, 2), 200),
    "ddp-4": ("cuda4", lambda row: ranks(row, 4), 240),
    "cpu-1": ("cpu", lambda row: infer(row, "resnet50", 1, "cpu", last=False), 120),
    "cpu-8": ("cpu", lambda row: infer(row, "resnet50", 8, "cpu", last=False), 180),
    "cpu-1-passive": ("cpu-passive", lambda row: infer(row, "resnet50", 1, "cpu", last=False), 120),
    "cpu-8-passive": ("cpu-passive", lambda row: infer(row, "resnet50", 8, "cpu", last=False), 180),
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
@click.option("--rank-of", hidden=True)
def main(rows: str | None, budget: float, ahead: bool, listing: bool, row: str | None, rank_of: str | None) -> None:
    """Run rows, each in a child."""
    if rank_of:
        one_rank(rank_of)
        return
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
        more = {"OMP_WAIT_POLICY": "passive"} if needs == "cpu-passive" else {}
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
