"""Solvers against PyTorch with cuDNN on one NVIDIA GPU: every layer of the nets, all directions, in one run.

    python bench/h200.py compare --net resnet50 --direction fwd --tries 3   # ours, checked, beside cuDNN in fp32
    python bench/h200.py explore fwd_mb64ic256ih28oc512kh3ph1 --tiles 64,128,16,8,8 --splits 1

``compare`` times the first ``--tries`` configurations of each solver whose predicted cost is near the least, and keeps
the best; ``--warm`` compiles them beforehand in several processes. Both sides are timed on the
device alone, from the first start to the last end of some repetitions that the host has queued up beforehand. Results
are checked whole against float64, on the device. Full figures go to ``$OUT`` as JSON; a short table comes last.
"""

from __future__ import annotations

import collections
import itertools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import Ours, registers, torch_ms

from convdispatch.api import ConvProblem, Policy
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device import runtime
from convdispatch.measurement import shapes
from convdispatch.selection.choice import ranking

NETS = ("convnet", "alexnet", "overfeat", "vgg_a", "googlenet", "resnet50")
SHORT = {"fwd": "f", "bwd_data": "bd", "bwd_weights": "bw"}


def solvers(patterns: str) -> list:
    """Solvers by glob."""
    from fnmatch import fnmatch

    from convdispatch.selection.plugins.loader import plugins

    found = plugins().solvers
    return [solver for name, solver in found.items() if any(fnmatch(name, p) for p in patterns.split(","))]


NEAR = 5.0
"""Predicted costs up to this many times the least are tried."""


def choices(problem: ConvProblem, info: Any, candidates: list, tries: int) -> list[tuple[int, Any, dict]]:
    """(place in the solver's own order, solver, configuration) of what may be the best, by predicted cost."""
    found = []
    for solver in candidates:
        if not ranking.refusal(solver, problem, info, Policy()):
            for place, config in enumerate(itertools.islice(solver.configs(problem, info), tries)):
                found.append((solver.cost(problem, info, config) or 0.0, place, solver, config))
    least = min((cost for cost, *_ in found if cost), default=0.0)
    return [(place, solver, config) for cost, place, solver, config in found if cost <= NEAR * least or not cost]


def best(ours: Ours, problem: ConvProblem, candidates: list, tries: int, seconds: float) -> list[dict]:
    """Times configurations of each solver; fastest first, each with its place in the solver's own order."""
    rows = []
    for place, solver, config in choices(problem, ours.info, candidates, tries):
        start = time.perf_counter()
        try:
            plan = solver.plan(ours.context, problem, config)
            built = time.perf_counter() - start
            ms = ours.time(plan, seconds=seconds)
        except Exception as error:
            print("failed", type(solver).__name__, problem, config, str(error)[:200], flush=True)
            continue
        rows.append(
            {"solver": type(solver).__name__, "place": place, "config": dict(config), "ms": ms, "build_s": built}
        )
    return sorted(rows, key=lambda row: row["ms"])


def warm(work: tuple[list[str], str, int]) -> int:
    """Compile what ``compare`` will time for some problems, so that it finds the binaries on disk; how many failed."""
    texts, patterns, tries = work
    device = runtime.find_device("nvidia")
    info, failed = runtime.device_info(device), 0
    for text in texts:
        problem = ConvProblem.parse(text)
        for _, solver, config in choices(problem, info, solvers(patterns), tries):
            try:
                solver.plan(runtime.context(device), problem, config)
            except Exception:  # compare will say it
                failed += 1
    return failed


@click.group(context_settings={"max_content_width": 120})
def main() -> None:
    """Compare with cuDNN, or explore configurations."""


@main.command()
@click.option("--net", "nets", multiple=True, default=NETS, help="Shape tables.")
@click.option("--direction", "directions", multiple=True, default=DIRECTIONS)
@click.option("--solver", default="*", show_default=True, help="Globs, comma between.")
@click.option("--tries", default=1, show_default=True, help="Configurations of each solver.")
@click.option("--seconds", default=0.02, show_default=True, help="A timing batch.")
@click.option("--torch/--no-torch", "peer", default=True)
@click.option("--check/--no-check", default=True)
@click.option("--layer", "layers", multiple=True, help="Only these layers.")
@click.option("--budget", default=500.0, show_default=True, help="Seconds after which no further layer is begun.")
@click.option("--dtype", default="float32", show_default=True)
@click.option("--math", default="float32", show_default=True)
@click.option("--layout", default="nchw", show_default=True)
@click.option("--warm", "processes", default=0, help="Compile in so many processes beforehand.")
@click.option("--limit", default=1e-5, show_default=True, help="Relative error from which a layer counts as wrong.")
def compare(
    nets, directions, solver, tries, seconds, peer, check, layers, budget, dtype, math, layout, processes, limit
) -> None:
    """Every layer of the nets beside cuDNN."""
    begun = time.perf_counter()
    form = {"dtype": dtype, "math": math, "layout": layout}
    entries = [
        (net, entry.name, entry.problem.replace(direction=direction, **form))
        for net, direction in itertools.product(nets, directions)
        for entry in shapes.load(net)
        if not layers or entry.name in layers
    ]
    if processes:
        texts = sorted({str(problem) for *_, problem in entries})
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            failed = pool.map(warm, [([text], solver, tries) for text in texts], chunksize=1)
        print(f"compiled for {len(texts)} problems in {time.perf_counter() - begun:.0f} s, {sum(failed)} failed")
    ours, rows = Ours(), []
    candidates = solvers(solver)
    for net, direction in itertools.product(nets, directions):
        for _, name, problem in (a for a in entries if a[0] == net and a[2].direction == direction):
            if time.perf_counter() - begun > budget:
                break
            ours.load(problem)
            timed = best(ours, problem, candidates, tries, seconds)
            if not timed:
                print(f"{net:9} {name:8} {SHORT[direction]:2} no solver", flush=True)
                continue
            row = {"net": net, "layer": name, "direction": direction, "problem": str(problem),
                   "gflop": problem.flops / 1e9, "timed": timed, **timed[0]}  # fmt: skip
            if check:
                by_name = {each.name: each for each in candidates}
                plan = by_name[row["solver"]].plan(ours.context, problem, row["config"])
                row["error"] = ours.error(plan, problem)
            row["torch"] = torch_ms(problem) if peer else float("nan")
            rows.append(row)
            speed = problem.flops / row["ms"] / 1e9
            print(f"{net:9} {name:8} {SHORT[direction]:2} {row['ms']:8.3f} ms {speed:6.1f} TF"
                  f"  torch {row['torch']:8.3f}  ratio {row['torch'] / row['ms']:5.2f}  err {row.get('error', 0):.1e}"
                  f"  {row['solver']} #{row['place']} {row['config']}", flush=True)  # fmt: skip
    out = os.environ.get("OUT")
    if out:
        Path(out, "h200.json").write_text(json.dumps({"device": str(ours.info), "rows": rows}, indent=1))
    won = collections.Counter(row["solver"] for row in rows)
    print("\nfastest: " + ", ".join(f"{name} {count}" for name, count in won.most_common()))
    print(f"{'net':9} dir  ours ms (first config)   torch ms  ratio   worst layers (ratio)")
    for net, direction in itertools.product(nets, directions):
        part = [row for row in rows if (row["net"], row["direction"]) == (net, direction)]
        if part:
            mine, theirs = (sum(row[key] for row in part) for key in ("ms", "torch"))
            first = sum(next((t["ms"] for t in row["timed"] if t["place"] == 0), row["ms"]) for row in part)
            worst = sorted(part, key=lambda row: row["torch"] / row["ms"])[:4]
            print(f"{net:9} {SHORT[direction]:3} {mine:8.3f} ({first:8.3f}) {theirs:10.3f} {theirs / mine:6.2f}   "
                  + ", ".join(f"{row['layer']} {row['torch'] / row['ms']:.2f}" for row in worst))  # fmt: skip
    wrong = [row for row in rows if not row.get("error", 0) < limit]
    print(f"{len(rows)} layers, {len(wrong)} wrong" + "".join(f"\n  {row['problem']} {row['error']}" for row in wrong))


@main.command()
@click.argument("problems", nargs=-1, required=True)
@click.option("--tiles", default="", help="bm,bn,bk,tm,tn[,ln[,unroll]] with spaces between; default: all.")
@click.option("--splits", default="", help="Numbers, comma between; default: the solver's own.")
@click.option("--walk", default="channels")
@click.option("--orders", default="snake", show_default=True, help="Orders of the multiply-adds, comma between.")
@click.option("--top", default=12, show_default=True, help="Lines printed a problem.")
@click.option("--limit", default=400, show_default=True, help="Configurations of the solver's own.")
@click.option("--seconds", default=0.01, show_default=True)
@click.option("--registers/--no-registers", "ask", default=True, help="Ask the compiler for registers and spills.")
def explore(problems, tiles, splits, walk, orders, top, limit, seconds, ask) -> None:
    """Times many configurations of the tiled solver on some problems."""
    from convdispatch_implicitgemm.gpu.product import Product
    from convdispatch_implicitgemm.gpu.solver import Tiled
    from convdispatch_implicitgemm.gpu.tile import Tile

    ours, solver, everything = Ours(), Tiled(), []
    for text in problems:
        problem = ConvProblem.parse(text)
        ours.load(problem)
        configs = list(itertools.islice(solver.configs(problem, ours.info), limit))
        if tiles:
            names = ("bm", "bn", "bk", "tm", "tn", "ln", "unroll")
            shaped = [dict(zip(names, map(int, tile.split(",")))) for tile in tiles.split()]
            configs = [
                {**shape, "walk": walk, "split": int(s), "order": order}
                for shape in shaped
                for s in (splits or "1").split(",")
                for order in orders.split(",")
            ]
            configs = [c for c in configs if Product(problem, Tile.of(c)).misfit is None]
        rows = []
        for place, config in enumerate(configs):
            try:
                plan = solver.plan(ours.context, problem, config)
                used = registers(ours, plan) if ask else ""
                rows.append((ours.time(plan, seconds=seconds), place, config, used))
            except Exception as error:
                print("failed", config, str(error)[:300])
        everything.append({"problem": text, "rows": rows})
        print(f"\n{text}: {problem.flops / 1e9:.1f} GFLOP, {len(rows)} configurations", flush=True)
        for ms, place, config, used in sorted(rows, key=lambda row: row[0])[:top]:
            print(f"  {ms:8.4f} ms {problem.flops / ms / 1e9:6.2f} TF  #{place:3} {used:12} {config}", flush=True)
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "explore.json").write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
