"""The libraries people use, unchanged, in PyTorch: results, calls left, times, memory of each model.

``python -m bench libraries [--library L] [--only TEXT] [--model LIBRARY/NAME] [--device cpu] [--rows FILE]
[--no-train] [--no-time] [--jobs N] [--compile [SIDE ...]] [--turn FILE] [--table]``

Each model is made by its own library (``library_models.py``) and runs in a process of its own with a time limit: plain,
under ``enable()``, as ``convert(model, fuse=True)``, and with ``--compile`` by ``torch.compile`` plain, under
``enable()`` and fused; forward, and a training step of plain and ``enable()``. PyTorch alone is timed first, as where
nothing of this was ever imported; the other sides in turns after it. Errors are against the same model in float64. A
row of JSON is added to ``--rows`` for each; models that have a row are left out, so a run goes on where it ended, and
with ``--again`` a model's later row adds to its earlier. With ``--no-time`` results and counts alone are taken, which
asks for no quiet machine: ``--jobs`` of them run side by side. With ``--turn`` a model is made ready, which takes
minutes with ``--compile``, and waits for that file's lock to be timed. On a GPU ``libraries_gpu.py`` takes the times.
What a package lacks is said.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import resource
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import again
from bench.library_times import cause, counted, error_cell, gradients, mean_cell, row_of_child, timed

SKIPPED = {
    "ultralytics": "its licence is the AGPL-3.0, which this project does not ask of whoever runs its tests; the "
    "layers of its nets (SiLU after batch norms, sums, concats, upsampling) are in the other libraries' models"
}
"""Libraries that are left out, and why."""
ERRORS = "error_plain", "error", "error_fused", "train_error_plain", "train_error"


def work(
    library: str,
    name: str,
    device: str,
    train: bool,
    times: bool = True,
    turn: Path | None = None,
) -> dict[str, Any]:
    """Every side of one model."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    if times:
        os.environ["CONVDISPATCH_TIER"] = "full"  # not by a policy: calls under one go by Python
    import torch

    import convdispatch.torch as ct
    from bench.library_models import LIBRARIES, tensors_of

    torch.manual_seed(0)
    net, args, kwargs = LIBRARIES[library][name]()
    net = net.to(device).eval()
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), (args, kwargs))
    settle(net, args, kwargs)
    row: dict[str, Any] = {"torch": torch.__version__, "convolutions": convolutions(net)}

    def forward(model: Any = net) -> list[Any]:
        with torch.no_grad():
            return tensors_of(model(*args, **kwargs))

    alone = timed({"alone": forward}, device) if times and turn is None else {}
    alone_train = _training(None, net, args, kwargs, tensors_of, device, times) if train else {}
    exact = exact_answer(net, args, kwargs, tensors_of)
    plain = forward()
    reference = plain if exact is None else exact
    row["error_plain"] = None if exact is None else error(plain, exact)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ct.reset_counters()
        with ct.enable():
            begin = time.perf_counter()
            got = forward()
            row["first_s"] = time.perf_counter() - begin
        row["error"] = error(got, reference)
        row["counters"] = counted()
        begin = time.perf_counter()
        try:
            fused = ct.convert(copy.deepcopy(net), fuse=True)
            row["error_fused"] = error(forward(fused), reference)
            row["first_fused_s"] = time.perf_counter() - begin
            row["forms"], row["untraced"] = list(ct.fusion(fused).forms.values()), ct.fusion(fused).left
        except Exception as failure:
            fused, row["fused"] = None, cause(failure)
        row["warnings"] = sorted(
            {str(each.message).splitlines()[0][:200] for each in caught if "ConvDispatch" in each.category.__name__}
        )

        sides: dict[str, Callable[[], Any]] = {"plain": forward, "enable": forward}
        if fused is not None:
            sides["fused"] = lambda: forward(fused)
        if times:
            row["ms"] = alone | timed(sides, device, {"enable": ct.enable}, turn)
        if train:
            row |= _training(ct, net, args, kwargs, tensors_of, device, times, alone_train)
    row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row


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


def convolutions(net: Any) -> int:
    import torch

    return sum(isinstance(each, torch.nn.modules.conv._ConvNd) for each in net.modules())


def exact_answer(net: Any, args: Any, kwargs: Any, tensors_of: Any, run: Any = None) -> Any:
    """What the model answers in float64, or what ``run(model, args, kwargs)`` does; None where it does not run so."""
    import torch

    def wide(t: Any) -> Any:
        return t.double() if t.is_floating_point() else t

    def forward(model: Any, args: Any, kwargs: Any) -> list[Any]:
        with torch.no_grad():
            return tensors_of(model(*args, **kwargs))  # type: ignore[no-any-return]

    try:
        given = torch.utils._pytree.tree_map_only(torch.Tensor, wide, (args, kwargs))
        return (run or forward)(copy.deepcopy(net).double(), *given)
    except Exception:
        return None


def error(got: Any, wanted: Any) -> float | None:
    """The largest relative error of the answers, by norm; None where their sizes differ, as a detector's may."""
    if [g.shape for g in got] != [w.shape for w in wanted]:
        return None
    found = [float((g.double() - w.double()).norm() / w.double().norm().clamp_min(1e-30)) for g, w in zip(got, wanted)]
    return max(found, default=0.0)


def _training(
    ct: Any, net: Any, args: Any, kwargs: Any, tensors_of: Any, device: str, times: bool, alone: Any = None
) -> dict[str, Any]:
    """A step's gradients and times, in eval mode's norms so that both sides compute the same; without ``ct`` PyTorch's
    alone, which is given then. Errors are against the gradients in float64, where the model runs so: a net without
    trained weights magnifies roundings, which change the sign of what a ReLU takes, on either side."""
    import torch

    def step(net: Any = net, args: Any = args, kwargs: Any = kwargs) -> list[Any]:
        loss = sum(t.square().mean() for t in tensors_of(net(*args, **kwargs)) if t.requires_grad)
        return gradients(loss, net)

    if ct is None:
        try:
            return {"gradients": step(), "ms": timed({"alone": step}, device) if times else {}}
        except Exception as failure:
            return {"train": cause(failure)}
    if "train" in alone:
        return {"train": alone["train"]}
    ct.reset_counters()
    with ct.enable():
        got = step()
    train_counters = counted()

    def whole(gradients: Any) -> list[Any]:
        return [torch.cat([g.flatten().double() for g in gradients])] if gradients else []

    exact = exact_answer(net, args, kwargs, tensors_of, step)
    reference = whole(alone["gradients"] if exact is None else exact)
    found = {
        "train_error_plain": None if exact is None else error(whole(alone["gradients"]), reference),
        "train_error": error(whole(got), reference),
        "train_counters": train_counters,
    }
    if times:
        sides = {"plain": step, "enable": step}
        found["train_ms"] = alone["ms"] | timed(sides, device, {"enable": ct.enable})
    return found


def run(library: str, name: str, given: Any) -> dict[str, Any]:
    """A model's row, by a child."""
    words = [*again("libraries"), "--work", library, name, "--device", given.device]
    words += ["--turn", str(given.turn)] if given.turn else []
    words += ["--no-train"] * given.no_train + ["--no-time"] * given.no_time
    return row_of_child(words, given.limit)


def described(row: dict[str, Any]) -> str:
    """One line."""
    head = f"{row['library']:12.12} {row['model']:32.32}"
    if "failed" in row:
        return f"{head} {row['failed']}"
    ms, train = row.get("ms", {}), row.get("train_ms", {})
    parts = [f"{ms['plain']:8.1f} ms"] if ms else []
    parts += [f"{side} {ms['plain'] / ms[side]:.2f}" for side in ms if side not in ("plain", "alone")]
    parts += [f"step {train['plain'] / train['enable']:.2f}"] if "enable" in train else []
    left, ours = (row["counters"][key] for key in ("left", "ours"))
    return f"{head} {'  '.join(parts)}  errors {error_cell(row, *ERRORS)}  left {left} of {left + ours}"


def results_table(rows: list[dict[str, Any]]) -> str:
    """Rows without times as Markdown."""
    errors = "error of PyTorch; enable(); fused", "gradients' error of PyTorch; enable()"
    heads = "library", "model", "convolutions", "ours; left to PyTorch", *errors
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row["library"], row["model"]]
        if "failed" in row:
            cells += [row["failed"].replace("|", "/"), "", "", ""]
        else:
            cells += [str(row["convolutions"]), f"{row['counters']['ours']}; {row['counters']['left']}"]
            cells += [error_cell(row, *ERRORS[:3]), error_cell(row, *ERRORS[3:])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown, and geometric means."""
    means: dict[str, list[float]] = {"enable": [], "fused": [], "step": []}
    lines = [f"| library | model | convolutions | left | error | plain, ms | {' | '.join(means)} |", "|" + "---|" * 9]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['library']} | {row['model']} | {row['failed'].replace('|', '/')} |" + " |" * 6)
            continue
        ms, train = row.get("ms", {}), row.get("train_ms", {})
        found = {side: ms["plain"] / ms[side] for side in means if side in ms}
        found |= {"step": train["plain"] / train["enable"]} if "enable" in train else {}
        for side, ratio in found.items():
            means[side].append(ratio)
        cells = [f"{found[side]:.2f}" if side in found else "" for side in means]
        plain = f"{ms['plain']:.1f}" if ms else ""
        lines.append(
            f"| {row['library']} | {row['model']} | {row['convolutions']} | {row['counters']['left']} | "
            f"{error_cell(row, 'error')} | {plain} | {' | '.join(cells)} |"
        )
    mean = map(mean_cell, means.values())
    return "\n".join([*lines, f"| geometric mean | of {len(rows)} | | | | | {' | '.join(mean)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", action="append")
    parser.add_argument("--only", default="", help="models whose names hold this text")
    parser.add_argument("--model", action="append", help="as torchvision/resnet50, may repeat")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=Path, default=Path("libraries.jsonl"))
    parser.add_argument("--limit", type=float, default=240, help="seconds for a model")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--no-time", action="store_true", help="results and counts alone")
    parser.add_argument("--jobs", type=int, default=1, help="models side by side, with --no-time")
    parser.add_argument("--turn", type=Path, help="a file; a model that is ready waits for its lock to be timed")
    parser.add_argument("--again", action="store_true", help="models that have a row, too")
    parser.add_argument("--table", action="store_true", help="print the rows; with --no-time without times")
    parser.add_argument("--work", nargs=2)
    given = parser.parse_args()
    if given.work:
        print(
            json.dumps(work(*given.work, given.device, not given.no_train, not given.no_time, given.turn)),
            flush=True,
        )
        return
    recorded = [json.loads(line) for line in given.rows.read_text().splitlines()] if given.rows.exists() else []
    latest = {(row["library"], row["model"], row["device"]): row for row in recorded}
    if given.table:
        shown = results_table if given.no_time else table
        print(shown([row for row in latest.values() if row["device"] == given.device]))
        return
    from bench.library_models import LIBRARIES

    if given.jobs > 1 and not (given.no_time or given.turn):
        parser.error("--jobs goes with --no-time or --turn: models that run side by side have no times")
    if given.turn and not given.no_train:
        parser.error("--turn goes with --no-train: a step's times would be taken outside of the turn")

    def one(library: str, name: str) -> None:
        row = {"library": library, "model": name, "device": given.device} | run(library, name, given)
        if "failed" not in row:  # what an earlier run measured and this one did not stays
            row = latest.get((library, name, given.device), {}) | row
            row.pop("failed", None)
        with given.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
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
