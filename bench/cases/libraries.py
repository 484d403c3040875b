"""The libraries people use, unchanged, in PyTorch on a CPU or a GPU: results, calls left, times, memory of each model.

``python -m bench libraries [--library L] [--only TEXT] [--model LIBRARY/NAME ...] [--device cpu|cuda] [--rows FILE]
[--batch N] [--form float32|tf32|float16] [--compile] [--no-train] [--no-time] [--jobs N] [--table]``

Each model is made by its own library (``library_models.py``) and runs in a process of its own with a time limit: plain,
under ``enable()``, as ``convert(model, fuse=True)``, with ``--compile`` by ``torch.compile``, and in a training step of
plain and ``enable()``; on a GPU in PyTorch's CUDA graph and the fused model's, too. Sides take turns; on a CPU PyTorch
alone is timed before them. On a GPU pictures are there ``--batch`` times, PyTorch measures its algorithms first
(``cudnn.benchmark``), and in float16 both have weights and pictures in channels last. Errors are against the same model
in float64. A row of JSON is added to ``--rows`` for each; models that have a row are left out, so a run goes on where
it ended, and with ``--again`` a model's later row adds to its earlier. With ``--no-time`` results and counts alone are
taken, which asks for no quiet machine: ``--jobs`` of them run side by side. What a package lacks is said.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench import again, timer
from bench.results import append_row, markdown, read_rows
from bench.timer import host_seconds, in_turns
from bench.workers import ChildFailed, last_object

SKIPPED = {
    "ultralytics": "its licence is the AGPL-3.0, which this project does not ask of whoever runs its tests; the "
    "layers of its nets (SiLU after batch norms, sums, concats, upsampling) are in the other libraries' models"
}
"""Libraries that are left out, and why."""
ERRORS = ("error_plain", "error", "error_fused"), ("train_error_plain", "train_error")
SIDES = ("enable", "fused", "compile", "graph", "step")
"""Sides whose ratio to PyTorch's time is told: ``graph`` of two CUDA graphs, ``step`` of two training steps."""
ROUNDS, SECONDS = 5, 0.4
"""Rounds in which sides take turns, and the seconds of all rounds of a side."""

Sides = dict[str, Callable[[], Any]]


def timed(sides: Sides, device: str, within: Sides | None = None) -> dict[str, float]:
    """Median milliseconds of each side, in turns; a side that fails is left out.

    ``within`` are contexts in which sides run, as ``enable()``: entered once a turn and not timed, as a script enters
    it once.
    """
    import torch

    def context(name: str) -> Any:
        return (within or {}).get(name, nullcontext)()

    def least_ms(name: str) -> float:
        times: list[float] = []
        with context(name):
            sides[name](), sides[name]()
            until = time.perf_counter() + SECONDS / ROUNDS
            while not times or time.perf_counter() < until:
                wait()
                times.append(host_seconds(sides[name], 1, wait))
        return 1e3 * min(times)

    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    samplers: dict[str, Callable[[], float]] = {}
    for name, run in sides.items():
        try:
            with context(name):
                run(), run()
            samplers[name] = functools.partial(least_ms, name)
        except Exception as failure:
            print(f"{name}: {cause(failure)}", file=sys.stderr)
    return in_turns(samplers, ROUNDS)


def cause(failure: Exception) -> str:
    """An error in a line."""
    return f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:200]}"


def counted() -> dict[str, Any]:
    """What became of the calls."""
    import convdispatch.torch as ct

    counters = ct.counters()
    return {key: counters[key] for key in ("ours", "left", "reasons")}


def work(library: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Every side of one model."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    on_gpu, half = given.device.startswith("cuda"), given.form == "float16"
    if not on_gpu and not given.no_time:
        os.environ["CONVDISPATCH_TIER"] = "full"  # not by a policy: calls under one go by Python
    import torch

    import convdispatch.torch as ct
    from bench.library_models import LIBRARIES, tensors_of

    torch.backends.cudnn.benchmark = not given.no_time
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = given.form == "tf32"
    torch.manual_seed(0)
    each_tensor = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor)
    net, args, kwargs = LIBRARIES[library][name]()
    net = net.to(given.device).eval()
    args, kwargs = each_tensor(lambda t: t.to(given.device), (args, kwargs))
    settle(net, args, kwargs)
    count = sum(isinstance(each, torch.nn.modules.conv._ConvNd) for each in net.modules())
    row: dict[str, Any] = {"torch": torch.__version__, "convolutions": count}

    def used(t: Any) -> Any:
        t = t.repeat(given.batch, *[1] * (t.ndim - 1)) if t.ndim >= 4 else t
        t = t.half() if half and t.is_floating_point() else t
        return t.contiguous(memory_format=torch.channels_last) if half and t.ndim == 4 else t

    args, kwargs = each_tensor(used, (args, kwargs))
    exact_net = copy.deepcopy(net)
    net = net.half().to(memory_format=torch.channels_last) if half else net

    def forward(model: Any = net, args: Any = args, kwargs: Any = kwargs) -> list[Any]:
        with torch.no_grad():
            return tensors_of(model(*args, **kwargs))  # type: ignore[no-any-return]

    def step(model: Any = net, args: Any = args, kwargs: Any = kwargs) -> list[Any]:
        """Gradients in eval mode's norms, so that both sides compute the same."""
        results = [t for t in tensors_of(model(*args, **kwargs)) if t.requires_grad]
        loss = sum(t.to(torch.promote_types(t.dtype, torch.float32)).square().mean() for t in results)
        weights = [p for p in model.parameters() if p.requires_grad]
        return [g for g in torch.autograd.grad(loss, weights, allow_unused=True) if g is not None]

    def exactly(run: Callable[..., Any]) -> Any:
        """What ``run`` gives of the model in float64; None where it does not run so."""
        try:
            wide = each_tensor(lambda t: t.double() if t.is_floating_point() else t, (args, kwargs))
            return run(copy.deepcopy(exact_net).double(), *wide)
        except Exception:
            return None

    def ready(run: Callable[[], Any]) -> Any:
        """What it answers once nothing is compiled aside any more, and fused models are captured."""
        from convdispatch.calls.framework import tiers

        run()
        for turn in range(8):
            tiers.drain()
            ct.reset_counters()
            result = run()
            if turn > 2 and not tiers.pending():
                break
        return result

    def enabled(run: Callable[[], Any]) -> Any:
        with ct.enable():
            return ready(run)

    alone, alone_step, wanted = {}, {}, None
    if not (on_gpu or given.no_time):
        alone = timed({"alone": forward}, given.device)
    plain = forward()
    if not given.no_train:
        try:
            wanted = step()
            if alone:
                alone_step = timed({"alone": step}, given.device)
        except Exception as failure:
            row["train"] = cause(failure)
    torch.backends.cudnn.benchmark = False  # what it found stays; ours would measure in the background
    exact = exactly(forward)
    reference = plain if exact is None else exact
    row["error_plain"] = None if exact is None else error(plain, exact)
    sides: Sides = {"plain": forward, "enable": forward}
    graphs, steps = {"plain": forward}, {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        row["error"] = error(enabled(forward), reference)
        row["counters"], row["first_s"] = counted(), time.perf_counter() - begin
        begin = time.perf_counter()
        try:
            fused = ct.convert(copy.deepcopy(net), fuse=True)
            sides["fused"] = graphs["graph"] = lambda: forward(fused)
            row["error_fused"] = error(ready(sides["fused"]), reference)
            row["first_fused_s"] = time.perf_counter() - begin
            row["forms"], row["breaks"] = sorted(ct.fusion(fused).forms.values()), ct.fusion(fused).breaks
        except Exception as failure:
            row["fused"] = cause(failure)
    ours = [each for each in caught if "ConvDispatch" in each.category.__name__]
    row["warnings"] = sorted({str(each.message).splitlines()[0][:200] for each in ours})
    if given.compile:
        torch._inductor.config.freezing = True
        compiled = torch.compile(copy.deepcopy(net))
        sides["compile"] = lambda: forward(compiled)
    if wanted is not None:
        got, exact = enabled(step), exactly(step)
        flat = [[torch.cat([g.flatten().double() for g in each])] if each else [] for each in (got, wanted, exact)]
        row["train_error"] = error(flat[0], flat[2] if exact else flat[1])
        row["train_error_plain"] = error(flat[1], flat[2]) if exact else None
        row["train_counters"] = counted()
        steps = {"plain": step, "step": step}
    if not given.no_time:
        row["ms"] = alone | timed(sides, given.device, {"enable": ct.enable})
        row["graph_ms"] = timed(captured(graphs), given.device) if on_gpu else {}
        row["train_ms"] = alone_step | timed(steps, given.device, {"step": ct.enable})
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row["peak_mb"] = torch.cuda.max_memory_allocated() >> 20 if on_gpu else peak_kib // 1024
    return row


def captured(runs: Sides) -> Sides:
    """Each as a CUDA graph's replay; none where one cannot be captured."""
    graphs: Sides = {}
    for name, run in runs.items():
        try:
            graphs[name] = timer.captured(run)
        except Exception as failure:
            print(f"{name}: {cause(failure)}", file=sys.stderr)
            break
    return graphs if len(graphs) > 1 else {}


def settle(net: Any, args: Any, kwargs: Any) -> None:
    """Give batch norms the statistics of their inputs: deep nets of new ones answer their last bias alone. Spread a
    detector's scores: new layers score all boxes alike, so that roundings choose among them."""
    import torch

    from bench.library_models import scoring

    scored = set()

    def spread(layer: Any, given: Any, answer: Any) -> Any:
        if layer in scored:  # by the first pyramid level, which has most boxes
            return answer
        scored.add(layer)
        scale, mean = 2 / answer.std(), answer.mean()
        layer.weight.mul_(scale)
        layer.bias.sub_(mean).mul_(scale).sub_(4)
        return (answer - mean) * scale - 4

    def measure(norm: Any, given: Any) -> None:
        axes = [axis for axis in range(given[0].ndim) if axis != 1]
        if given[0].numel() > given[0].shape[1]:
            norm.running_mean.copy_(given[0].mean(axes))
            norm.running_var.copy_(given[0].var(axes, correction=0) + 1e-3)

    norms = [n for n in net.modules() if isinstance(n, torch.nn.modules.batchnorm._BatchNorm) and n.track_running_stats]
    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    hooks += [layer.register_forward_hook(spread) for layer in scoring(net)]
    with torch.no_grad():
        net(*args, **kwargs)
    for hook in hooks:
        hook.remove()


def error(got: Any, wanted: Any) -> float | None:
    """The largest relative error of the answers, by norm; None where their sizes differ, as a detector's may."""
    if [g.shape for g in got] != [w.shape for w in wanted]:
        return None
    pairs = [(g.double(), w.double()) for g, w in zip(got, wanted)]
    return max((float((g - w).norm() / w.norm().clamp_min(1e-30)) for g, w in pairs), default=0.0)


def run(library: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """A model's row, by a child."""
    words = [*again("libraries"), "--model", f"{library}/{name}", "--work", "--device", given.device]
    words += ["--batch", str(given.batch), "--form", given.form, *["--compile"] * given.compile]
    words += ["--no-train"] * given.no_train + ["--no-time"] * given.no_time
    try:
        return last_object(words, given.limit)
    except ChildFailed as failure:
        return {"failed": (str(failure).splitlines() or [""])[-1][:300]}


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """PyTorch's time over each side's."""
    times = [row.get(key, {}) for key in ("ms", "graph_ms", "train_ms")]
    return {side: each["plain"] / ms for each in times for side, ms in each.items() if side in SIDES}


def errors_of(row: dict[str, Any], keys: tuple[str, ...]) -> str:
    """A row's errors as a table's cell."""
    return "; ".join("-" if row.get(key) is None else f"{row[key]:.0e}" for key in keys)


def described(row: dict[str, Any]) -> str:
    """One line."""
    head = f"{row['library']:12.12} {row['model']:32.32}"
    if "failed" in row:
        return f"{head} {row['failed']}"
    parts = [f"{row['ms']['plain']:8.1f} ms"] if row.get("ms") else []
    parts += [f"{side} {ratio:.2f}" for side, ratio in ratios(row).items()]
    left, ours = (row["counters"][key] for key in ("left", "ours"))
    return f"{head} {'  '.join(parts)}  errors {errors_of(row, sum(ERRORS, ()))}  left {left} of {left + ours}"


def table(rows: list[dict[str, Any]], times: bool) -> str:
    """Rows as Markdown; with ``times`` PyTorch's milliseconds, ratios and their geometric means."""
    columns = ["library", "model", "form", "batch", "convolutions", "ours; left to PyTorch"]
    columns += ["error of PyTorch; enable(); fused", "gradients' error of PyTorch; enable()"]
    found = [ratios(row) for row in rows]
    sides = [side for side in SIDES if any(side in each for each in found)] if times else []
    lines = []
    for row, each in zip(rows, found):
        cells = [row["library"], row["model"], row.get("form", ""), row.get("batch", "")]
        if "failed" in row:
            cells += [row["failed"], *[""] * 3]
        else:
            cells += [row["convolutions"], f"{row['counters']['ours']}; {row['counters']['left']}"]
            cells += [errors_of(row, keys) for keys in ERRORS]
        if times:
            cells += [f"{row['ms']['plain']:.2f}" if row.get("ms") else ""]
            cells += [f"{each[side]:.2f}" if side in each else "" for side in sides]
        lines.append(cells)
    if times:
        columns += ["PyTorch, ms", *sides]
        known = [[each[side] for each in found if side in each] for side in sides]
        means = [f"{statistics.geometric_mean(values):.2f}, least {min(values):.2f}" for values in known]
        lines.append(["geometric mean", f"of {len(rows)}", *[""] * 7, *means])
    return markdown(columns, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append")
    parser.add_argument("--only", default="", help="models whose names hold this text")
    parser.add_argument("--model", action="append", help="as torchvision/resnet50, may repeat")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="so many times the pictures; on a GPU 16, else once")
    parser.add_argument("--form", choices=("float32", "tf32", "float16"), help="on a GPU tf32, else float32")
    parser.add_argument("--rows", type=Path, default=Path("libraries.jsonl"))
    parser.add_argument("--limit", type=float, default=240, help="seconds for a model")
    parser.add_argument("--compile", action="store_true", help="torch.compile's, too")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--no-time", action="store_true", help="results and counts alone")
    parser.add_argument("--jobs", type=int, default=1, help="models side by side, with --no-time")
    parser.add_argument("--again", action="store_true", help="models that have a row, too")
    parser.add_argument("--table", action="store_true", help="print the rows; with --no-time without times")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    on_gpu = given.device.startswith("cuda")
    given.batch, given.form = given.batch or (16 if on_gpu else 1), given.form or ("tf32" if on_gpu else "float32")
    if given.work:
        print(json.dumps(work(*given.model[0].split("/"), given)), flush=True)
        return
    latest = {(row["library"], row["model"], row["device"]): row for row in read_rows(given.rows)}
    if given.table:
        print(table([row for row in latest.values() if row["device"] == given.device], not given.no_time))
        return
    from bench.library_models import LIBRARIES

    if given.jobs > 1 and not given.no_time:
        parser.error("--jobs goes with --no-time: models that run side by side have no times")

    def one(library: str, name: str) -> None:
        row = {"library": library, "model": name, "device": given.device, "form": given.form, "batch": given.batch}
        row |= run(library, name, given)
        if "failed" not in row:  # what an earlier run measured and this one did not stays
            row = latest.get((library, name, given.device), {}) | row
            row.pop("failed", None)
        append_row(given.rows, row)
        print(described(row), flush=True)

    for library, why in SKIPPED.items():
        if not given.library or library in given.library:
            print(f"{library} is skipped: {why}")
    with ThreadPoolExecutor(given.jobs) as pool:
        for library, models in LIBRARIES.items():
            if given.library and library not in given.library:
                continue
            if importlib.util.find_spec(library) is None:
                print(f"{library} is not installed: pip install {library}")
                continue
            for name in models:
                asked = given.only in name and (not given.model or f"{library}/{name}" in given.model)
                if asked and ((library, name, given.device) not in latest or given.again):
                    pool.submit(one, library, name)


if __name__ == "__main__":
    main()
