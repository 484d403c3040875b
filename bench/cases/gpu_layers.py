"""Layers on NVIDIA GPUs: the first choice of each problem beside cuDNN, as PyTorch's users run both.

    python -m bench gpu_layers                                                  # six nets, three directions, float32
    python -m bench gpu_layers --form tf32 --form float16_nhwc --net resnet50_full
    python -m bench gpu_layers --from layers.txt --form tf32

Both sides are calls on PyTorch's tensors in CUDA graphs, in turns, over operands that together exceed the cache: ours
under ``enable()`` without a search, cuDNN with its own (``cudnn.benchmark``), TF32 on both sides or on none. Processes
on all processors make the kernels ready first; then one process a GPU times. Results are compared with cuDNN's of the
same operands in float32 without TF32.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import convdispatch as cd
from bench.timer import graph_side, medians, sets_of
from bench.workers import Lost, farm
from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import shapes
from convdispatch.measurement.grammar import read_file

NETS = ("convnet", "alexnet", "overfeat", "vgg_a", "googlenet", "resnet50")
FORMS = {
    "float32": {},
    "tf32": {"math": "tf32"},
    "float16": {"dtype": "float16"},
    "float16_nhwc": {"dtype": "float16", "layout": "nhwc"},
    "bfloat16_nhwc": {"dtype": "bfloat16", "layout": "nhwc"},
    "tf32_nhwc": {"math": "tf32", "layout": "nhwc"},
}
SECONDS, SAMPLES = 0.005, 3
LATE, SLOW = 0.95, 0.8
"""Ratios below which layers are counted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", dest="nets", help="a shape table; six nets without")
    parser.add_argument("--from", type=Path, dest="file", help="a file of problems instead of nets")
    parser.add_argument("--form", action="append", dest="forms", choices=FORMS)
    parser.add_argument("--solver", help="a name or glob: only these solvers")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 4), help="processes that compile")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--within", type=float, default=500, help="seconds; layers are drawn, so that any part is a sample"
    )
    options = parser.parse_args()
    tasks = list(_tasks(options.nets or NETS, options.file, options.forms or ["float32"]))
    random.Random(0).shuffle(tasks)
    given = options.gpus, options.solver
    until, begin = time.monotonic() + options.within, time.perf_counter()
    lost = [each for each in farm(options.jobs, _begin, given, _prepare, tasks, until=until) if each]
    print(f"{len(tasks)} problems made ready in {time.perf_counter() - begin:.0f} s", flush=True)
    rows = []
    for row in farm(options.gpus, _begin, given, _timed, tasks, until=until):
        lost += [row] if isinstance(row, Lost) else []
        rows += [] if isinstance(row, Lost) else [row]
    for each in lost:
        print("LOST", each.task and each.task[2], each.why, flush=True)
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "gpu_layers.json").write_text(json.dumps(rows))
    for form in options.forms or ["float32"]:
        _tell(form, [row for row in rows if row["form"] == form])


def _tasks(nets: Sequence[str], file: Path | None, forms: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(net, form, problem) of each layer in each direction."""
    lists = {file.stem: read_file(file)} if file else {net: shapes.load(net) for net in nets}
    named = [(net, entry.problem) for net, entries in lists.items() for entry in entries]
    for form in forms:
        for net, layer in named:
            for direction in DIRECTIONS:
                yield net, form, str(layer.replace(direction=direction, **FORMS[form]))


_process: dict[str, Any] = {}
"""The lock of this process's GPU, and the solvers that it may choose."""


def _begin(gpus: int, solver: str | None) -> None:
    """This process gets a GPU that no other process of a run has, or where all are taken any of them."""
    _process["solver"] = solver
    place = os.getpid() % gpus
    for each in range(gpus):
        file = Path(tempfile.gettempdir(), f"convdispatch_bench_gpu{each}").open("w")  # noqa: SIM115 (held)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _process["lock"], place = file, each
            break
    os.environ["CUDA_VISIBLE_DEVICES"] = str(place)


@contextlib.contextmanager
def _side(problem: ConvProblem, ours: bool) -> Iterator[None]:
    """PyTorch's switches for a problem's math, and for a side its way to choose."""
    import torch

    import convdispatch.torch as ct

    is_tf32 = problem.math == "tf32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.benchmark = not ours
    choice = ct.enable() if ours else contextlib.nullcontext()
    with torch.inference_mode(), choice, cd.policy(tier="full", solver=_process.get("solver")):
        yield


def _operands(problem: ConvProblem) -> tuple[Any, ...]:
    """x, w and y of normal numbers, in PyTorch's order of axes and the problem's order of memory."""
    import torch

    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(problem.ndim)
    memory_format = last if problem.layout == "nhwc" and last is not None else torch.contiguous_format
    plain, kind = problem.replace(layout="nchw"), getattr(torch, problem.dtype)
    shapes_of = [getattr(plain, name + "_shape") for name in "xwy"]
    scale = math.prod(shapes_of[1][1:]) ** -0.5
    made = [torch.randn(shape, device="cuda") * (scale if at == 1 else 1) for at, shape in enumerate(shapes_of)]
    return tuple(each.to(kind).to(memory_format=memory_format) for each in made)


def _call(problem: ConvProblem, x: Any, w: Any, y: Any) -> Any:
    import torch

    stride, padding, dilation = ([getattr(problem, letter + axis) for axis in problem.axes] for letter in "spd")
    if problem.direction == "fwd":
        return torch.convolution(x, w, None, stride, padding, dilation, False, [0] * problem.ndim, problem.g)
    mask = [problem.direction == "bwd_data", problem.direction == "bwd_weights", False]
    geometry = stride, padding, dilation, False, [0] * problem.ndim, problem.g
    return torch.ops.aten.convolution_backward(y, x, w, None, *geometry, mask)[mask.index(True)]


def _prepare(task: tuple[str, str, str]) -> Lost | None:
    """Nothing but the kernels of a problem on disk; what goes wrong is said when it is timed."""
    problem = ConvProblem.parse(task[2])
    with contextlib.suppress(Exception):
        _work(problem, "ours", [_operands(problem)], 0)
    return None


def _work(problem: ConvProblem, side: str, sets: Sequence[tuple[Any, ...]], number: int) -> Any:
    """A side's call over the operands whose turn it is."""
    with _side(problem, ours=side == "ours"):
        return _call(problem, *sets[number % len(sets)])


def _timed(task: tuple[str, str, str]) -> dict[str, Any]:
    import torch

    torch.cuda.empty_cache()
    net, form, text = task
    problem = ConvProblem.parse(text)
    count = sets_of(sum(math.prod(getattr(problem, name + "_shape")) for name in "xwy") * problem.itemsize)
    sets = [_operands(problem) for _ in range(count)]
    got = _work(problem, "ours", sets, 0).float()
    expected = _work(problem.replace(math="float32"), "cudnn", [tuple(each.float() for each in sets[0])], 0)
    error = float((got - expected).norm() / expected.norm())
    del expected
    sides = {side: graph_side(functools.partial(_work, problem, side, sets)) for side in ("ours", "cudnn")}
    ms = medians(sides, SECONDS, SAMPLES)
    return {"net": net, "form": form, "problem": text, "direction": problem.direction, "error": error, **ms}


def _tell(form: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    ratios = {row["problem"]: row["cudnn"] / row["ours"] for row in rows}
    mean = statistics.geometric_mean
    late, slow = (sum(ratio < bound for ratio in ratios.values()) for bound in (LATE, SLOW))
    print(f"\n{form}: {len(rows)} problems, cuDNN's time over ours {mean(ratios.values()):.2f}, {late} below {LATE}, "
          f"{slow} below {SLOW}, errors to {max(row['error'] for row in rows):.1e}")  # fmt: skip
    print("| net | " + " | ".join(f"{direction}, ms: ours, cuDNN, ratio" for direction in DIRECTIONS) + " |")
    for net in dict.fromkeys(row["net"] for row in rows):
        parts = [[row for row in rows if (row["net"], row["direction"]) == (net, each)] for each in DIRECTIONS]
        sums = [(sum(row["ours"] for row in part), sum(row["cudnn"] for row in part)) for part in parts]
        print(f"| {net} | " + " | ".join(f"{a:.2f}, {b:.2f}, {b / a:.2f}" if a else "-" for a, b in sums) + " |")
    for text in sorted(ratios, key=ratios.__getitem__)[:12]:
        print(f"  {ratios[text]:.2f} {text}")


if __name__ == "__main__":
    main()
