"""The libraries' models on a GPU: under ``enable()``, fused, in training steps and in CUDA graphs beside PyTorch.

``python -m bench libraries_gpu [--model LIBRARY/NAME ...] [--batch 16] [--form float32|tf32|float16] [--compile]
[--no-train] [--no-time] [--rows FILE] [--table]``

Models are those of ``library_models.py``, unchanged, with pictures ``--batch`` times, one after the other in this
process. With ``--jobs`` each has a process of its own; all are made ready side by side, which takes memory and many
processors, then each has the machine alone for its times. Sides take turns: PyTorch,
``enable()``, ``convert(fuse=True)``, with ``--compile`` ``torch.compile``; a training step of PyTorch and ``enable()``;
PyTorch's CUDA graph and the fused model's. PyTorch measures its algorithms first (``cudnn.benchmark``); in float16 both
have weights and pictures in channels last. Errors are against float64. A row of JSON is added to ``--rows`` for each.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import again
from bench.cases.libraries import ERRORS, convolutions, error, exact_answer, settle
from bench.library_times import cause, counted, error_cell, gradients, mean_cell, row_of_child, timed

MODELS = (
    "torchvision/resnet50",
    "torchvision/convnext_tiny",
    "torchvision/efficientnet_b0",
    "torchvision/regnet_y_400mf",
    "torchvision/mobilenet_v3_large",
    "timm/convnextv2_atto",
    "timm/vit_tiny_patch16_224",
    "transformers/SegFormer",
)
SIDES = ("enable", "fused", "compile", "graph", "step")


def work(library: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Every side of one model."""
    import torch

    import convdispatch.torch as ct
    from bench.library_models import LIBRARIES, tensors_of
    from convdispatch.calls.framework import tiers

    torch.backends.cudnn.benchmark = not given.no_time
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = given.form == "tf32"
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    net, args, kwargs = LIBRARIES[library][name]()
    net = net.to(given.device).eval()
    tree = torch.utils._pytree
    args, kwargs = tree.tree_map_only(torch.Tensor, lambda t: t.to(given.device), (args, kwargs))
    settle(net, args, kwargs)
    row: dict[str, Any] = {"torch": torch.__version__, "convolutions": convolutions(net), "batch": given.batch}
    half = given.form == "float16"

    def used(t: Any) -> Any:
        t = t.repeat(given.batch, *[1] * (t.ndim - 1)) if t.ndim >= 4 else t
        t = t.half() if half and t.is_floating_point() else t
        return t.contiguous(memory_format=torch.channels_last) if half and t.ndim == 4 else t

    exact = exact_answer(net, *tree.tree_map_only(torch.Tensor, lambda t: used(t).float(), (args, kwargs)), tensors_of)
    net = net.half().to(memory_format=torch.channels_last) if half else net
    args, kwargs = tree.tree_map_only(torch.Tensor, used, (args, kwargs))

    def forward(model: Any = net) -> list[Any]:
        with torch.no_grad():
            return tensors_of(model(*args, **kwargs))

    def step(model: Any = net) -> Any:
        """Gradients in eval mode's norms, so that both sides compute the same."""
        dtype = next(model.parameters()).dtype
        given = tree.tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (args, kwargs))
        answers = tensors_of(model(*given[0], **given[1]))
        loss = sum(t.to(torch.promote_types(dtype, torch.float32)).square().mean() for t in answers if t.requires_grad)
        return gradients(loss, model)

    def enabled(run: Callable[[], Any]) -> Callable[[], Any]:
        def both() -> Any:
            with ct.enable():
                return run()

        return both

    def ready(run: Callable[[], Any]) -> Any:
        """What it answers once nothing is compiled aside any more, and fused models are captured."""
        run()
        for turn in range(8):
            tiers.drain()
            ct.reset_counters()
            result = run()
            if turn > 2 and not tiers.pending():
                break
        return result

    plain, wanted = forward(), None
    if not given.no_train:
        try:
            wanted = step()
        except Exception as failure:
            row["train"] = cause(failure)
    torch.backends.cudnn.benchmark = False  # what it found stays; ours would measure in the background
    reference = plain if exact is None else exact
    row["error_plain"] = None if exact is None else error(plain, exact)
    sides: dict[str, Callable[[], Any]] = {"plain": forward, "enable": forward}
    begin = time.perf_counter()
    row["error"] = error(ready(enabled(forward)), reference)
    row["counters"] = counted()
    row["first_s"] = time.perf_counter() - begin
    graphs: dict[str, Any] = {"plain": forward}
    try:
        begin = time.perf_counter()
        fused = ct.convert(copy.deepcopy(net), fuse=True)
        sides["fused"] = graphs["graph"] = lambda: forward(fused)
        row["error_fused"] = error(ready(sides["fused"]), reference)
        row["first_fused_s"], row["untraced"] = time.perf_counter() - begin, ct.fusion(fused).left
        row["forms"] = sorted(ct.fusion(fused).forms.values())
    except Exception as failure:
        row["fused"] = cause(failure)
    if given.compile:
        import torch._inductor.config as inductor

        inductor.freezing = True
        compiled = torch.compile(copy.deepcopy(net))
        sides["compile"] = lambda: forward(compiled)
        sides["compile"]()
    steps: dict[str, Callable[[], Any]] = {}
    if wanted is not None:
        got = ready(enabled(step))
        whole = got, wanted, wanted if exact is None else step(copy.deepcopy(net).double())
        flat = [[torch.cat([g.flatten().double() for g in each])] for each in whole]
        row["train_error"], row["train_error_plain"] = error(flat[0], flat[2]), error(flat[1], flat[2])
        steps = {"plain": step, "step": step}
        row["train_counters"] = counted()
    if not given.no_time:
        with _alone(given) as alone:
            row["alone"] = alone
            row["ms"] = timed(sides, given.device, {"enable": ct.enable})
            row["graph_ms"] = timed(_captured(graphs), given.device)
            row["train_ms"] = timed(steps, given.device, {"step": ct.enable})
    row["peak_mb"] = torch.cuda.max_memory_allocated() >> 20 if torch.cuda.is_available() else None
    return row


def _captured(runs: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Each as a CUDA graph's replay; what cannot be captured is left out."""
    import torch

    made: dict[str, Callable[[], Any]] = {}
    for name, run in runs.items():
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run(), run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            made[name] = graph.replay
        except Exception as failure:
            print(f"{name}: {cause(failure)}", file=sys.stderr)
            break
    return made if len(made) > 1 else {}


@contextlib.contextmanager
def _alone(given: argparse.Namespace) -> Iterator[bool]:
    """While it lasts no other model is timed; and none is made ready, which is waited for until ``given.by``: whether
    that is so."""
    if given.turn is None:
        yield True
        return
    for each in _HELD:  # closing is not enough where a child process holds the file too
        fcntl.flock(each, fcntl.LOCK_UN)
    while not (ready := _takes(_HELD[0])) and time.time() < given.by:
        time.sleep(0.2)
    fcntl.flock(_HELD[0], fcntl.LOCK_UN)
    with Path(f"{given.turn}.times").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield ready
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _takes(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_HELD: list[Any] = []
"""The file whose lock this process shares while it makes a model ready."""


def _child(model: str, given: argparse.Namespace, turn: str) -> dict[str, Any]:
    words = [*again("libraries_gpu"), "--work", model, "--turn", turn, "--by", str(given.by), "--form", given.form]
    words += ["--device", given.device]
    words += ["--batch", str(given.batch), *["--compile"] * given.compile, *["--no-train"] * given.no_train]
    return row_of_child([*words, *["--no-time"] * given.no_time], given.limit)


def _here(library: str, name: str, given: argparse.Namespace) -> dict[str, Any]:
    import torch

    try:
        return work(library, name, given)
    except Exception as failure:
        return {"failed": cause(failure)}
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """PyTorch's time over each side's."""
    found = {}
    for times in (row.get("ms", {}), row.get("graph_ms", {}), row.get("train_ms", {})):
        found |= {side: times["plain"] / each for side, each in times.items() if side != "plain"}
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown, with geometric means."""
    head = [
        "library",
        "model",
        "form",
        "batch",
        "left",
        "error of PyTorch; enable(); fused; gradients of PyTorch; enable()",
        "PyTorch, ms",
    ]
    lines = ["| " + " | ".join([*head, *SIDES]) + " |", "|" + " --- |" * (len(head) + len(SIDES))]
    means: dict[str, list[float]] = {side: [] for side in SIDES}
    for row in rows:
        cells = [row["library"], row["model"], row["form"]]
        if "failed" in row:
            lines.append(f"| {' | '.join([*cells, row['failed'].replace('|', '/')])} |")
            continue
        cells += [str(row["batch"]), str(row["counters"]["left"])]
        cells += [error_cell(row, *ERRORS)]
        cells += [f"{row['ms']['plain']:.2f}" if row.get("ms") else ""]
        found = ratios(row)
        for side in SIDES:
            means[side] += [found[side]] if side in found else []
            cells.append(f"{found[side]:.2f}" if side in found else "")
        lines.append(f"| {' | '.join(cells)} |")
    mean = map(mean_cell, means.values())
    return "\n".join([*lines, f"| geometric mean | of {len(rows)} |  |  |  |  |  | {' | '.join(mean)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="as torchvision/resnet50, or torchvision/ for all; may repeat")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--form", choices=("float32", "tf32", "float16"), default="tf32")
    parser.add_argument("--rows", type=Path, default=Path("libraries_gpu.jsonl"))
    parser.add_argument("--limit", type=float, default=170, help="seconds for a model")
    parser.add_argument("--jobs", type=int, default=1, help="models that are made ready side by side")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--no-time", action="store_true")
    parser.add_argument("--table", action="store_true", help="print the rows as Markdown, run nothing")
    parser.add_argument("--work")
    parser.add_argument("--turn")
    parser.add_argument("--by", type=float)
    parser.add_argument("--patience", type=float, default=100, help="seconds to wait until all models are ready")
    given = parser.parse_args()
    if given.work:
        with Path(given.turn).open("ab") if given.turn else contextlib.nullcontext() as file:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_SH)
                _HELD.append(file)
            print(json.dumps(work(*given.work.split("/"), given)), flush=True)
        return
    if given.table:
        print(table([json.loads(line) for line in given.rows.read_text().splitlines()]))
        return
    from bench.library_models import LIBRARIES

    names = [f"{library}/{name}" for library, models in LIBRARIES.items() for name in models]
    chosen = [
        n for each in given.model or MODELS for n in names if n == each or (each[-1] == "/" and n.startswith(each))
    ]
    given.by = time.time() + given.patience
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:

        def one(model: str) -> None:
            library, name = model.split("/")
            row = {"library": library, "model": name, "form": given.form}
            row |= _child(model, given, f"{folder}/ready") if given.jobs > 1 else _here(library, name, given)
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            shown = "  ".join(f"{side} {ratio:.2f}" for side, ratio in ratios(row).items())
            print(f"{model:36} {row.get('failed', shown)}", flush=True)

        list(pool.map(one, chosen))


if __name__ == "__main__":
    main()
