"""Winograd's passes on one NVIDIA GPU: what each costs, over what it moves and multiplies.

    python bench/winograd_h200.py fwd_mb64ic256ih56oc256kh3ph1 --solver 'winograd.tiled_f[46]x3' --tries 2

Each configuration is checked whole against float64, timed whole as ``bench/h200.py`` does, and pass by
pass from the device's own clock. The multiply-add peak is measured in the same run.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pyopencl as cl
from gpu import Ours, passes

from convdispatch.api import ConvProblem
from convdispatch.selection.plugins.loader import plugins

PEAK = """
kernel void peak(global float *out, float a) {
  float %s;
  for (int i = 0; i < 4096; ++i) { %s }
  out[get_global_id(0)] = %s;
}
"""


def peak(ours: Ours) -> float:
    """Multiply-add peak in TFLOP/s."""
    names = [f"s{i}" for i in range(16)]
    text = PEAK % (
        ", ".join(f"{n} = get_local_id(0) * 1e-3f + {i}" for i, n in enumerate(names)),
        " ".join(f"{n} = {n} * a + 0.5f;" for n in names) * 4,
        " + ".join(names),
    )
    kernel = cl.Program(ours.context, text).build().peak
    items = 132 * 2048 * 4
    out = cl.Buffer(ours.context, cl.mem_flags.READ_WRITE, items * 4)
    best = 0.0
    for _ in range(5):
        event = kernel(ours.queue, (items,), (256,), out, np.float32(0.99))
        event.wait()
        best = max(best, items * 4096 * 4 * 16 * 2 / (event.profile.end - event.profile.start) / 1e3)
    return best


def spilled(ours: Ours, plan) -> int:
    """Bytes of registers that the compiler moved to memory, of all kernels."""
    kernels = [step._kernel for step in plan._steps if hasattr(step, "_kernel")]
    return sum(k.get_work_group_info(cl.kernel_work_group_info.PRIVATE_MEM_SIZE, ours.device) for k in kernels)


@click.command(context_settings={"max_content_width": 120})
@click.argument("problems", nargs=-1, required=True)
@click.option("--each", "each_tries", multiple=True, help="GLOB=COUNT: another number of configurations.")
@click.option("--solver", default="winograd.tiled*", show_default=True, help="Globs, comma between.")
@click.option("--tries", default=1, show_default=True, help="Configurations of each solver.")
@click.option("--check/--no-check", default=True)
def main(problems, each_tries, solver, tries, check) -> None:
    """Times problems in this project's own text."""
    ours = Ours()
    ceiling = peak(ours)
    print(f"multiply-add peak {ceiling:.1f} TFLOP/s", flush=True)
    solvers = [s for name, s in plugins().solvers.items() if any(fnmatch(name, p) for p in solver.split(","))]
    work = []
    for text in problems:
        problem = ConvProblem.parse(text)
        for each in solvers:
            if each.rejects(problem, ours.info) is None:
                count = next((int(c) for g, c in (e.split("=") for e in each_tries) if fnmatch(each.name, g)), tries)
                configs = itertools.islice(each.configs(problem, ours.info), count)
                work += [(problem, each, place, config) for place, config in enumerate(configs)]
    begun = time.perf_counter()
    with ThreadPoolExecutor(12) as pool:
        plans = list(pool.map(lambda job: job[1].plan(ours.context, job[0], job[3]), work))
    print(f"{len(plans)} plans in {time.perf_counter() - begun:.1f} s", flush=True)
    rows = []
    for (problem, each, place, config), plan in zip(work, plans, strict=True):
        ours.load(problem)
        error = ours.error(plan, problem) if check and place == 0 else float("nan")
        ms = ours.time(plan, seconds=0.01)
        speed = problem.flops / ms / 1e9
        parts = passes(ours, plan) if hasattr(plan, "_steps") else []
        guess = each.cost(problem, ours.info, config) / ceiling / 1e9
        rows.append({"problem": str(problem), "solver": each.name, "config": dict(config), "ms": ms, "error": error,
                     "passes": parts, "peak": ceiling, "predicted": guess})  # fmt: skip
        shown = " ".join(f"{t:.3f}" for t in parts[:8])
        lost = f" {spilled(ours, plan)} bytes spilled" if hasattr(plan, "_steps") and spilled(ours, plan) else ""
        print(f"{problem} {each.name.split('.')[-1]} {ms:7.3f} ms (guess {guess:.3f}) {speed:6.1f} TF "
              f"{100 * speed / ceiling:4.0f}% err {error:.1e} [{shown}] {plan.workspace_size >> 20} MB "
              f"{'/'.join(str(config[k]) for k in config)}{lost}", flush=True)  # fmt: skip
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "winograd.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
