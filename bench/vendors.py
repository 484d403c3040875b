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

from convdispatch import dispatch, runtime, shapes
from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.loader import plugins

NETS = ("convnet", "alexnet", "overfeat", "vgg_a", "googlenet", "resnet50")
MATHS = {
    "fp32": ("float32", "float32", "nchw"),
    "tf32": ("float32", "tf32", "nchw"),
    "fp16": ("float16", "float32", "nhwc"),
}
PAUSE = 200_000
"""Cycles of the GPU for which a stream is held up for each repetition that the host is to queue meanwhile."""


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
    from layers import race, solver_work, torch_work

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
            first = race(works, 0.2, 1)
            best = [
                min((first[key], key) for key in works if key.startswith("torch") == peer) for peer in (False, True)
            ]
            final = race({key: works[key] for _, key in best}, seconds, rounds)
            times = first | final
            ours, theirs = ((final[key], key) for _, key in best)
            ratios.append(theirs[0] / ours[0])
            rows.append({"layer": entry.name, "direction": direction, "ms": times})
            print(f"{direction:12}{entry.name:15}{ours[0]:9.2f} ms  {ours[1]:14}{theirs[0]:9.2f} ms  {theirs[1]:12}"
                  f"{ratios[-1]:6.2f}", flush=True)  # fmt: skip
        print(f"{direction}: geometric mean {mean(ratios[-len(layers(net, only)) :]):.3f}", flush=True)
    print(f"all: geometric mean {mean(ratios):.3f} of {len(ratios)}")
    save("vendors_cpu.json", rows)


class Gpu:
    """One problem in both worlds on the same memory: convdispatch's tensors, which PyTorch views."""

    def __init__(self) -> None:
        import pyopencl as cl
        import torch

        from convdispatch.bridge import bridge_of

        self.torch = torch
        torch.backends.cudnn.benchmark = True
        self.device = runtime.find_device("nvidia")
        self.info, context = runtime.device_info(self.device), runtime.context(self.device)
        # Order by events alone: calls that follow one another in cuDNN then need no crossing between the worlds.
        out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self.queue = cl.CommandQueue(context, properties=out_of_order)
        self.bridge = bridge_of(self.queue)
        self.stream = torch.cuda.ExternalStream(self.bridge.stream.value)
        self.own = torch.cuda.Stream()
        self._last: Any = None

    def load(self, problem: ConvProblem) -> None:
        """Tensors of normal data, and PyTorch's views of them (NHWC as channels last)."""
        from convdispatch.tensor import Tensor

        torch, self.problem = self.torch, problem
        torch.cuda.synchronize()
        self.tensors = {
            name: Tensor.empty(getattr(problem, name + "_shape"), problem.dtype, self.queue) for name in "xwy"
        }
        self.views = {name: torch.from_dlpack(tensor) for name, tensor in self.tensors.items()}
        for name, view in self.views.items():
            view.normal_(std=1.0 if name != problem.written else 0.0)
        if problem.layout == "nhwc":
            self.views = {name: view.permute(0, 3, 1, 2) for name, view in self.views.items()}
        torch.cuda.synchronize()
        tf32 = problem.math == "tf32"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32

    def theirs(self) -> Any:
        """PyTorch's answer."""
        p, v = self.problem, self.views
        geometry = ([p.sh, p.sw], [p.ph, p.pw], [p.dh, p.dw])
        if p.direction == "fwd":
            return self.torch.nn.functional.conv2d(v["x"], v["w"], None, *geometry, p.g)
        mask = [p.direction == "bwd_data", p.direction == "bwd_weights", False]
        answer = self.torch.ops.aten.convolution_backward(
            v["y"], v["x"], v["w"], None, *geometry, False, [0, 0], p.g, mask
        )
        return answer[0 if mask[0] else 1]

    def runner(self, config: Any) -> Any:
        """What runs one configuration of the plugin once, after the run before."""
        solver = plugins().solvers["cudnn.convolution"]
        plan = dispatch.make(solver, config, self.problem, self.queue.context).plan
        scratch = runtime.workspace(self.queue, plan.workspace_size)
        x, w, y = (self.tensors[name].base_data for name in "xwy")

        def run() -> None:
            self._last = [plan.enqueue(self.queue, x, w, y, scratch, self._last)]

        return run

    def time(self, run: Any, stream: Any, repeat: int) -> float:
        """Milliseconds a run between CUDA's events on a stream."""
        cuda = self.torch.cuda
        before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(stream):
            cuda._sleep(PAUSE * repeat)
            before.record()
            for _ in range(repeat):
                run()
            after.record()
        after.synchronize()
        return before.elapsed_time(after) / repeat

    def difference(self, ours: Any) -> float:
        """Norm of the difference of both answers over the norm of PyTorch's."""
        self.torch.cuda.synchronize()
        ours()
        self._last[0].wait()
        theirs = self.theirs().double()
        return float((self.views[self.problem.written].double() - theirs).norm() / theirs.norm())

    def commands(self, run: Any, stream: Any) -> list[str]:
        """What the GPU does in one run, kernels and copies, by PyTorch's profiler."""
        torch = self.torch
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            with torch.cuda.stream(stream):
                run()
            torch.cuda.synchronize()
        return [event.name for event in profile.events() if event.device_type.name == "CUDA"]


@main.command()
@click.option("--net", "nets", multiple=True, default=NETS)
@click.option("--direction", "directions", multiple=True, type=click.Choice(DIRECTIONS), default=DIRECTIONS)
@click.option("--math", "maths", multiple=True, type=click.Choice(list(MATHS)), default=list(MATHS))
@click.option("--tries", default=10, show_default=True, help="configurations timed at most; PyTorch tries 10")
@click.option("--seconds", default=90.0, show_default=True, help="stop after so long, every n-th layer done by then")
@click.option("--profile", default=10, show_default=True, help="compare the GPU's commands of every n-th case")
def gpu(
    nets: tuple[str, ...], directions: tuple[str, ...], maths: tuple[str, ...], tries: int, seconds: float, profile: int
) -> None:
    """cudnn's best configuration beside PyTorch's choice, on the same memory; same algorithms, so near 1."""
    started, rig, rows, copies = time.time(), Gpu(), [], []
    # In an order that a time limit cuts fairly: each kind of case of each net in turn, its layers shuffled.
    shuffled = np.random.default_rng(0)
    kinds = [(net, direction, math_name) for net in nets for direction in directions for math_name in maths]
    by_kind = [[(kind, shapes.load(kind[0])[place]) for place in shuffled.permutation(len(shapes.load(kind[0])))]
              for kind in kinds]  # fmt: skip
    rounds = itertools.zip_longest(*by_kind)
    cases = [case for turn in rounds for case in turn if case is not None]
    for number, ((net, direction, math_name), entry) in enumerate(cases):
        if time.time() - started > seconds:
            break
        dtype, math_word, layout = MATHS[math_name]
        problem = entry.problem.replace(direction=direction, dtype=dtype, math=math_word, layout=layout)
        row = {"net": net, "layer": entry.name, "count": entry.count, "direction": direction, "math": math_name}
        try:
            row |= _compare(rig, problem, tries)
            if number % profile == 0:
                row["commands"] = {
                    "ours": rig.commands(row["run"], rig.stream),
                    "torch": rig.commands(rig.theirs, rig.own),
                }
                ours, theirs = ([c for c in side if "vectorized_gather" not in c] for side in row["commands"].values())
                copies.append((len(ours), len(theirs)))
        except Exception as error:  # one case must not end the run: it is reported
            row["failed"] = f"{type(error).__name__}: {error}"
            print(f"{net} {entry.name} {direction} {math_name}: {row['failed']}", flush=True)
        row.pop("run", None)
        rows.append(row)
    save("vendors_gpu.json", rows)
    done = [row for row in rows if "ratio" in row]
    print(f"{len(done)} of {len(cases)} cases, {len(rows) - len(done)} failed, {time.time() - started:.0f} s")
    for math_name in maths:
        for direction in directions:
            chosen = [row for row in done if row["math"] == math_name and row["direction"] == direction]
            by_net = {net: mean([row["ratio"] for row in chosen if row["net"] == net]) for net in nets}
            text = "  ".join(f"{net} {value:.3f}" for net, value in by_net.items())
            print(f"{math_name} {direction:12} {mean([row['ratio'] for row in chosen]):.3f}   {text}")
        print(f"{math_name}: geometric mean {mean([row['ratio'] for row in done if row['math'] == math_name]):.3f}")
    print(f"all: geometric mean {mean([row['ratio'] for row in done]):.3f}")
    more = sum(ours > theirs for ours, theirs in copies)
    print(f"commands on the GPU: more than PyTorch's in {more} of {len(copies)} cases, fewer in "
          f"{sum(ours < theirs for ours, theirs in copies)}")  # fmt: skip
    for row in sorted(done, key=lambda row: row["ratio"])[:8]:
        print({key: row[key] for key in ("net", "layer", "direction", "math", "ours", "torch", "ratio", "config")})
    worst = max(done, key=lambda row: row["difference"])
    print("largest difference", worst["difference"], worst["net"], worst["layer"], worst["direction"], worst["math"])


def _compare(rig: Gpu, problem: ConvProblem, tries: int) -> dict[str, Any]:
    rig.load(problem)
    solver = plugins().solvers["cudnn.convolution"]
    reason = solver.rejects(problem, rig.info)
    if reason:
        raise RuntimeError(reason)
    for _ in range(2):
        with rig.torch.cuda.stream(rig.own):
            rig.theirs()
    rig.torch.cuda.synchronize()
    found = []
    for config in list(solver.configs(problem, rig.info))[:tries]:
        try:
            run = rig.runner(config)
            rig.time(run, rig.stream, 1)
            first = rig.time(run, rig.stream, 2)
        except Exception:  # an engine that the heuristics name may still not serve: PyTorch passes over it too
            continue
        found.append((first, len(found), run, config))
    if not found:
        raise RuntimeError("no configuration runs")
    found.sort()
    repeat = int(min(20, max(3, 1.0 / found[0][0])))
    finalists = found[:2]
    times: list[list[float]] = [[] for _ in finalists]
    theirs = []
    for _ in range(5):
        for place, (_, _, run, _) in enumerate(finalists):
            times[place].append(rig.time(run, rig.stream, repeat))
        theirs.append(rig.time(rig.theirs, rig.own, repeat))
    ours, place = min((statistics.median(samples), place) for place, samples in enumerate(times))
    run, config = finalists[place][2:]
    torch_ms = statistics.median(theirs)
    return {
        "problem": str(problem), "ours": ours, "torch": torch_ms, "ratio": torch_ms / ours, "run": run,
        "config": config, "difference": rig.difference(run),
    }  # fmt: skip


@main.command()
@click.option("--count", default=50, show_default=True)
def crossing(count: int) -> None:
    """Microseconds that work of CUDA's costs in an OpenCL queue, by how it is ordered."""
    import pyopencl as cl

    from convdispatch.bridge import bridge_of
    from convdispatch.memory import cuda_address

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
