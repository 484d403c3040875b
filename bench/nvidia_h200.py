"""The nvidia plugin on one Hopper GPU: configurations explored, and whole nets beside PyTorch with cuDNN.

    python bench/nvidia_h200.py explore FILE      # lines: problem ; engine ; configuration as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import click
import numpy as np
import pyopencl as cl

sys.path.insert(0, str(Path(__file__).resolve().parent))
from convdispatch_nvidia.plan import NvidiaPlan
from h200 import Ours

from convdispatch.api import ConvProblem


def launches_ms(ours: Ours, plan: NvidiaPlan) -> list[float]:
    """Milliseconds of each launch alone: the least of three."""
    scratch = cl.Buffer(ours.context, cl.mem_flags.READ_WRITE, max(4, plan.workspace_size))
    memory = ours.memory
    operands = (memory["x"], memory["w"], memory["y"], scratch, None, None, scratch)
    rows = []
    for _ in range(4):
        events = [launch(ours.queue, operands, None) for launch in plan._launches]
        ours.queue.finish()
        rows.append([(event.profile.end - event.profile.start) * 1e-6 for event in events])
    return np.min(rows[1:], axis=0).round(4).tolist()


@click.group()
def main() -> None:
    """Explore or compare."""


@main.command()
@click.argument("file")
@click.option("--seconds", default=0.01)
@click.option("--check/--no-check", default=True)
def explore(file: str, seconds: float, check: bool) -> None:
    """Builds, checks and times the configurations that a file lists."""
    ours = Ours()
    lines = [line.split("#")[0].strip() for line in Path(file).read_text().splitlines()]
    for line in filter(None, lines):
        text, engine, config = (part.strip() for part in line.split(";"))
        problem = ConvProblem.parse(text)
        ours.shapes = None
        ours.load(problem)
        start = time.perf_counter()
        try:
            plan = NvidiaPlan(ours.context, problem, json.loads(config), engine)
            if plan.job.misfit:
                print(f"misfit {plan.job.misfit}: {line}", flush=True)
                continue
            built = time.perf_counter() - start
            error = ours.error(plan, problem) if check else float("nan")
            each = launches_ms(ours, plan)
            ms = ours.time(plan, seconds=seconds)
            product = each[-2] if plan.job.partial else each[-1]
            print(f"{ms:8.4f} ms {problem.flops / ms / 1e9:6.1f} TF, product {problem.flops / product / 1e9:6.1f} TF {each}"
                  f" err {error:.1e} build {built:.1f} s {text} {engine} {config}", flush=True)  # fmt: skip
        except Exception as failure:
            print(f"FAILED {line}: {str(failure)[:600]} {str(getattr(failure, 'log', ''))[:1500]}", flush=True)
    out = os.environ.get("OUT")
    if out and os.environ.get("DUMP"):
        from convdispatch_nvidia import hopper

        for number, program in enumerate(list(hopper._programs.values())[:2]):
            Path(out, f"hopper{number}.ptx").write_bytes(program.binaries[0])


if __name__ == "__main__":
    main()
