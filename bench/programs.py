"""How many programs a net's training takes on a GPU, by kernel, and with --compile the seconds that its compiler takes.

    python bench/programs.py [--nets resnet50_full,resnext50,efficientnet_b0,convnext_t] [--batch 32] [--compile]

Each convolution's forward, data's and weights' gradients are chosen for an H200 as it is described here, by no records,
and what their plans would compile is rendered: that needs no GPU. Texts that are equal are one program. ``autocast`` is
bfloat16, channels last. ``--compile`` needs an NVIDIA GPU: each program is compiled once, with nothing cached, by as
many processes as there are processors.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator

import click
import results
from rich.console import Console
from rich.table import Table

from convdispatch.api.device import DeviceInfo
from convdispatch.api.policy import Policy
from convdispatch.api.problem import DIRECTIONS, ConvProblem
from convdispatch.device import runtime
from convdispatch.device.programs import compile_pool, kernels
from convdispatch.measurement import shapes
from convdispatch.selection.choice.ranking import Choices
from convdispatch.selection.visible_problem import visible_problem

H200 = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", max_work_group_size=1024, compute_units=132, fp64=True,
                  max_work_item_sizes=(1024, 1024, 64), local_mem_size=232448, global_mem_size=140 << 30,
                  max_alloc_size=35 << 30)  # fmt: skip
FORMS = {"float32": {"dtype": "float32"}, "autocast": {"dtype": "bfloat16", "layout": "nhwc"}}
BESIDE = {"pack", "reduce", "fold"}
"""Short kernels before and after the one that multiplies."""
_KERNEL = re.compile(r"\bkernel\b[^;{]*?\bvoid\s+(\w+)\s*\(")


def programs(net: str, form: str, batch: int) -> tuple[int, set[str]]:
    """How many problems a net's training has, and the texts that they ask for."""
    context, found = runtime.context(runtime.devices()[0]), set()
    problems: dict[ConvProblem, None] = {}
    for entry in shapes.load(net):
        for direction in DIRECTIONS:
            problems[entry.problem.replace(direction=direction, mb=batch, **FORMS[form])] = None
    for problem in problems:
        first = Choices(problem, H200, Policy()).first
        with kernels.rendering() as texts:
            first.solver.plan(context, visible_problem(first.solver, problem), first.config)
        found.update(text for text in texts if isinstance(text, str))
    return len(problems), found


@contextlib.contextmanager
def compilers() -> Iterator[Callable[[Collection[str]], tuple[float, float]]]:
    """What compiles texts in processes of their own: seconds of all compilers, and until the last of them ended."""
    processors = min(compile_pool.MOST, compile_pool.processors())
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(processors, initializer=_seconds, initargs=("kernel void warm() {}",)) as pool:

        def compiled(texts: Collection[str]) -> tuple[float, float]:
            begin = time.perf_counter()
            took = sum(pool.imap_unordered(_seconds, sorted(texts, key=len, reverse=True)))
            return took, time.perf_counter() - begin

        pool.map(_ready, range(processors), 1)
        yield compiled


def _ready(_: int) -> None:
    time.sleep(0.1)  # so that each process takes one


def _seconds(text: str) -> float:
    """Of one compilation, assembly for the device included."""
    from convdispatch_nvidia.instructions import MARK, build_for_hopper

    context = runtime.context(runtime.find_device("nvidia"))
    kernels.forget()
    begin = time.perf_counter()
    (build_for_hopper if MARK in text else kernels.build)(context, text)
    return time.perf_counter() - begin


@click.command()
@results.recording
@click.option("--nets", default="resnet50_full,resnext50,efficientnet_b0,convnext_t", show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--compile", "compiles", is_flag=True, help="Take the seconds of an NVIDIA GPU's compiler too.")
def main(nets: str, batch: int, compiles: bool) -> None:
    """Count."""
    seconds = ["compiler, s", "until all are there, s"] if compiles else []
    table = Table("net, form", "problems", "programs", "that multiply", "pack", "reduce", "fold", *seconds)
    os.environ |= {"CONVDISPATCH_KERNEL_CACHE": "off", "CUDA_CACHE_DISABLE": "1"}
    with compilers() if compiles else contextlib.nullcontext() as compiled:
        for net in nets.split(","):
            for form in FORMS:
                problems, texts = programs(net, form, batch)
                kinds = Counter(name for text in texts for name in set(_KERNEL.findall(text)) & BESIDE)
                main_ones = sum(not set(_KERNEL.findall(text)) <= BESIDE for text in texts)
                counts = (problems, len(texts), main_ones, kinds["pack"], kinds["reduce"], kinds["fold"])
                took = (f"{each:.1f}" for each in compiled(texts)) if compiled else ()
                table.add_row(f"{net}, {form}", *map(str, counts), *took)
    Console(width=140).print(table)
    results.keep_table(table)


if __name__ == "__main__":
    main()
