"""The FFT solver for GPUs against PyTorch with cuDNN on one NVIDIA GPU: builds, checks and times, pass by pass.

    python bench/fft_h200.py convnet:L2 convnet:L3 alexnet:c2 overfeat:c2            # first configurations beside cuDNN
    python bench/fft_h200.py convnet:L3 --direction fwd --with three=1 --with bm=64,bn=64,tm=8,tn=8   # variants

Every variant is checked whole against float64; its passes are timed by events in full runs of the plan,
the plan as a whole by repetitions that the host has queued beforehand. cuDNN (TF32 off, ``cudnn.benchmark``) runs in
the same process. A table comes last.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyopencl as cl
from convdispatch_fft.gpu.plan import Layout
from convdispatch_fft.gpu.solver import Spectra
from gpu import Ours, passes, registers, torch_ms
from h200 import SHORT

from convdispatch.api import ConvProblem
from convdispatch.api.problem import DIRECTIONS
from convdispatch.measurement import shapes


def parse(text: str) -> dict:
    """``three=1,bm=64`` as part of a configuration."""
    return {name: int(value) for name, value in (part.split("=") for part in text.split(",") if part)}


@click.command(context_settings={"max_content_width": 120})
@click.argument("layers", nargs=-1, required=True)
@click.option("--direction", "directions", multiple=True, default=DIRECTIONS)
@click.option("--tries", default=1, show_default=True, help="Configurations of the solver's own.")
@click.option("--with", "variants", multiple=True, help="Changes of the first configuration: name=value,...")
@click.option("--torch/--no-torch", "peer", default=True)
@click.option("--constant", is_flag=True, help="Keep the weights' spectra.")
@click.option("--limit", default=0, help="Workspace limit in MiB: the first configuration within it.")
@click.option("--registers/--no-registers", "ask", default=False)
@click.option("--seconds", default=0.02, show_default=True, help="A timing batch.")
def main(layers, directions, tries, variants, peer, constant, limit, ask, seconds) -> None:
    """Times LAYERS, each ``table:name`` or a problem's text."""
    ours, solver, table = Ours(), Spectra(), []
    for text, direction in itertools.product(layers, directions):
        net, _, name = text.rpartition(":")
        known = {entry.name: entry.problem for entry in shapes.load(net)} if net else {}
        problem = known[name] if net else ConvProblem.parse(text)
        problem = problem.replace(direction=direction, constant_weights=constant and direction != "bwd_weights")
        ours.form = None  # the direction before wrote one of the tensors
        ours.load(problem)
        configs = [dict(config) for config in solver.configs(problem, ours.info)]
        if limit:
            configs = [c for c in configs if solver.workspace(problem, ours.info, c) <= limit << 20]
        wanted = [*configs[:tries], *({**configs[0], **parse(variant)} for variant in variants)]
        theirs = torch_ms(problem) if peer else float("nan")
        best = None
        for number, config in enumerate(wanted):
            config["three"] = bool(config["three"])
            layout = Layout.of(problem, config)
            begun = time.perf_counter()
            try:
                plan = solver.plan(ours.context, problem, config)
                built = time.perf_counter() - begun
                error, ms, parts = measure(ours, plan, problem, seconds)
            except Exception as failure:
                print(f"{text} {SHORT[direction]} {config} failed: {str(failure)[:300]}", flush=True)
                continue
            steps = " ".join(f"{part:.3f}" for part in parts[:6])
            named = variants[number - tries] if number >= tries else config
            print(f"{text} {SHORT[direction]:2} {ms:.3f} ms  passes {steps}  torch {theirs:.3f}  err {error:.1e}"
                  f"  {plan.workspace_size >> 20} MiB  slots {layout.slots} build {built:.1f} s"
                  f"  {registers(ours, plan) if ask else ''} {named}", flush=True)  # fmt: skip
            if error < 1e-5 and (best is None or ms < best[0]):
                best = ms, number, error
        if best:
            table.append((text, SHORT[direction], best[0], theirs, best[2], best[1]))
    print(f"\n{'layer':16} dir     ours   cuDNN  ratio  error  (variant)")
    for text, direction, ms, theirs, error, number in table:
        print(f"{text:16} {direction:3} {ms:8.3f} {theirs:7.3f} {theirs / ms:6.2f}  {error:.1e}  ({number})")


def measure(ours: Ours, plan, problem: ConvProblem, seconds: float) -> tuple[float, float, list[float]]:
    """(error, milliseconds, those of each pass) of a plan, with the weights packed where it keeps them."""
    if not plan.packed_size:
        return ours.error(plan, problem), ours.time(plan, seconds=seconds), passes(ours, plan)
    packed = cl.Buffer(ours.context, cl.mem_flags.READ_WRITE, plan.packed_size)
    plan.pack(ours.queue, ours.memory["w"], packed)
    plain, ours.memory["w"] = ours.memory["w"], packed
    try:
        return ours.error(plan, problem), ours.time(plan, seconds=seconds), passes(ours, plan)
    finally:
        ours.memory["w"] = plain


if __name__ == "__main__":
    main()
