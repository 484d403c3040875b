"""The vendors' libraries as plugins, against the same libraries inside PyTorch.

    python bench/vendors.py cpu                      # onednn beside torch, ten layers, three directions, one run
    python bench/vendors.py gpu --seconds 90         # cudnn beside PyTorch with cudnn.benchmark, six nets, on one GPU
    python bench/vendors.py crossing                 # what a change from OpenCL's queue to CUDA's stream and back costs

Both sides are timed in turns: on a CPU each call is waited for; on a GPU CUDA's events stand round some repetitions on
each side's stream, behind a pause that lets the host queue them up. A ratio is the peer's time over ours: above 1, the
plugin is faster. Full figures go to ``$OUT`` as JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement import shapes
from convdispatch.selection.plugins.loader import plugins

NETS = ("convnet", "alexnet", "overfeat", "vgg_a", "googlenet", "resnet50")
MATHS = {
    "fp32": ("float32", "float32", "nchw"),
    "tf32": ("float32", "tf32", "nchw"),
    "fp16": ("float16", "float32", "nhwc"),
}


def mean(ratios: list[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def layers(net: str, only: str | None) -> list[shapes.Entry]:
    """The layers of a net whose name contains one of the words."""
    return [entry for entry in shapes.load(net) if only is None or any(w in entry.name for w in only.split(","))]


def save(name: str, rows: list[Any]) -> None:
    """Write the figures to ``$OUT``, if set."""
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / name).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--net", default="cpu10", show_default=True)
@click.option("--only", help="layers whose name contains one of these words, parted by commas")
@click.option("--rounds", default=7, show_default=True, help="runs of the two finalists at least, in turns")
@click.option("--seconds", default=0.5, show_default=True, help="time for the finalists at least")
@click.option("--constant/--no-constant", default=True, show_default=True, help="weights reordered beforehand")
@click.option("--direction", "directions", multiple=True, type=click.Choice(DIRECTIONS), default=DIRECTIONS)
def cpu(net: str, only: str | None, rounds: int, seconds: float, constant: bool, directions: tuple[str, ...]) -> None:
    """onednn, every configuration in both layouts, beside torch in both; best against best."""
    from layers import interleaved, solver_work, torch_work

    info, ratios, rows = runtime.device_info(runtime.default_device()), [], []
    for direction in directions:
        name = "onednn.forward" if direction == "fwd" else "onednn.gradient"
        solver = plugins().solvers[name]
        for entry in layers(net, only):
            fixed = constant and direction != "bwd_weights"
            works = {}
            for layout in ("nchw", "nhwc"):
                problem = entry.problem.replace(direction=direction, constant_weights=fixed, layout=layout)
                for number, config in enumerate(solver.configs(problem, info)):
                    works[f"{layout} {config['data']}"] = solver_work(problem, name, number)[1]
                works["torch " + layout] = torch_work(problem)
            first = interleaved(works, 0.2, 1)
            best = [
                min((first[key], key) for key in works if key.startswith("torch") == peer) for peer in (False, True)
            ]
            final = interleaved({key: works[key] for _, key in best}, seconds, rounds)
            times = first | final
            ours, theirs = ((final[key], key) for _, key in best)
            ratios.append(theirs[0] / ours[0])
            rows.append({"layer": entry.name, "direction": direction, "ms": times})
            print(f"{direction:12}{entry.name:15}{ours[0]:9.2f} ms  {ours[1]:14}{theirs[0]:9.2f} ms  {theirs[1]:12}"
                  f"{ratios[-1]:6.2f}", flush=True)  # fmt: skip
        print(f"{direction}: geometric mean {mean(ratios[-len(layers(net, only)) :]):.3f}", flush=True)
    print(f"all: geometric mean {mean(ratios):.3f} of {len(ratios)}")
    save("vendors_cpu.json", rows)


@main.command()
@click.option("--net", "nets", multiple=True, default=NETS)
@click.option("--direction", "directions", multiple=True, type=click.Choice(DIRECTIONS), default=DIRECTIONS)
@click.option("--math", "maths", multiple=True, type=click.Choice(list(MATHS)), default=list(MATHS))
@click.option("--tries", default=10, show_default=True, help="configurations timed at most; PyTorch tries 10")
@click.option("--seconds", default=90.0, show_default=True, help="stop after so long, every n-th layer done by then")
@click.option("--profile", default=10, show_default=True, help="compare the GPU's commands of every n-th case")
@click.option("--jobs", default=6, show_default=True, help="processes that make plans; one at a time uses the GPU")
def gpu(
    nets: tuple[str, ...], directions: tuple[str, ...], maths: tuple[str, ...], seconds: float, jobs: int,
    tries: int, profile: int,
) -> None:  # fmt: skip
    """cudnn's best configuration beside PyTorch's choice, on the same memory; same algorithms, so near 1."""
    from cudnn_pair import begin, compare
    from farm import Lost, farm

    started, rows = time.time(), []
    # In an order that a time limit cuts fairly: each kind of case of each net in turn, its layers shuffled.
    shuffled = np.random.default_rng(0)
    by_kind = [
        [(kind, shapes.load(kind[0])[place]) for place in shuffled.permutation(len(shapes.load(kind[0])))]
        for kind in itertools.product(nets, directions, maths)
    ]
    cases = []
    for (net, direction, math_name), entry in filter(None, itertools.chain(*itertools.zip_longest(*by_kind))):
        dtype, math_word, layout = MATHS[math_name]
        problem = entry.problem.replace(direction=direction, dtype=dtype, math=math_word, layout=layout)
        row = {"net": net, "layer": entry.name, "count": entry.count, "direction": direction, "math": math_name}
        cases.append((len(cases), row, problem))
    until = time.monotonic() + seconds
    for row in farm(jobs, begin, (tries, profile), compare, cases, until=until, task_s=40.0):
        if isinstance(row, Lost):
            row = (row.task[1] if row.task else {}) | {"lost" if row.why == "out of time" else "failed": row.why}
        if "failed" in row:
            print(f"{row.get('net')} {row.get('layer')} {row.get('direction')} {row.get('math')}: {row['failed']}",
                  flush=True)  # fmt: skip
        rows.append(row)
    save("vendors_gpu.json", rows)
    _summary(nets, directions, maths, rows)
    print(f"{time.time() - started:.0f} s")


def _summary(nets: tuple[str, ...], directions: tuple[str, ...], maths: tuple[str, ...], rows: list[Any]) -> None:
    done = [row for row in rows if "ratio" in row]
    failed = sum("failed" in row for row in rows)
    print(f"{len(done)} of {len(rows)} cases, {failed} failed, {len(rows) - len(done) - failed} not reached")
    for math_name in maths:
        for direction in directions:
            chosen = [row for row in done if row["math"] == math_name and row["direction"] == direction]
            by_net = {net: mean([row["ratio"] for row in chosen if row["net"] == net]) for net in nets}
            text = "  ".join(f"{net} {value:.3f}" for net, value in by_net.items())
            print(f"{math_name} {direction:12} {mean([row['ratio'] for row in chosen]):.3f}   {text}")
        print(f"{math_name}: geometric mean {mean([row['ratio'] for row in done if row['math'] == math_name]):.3f}")
    print(f"all: geometric mean {mean([row['ratio'] for row in done]):.3f}")
    counts = [[len(row["commands"][side]) for side in ("ours", "torch")] for row in done if "commands" in row]
    more, fewer = (sum(sign * (ours - theirs) > 0 for ours, theirs in counts) for sign in (1, -1))
    print(f"commands on the GPU: more than PyTorch's in {more} of {len(counts)} cases, fewer in {fewer}")
    for row in sorted(done, key=lambda row: row["ratio"])[:8]:
        print({key: row[key] for key in ("net", "layer", "direction", "math", "ours", "torch", "ratio", "config")})
    worst = max(done, key=lambda row: row["difference"])
    print("largest difference", worst["difference"], worst["net"], worst["layer"], worst["direction"], worst["math"])


@main.command()
@click.option("--count", default=50, show_default=True)
def crossing(count: int) -> None:
    """Microseconds that work of CUDA's costs in an OpenCL queue, by how it is ordered."""
    import pyopencl as cl

    from convdispatch.device.cuda.bridge import bridge_of
    from convdispatch.device.memory.allocator import cuda_address

    device = runtime.find_device("nvidia")
    context = runtime.context(device)
    kernel = cl.Program(context, "kernel void up(global uint *a) { a[get_global_id(0)] += 1; }").build().up
    for ordered in (True, False):
        flags = 0 if ordered else cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        queue = cl.CommandQueue(context, properties=flags)
        across, memory = bridge_of(queue), runtime.allocate(queue, 1 << 12)

        def work(event: Any, across: Any = across, memory: Any = memory) -> Any:
            with across:
                across.enter(event)
                across.cuda("cuMemsetD32Async", cuda_address(memory), 1, 1024, across.stream)
                return [across.leave()]

        for mixed in (False, True):
            for many in (5, count):
                event, start = None, time.perf_counter()
                for _ in range(many):
                    event = work(event)
                    if mixed:
                        event = [kernel(queue, (1024,), None, memory, wait_for=event)]
                enqueued = time.perf_counter() - start
                queue.finish()
                event[0].wait()
                total = time.perf_counter() - start
            print(f"{'in order' if ordered else 'by events'}, {'each followed by a kernel' if mixed else 'alone'}: "
                  f"{enqueued / count * 1e6:.0f} us to enqueue, {total / count * 1e6:.0f} us in all")  # fmt: skip


if __name__ == "__main__":
    main()
