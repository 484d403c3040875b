"""How much faster a model on a GPU can get by its convolutions alone, and how much of that is there.

``python bench/bounds_gpu.py [--model LIBRARY/NAME ...] [--batch 16 ...] [--train] [--rows FILE] [--table]``

Models are those of ``library_models.py``, unchanged, float32 with TF32 off. Each runs three ways in turns: PyTorch,
with its own search; under ``enable()``; and with convolutions that cost nothing, as they answer tensors that were
made before. No convolution can be faster, so PyTorch's time over that one's is the bound of every ratio. It is taken
of calls as they are, whose host's part counts, and of CUDA graphs, whose replays are the device's alone; what these
take beyond those without convolutions is the convolutions' own time there. With ``--train`` steps, forward and
backward in eval mode's norms; convolutions that cost nothing are functions of autograd in Python then, which take the
host some microseconds, so that bound is a little low.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from libraries import settle, timed
from libraries_gpu import _captured as captured
from library_models import LIBRARIES, tensors_of

import convdispatch.torch as ct
from convdispatch.calls.framework import tiers

MODELS = (
    *("torchvision/resnet50", "torchvision/efficientnet_b0", "torchvision/regnet_y_400mf"),
    *("torchvision/mobilenet_v3_large", "torchvision/convnext_tiny", "transformers/SegFormer"),
)


class Recorded(torch.autograd.Function):
    """A convolution's result and gradients, made before."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, made: list[Any], gradients: list[Any]) -> torch.Tensor:
        ctx.gradients = gradients
        return made[0].detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad
        return *(each if asked else None for each, asked in zip(ctx.gradients, wanted[:2])), None, None


def without_convolutions(net: torch.nn.Module, run: Callable[[], Any], train: bool) -> Callable[[], Any]:
    """``run`` where each convolution answers what it answered once."""
    layers = [each for each in net.modules() if isinstance(each, torch.nn.modules.conv._ConvNd)]
    made: dict[Any, tuple[Any, Any]] = {}
    hooks = [
        each.register_forward_hook(lambda m, given, y: made.update({m: (given[0], y.detach())})) for each in layers
    ]
    run()
    for hook in hooks:
        hook.remove()

    def forward(layer: Any) -> Callable[[Any], Any]:
        x, y = made[layer]
        if not train:
            return lambda given: y
        gradients = [torch.empty_like(x), torch.empty_like(layer.weight)]
        return lambda given: Recorded.apply(given, layer.weight, [y], gradients)

    stand_ins = {layer: forward(layer) for layer in layers if layer in made}

    def bare() -> Any:
        for layer, each in stand_ins.items():
            layer.__dict__["forward"] = each
        return run()

    def restored() -> Any:
        for layer in stand_ins:
            layer.__dict__.pop("forward", None)

    bare.restore = restored  # type: ignore[attr-defined]
    return bare


def work(library: str, name: str, batch: int, train: bool, device: str) -> dict[str, Any]:
    """Every side of one model."""
    torch.manual_seed(0)
    net, args, kwargs = LIBRARIES[library][name]()
    net = net.to(device).eval()
    tree = torch.utils._pytree
    args, kwargs = tree.tree_map_only(torch.Tensor, lambda t: t.to(device), (args, kwargs))
    settle(net, args, kwargs)
    args, kwargs = tree.tree_map_only(
        torch.Tensor, lambda t: t.repeat(batch, *[1] * (t.ndim - 1)) if t.ndim >= 4 else t, (args, kwargs)
    )
    weights = [p for p in net.parameters() if p.requires_grad]

    def run() -> Any:
        with torch.set_grad_enabled(train):
            answers = tensors_of(net(*args, **kwargs))
            if not train:
                return answers
            loss = sum(t.square().mean() for t in answers if t.requires_grad)
            return torch.autograd.grad(loss, weights, allow_unused=True)

    def enabled() -> Any:
        with ct.enable():
            return run()

    torch.backends.cudnn.benchmark = True
    run()
    torch.backends.cudnn.benchmark = False  # what it found stays; ours would measure in the background
    with ct.enable():
        for turn in range(8):
            run()
            tiers.drain()
            if turn > 2 and not tiers.pending():
                break
    row: dict[str, Any] = {"library": library, "model": name, "batch": batch, "train": train}
    ct.reset_counters()
    enabled()
    row["counters"] = {key: ct.counters()[key] for key in ("ours", "left", "reasons", "solvers")}
    bare = without_convolutions(net, run, train)
    restore = bare.restore  # type: ignore[attr-defined]
    sides = {"plain": run, "enable": run}
    graphs = {"plain": run, "enable": enabled}
    row["ms"] = timed(sides, device, {"enable": ct.enable})
    row["graph_ms"] = timed(captured(graphs), device) if device == "cuda" else {}
    bare()
    row["ms"] |= timed({"bound": run}, device)
    if row["graph_ms"]:
        row["graph_ms"] |= timed({"bound": captured({"bound": run, "again": run})["bound"]}, device)
    restore()
    row["ms"]["plain again"] = timed({"plain": run}, device)["plain"]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown."""
    sides = "ms | enable() | bound"
    head = f"model | batch | PyTorch, {sides} | in a CUDA graph, {sides} | convolutions, ms | ours"
    lines = [f"| {head} |", "|" + " --- |" * 10]
    for row in rows:
        ms, graph = row["ms"], row["graph_ms"]
        cells = [row["model"] + (", step" if row["train"] else ""), str(row["batch"])]
        for each in (ms, graph):
            shown = [each["plain"], *(each["plain"] / each[side] for side in ("enable", "bound"))] if each else []
            cells += [f"{value:.2f}" for value in shown] or [""] * 3
        if graph:
            theirs, ours = (graph[side] - graph["bound"] for side in ("plain", "enable"))
            cells += [f"{theirs:.2f}", f"{ours:.2f} ({theirs / ours:.2f})"]
        lines.append(f"| {' | '.join(cells)} |")
    for train in (False, True):
        some = [row["ms"] for row in rows if row["train"] == train]
        if some:
            logs = [[math.log(ms["plain"] / ms[side]) for ms in some] for side in ("enable", "bound")]
            means = " | ".join(f"{math.exp(sum(each) / len(each)):.2f}" for each in logs)
            lines.append(f"| geometric mean{', steps' if train else ''} | of {len(some)} | | {means} | | | | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="as torchvision/resnet50; may repeat")
    parser.add_argument("--batch", type=int, nargs="+", default=[16])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=Path, default=Path("bounds_gpu.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the rows as Markdown, run nothing")
    given = parser.parse_args()
    if given.table:
        print(table([json.loads(line) for line in given.rows.read_text().splitlines()]))
        return
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    for model in given.model or MODELS:
        for batch in given.batch:
            try:
                row = work(*model.split("/"), batch, given.train, given.device)
            except Exception as failure:
                print(f"{model} {batch}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
                continue
            finally:
                gc.collect()
                torch.cuda.empty_cache()
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(table([row]).splitlines()[2], row["counters"]["left"], flush=True)


if __name__ == "__main__":
    main()
