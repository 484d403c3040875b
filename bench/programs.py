"""How many programs a net's training takes on a GPU, by kernel; nothing is compiled, and no GPU is needed.

    python bench/programs.py [--nets resnet50_full,efficientnet_b0,convnext_t] [--batch 32]

Each convolution's forward, data's and weights' gradients are chosen for an H200 as it is described here, by no records,
and what their plans would compile is rendered. Texts that are equal are one program. float16 is channels last.
"""

from __future__ import annotations

import re
from collections import Counter

import click
import results
from rich.console import Console
from rich.table import Table

from convdispatch.api.device import DeviceInfo
from convdispatch.api.policy import Policy
from convdispatch.api.problem import DIRECTIONS, ConvProblem
from convdispatch.device import runtime
from convdispatch.device.programs.kernels import rendering
from convdispatch.measurement import shapes
from convdispatch.selection.choice.ranking import Choices
from convdispatch.selection.visible_problem import visible_problem

H200 = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", max_work_group_size=1024, compute_units=132, fp64=True,
                  max_work_item_sizes=(1024, 1024, 64), local_mem_size=232448, global_mem_size=140 << 30,
                  max_alloc_size=35 << 30)  # fmt: skip
DTYPES = {"float32": {}, "float16": {"layout": "nhwc"}}
BESIDE = {"pack", "reduce", "fold"}
"""Short kernels before and after the one that multiplies."""
_KERNEL = re.compile(r"\bkernel\b[^;{]*?\bvoid\s+(\w+)\s*\(")


def programs(net: str, dtype: str, batch: int) -> tuple[int, set[str]]:
    """How many problems a net's training has, and the texts that they ask for."""
    context, found = runtime.context(runtime.devices()[0]), set()
    problems: dict[ConvProblem, None] = {}
    for entry in shapes.load(net):
        for direction in DIRECTIONS:
            problems[entry.problem.replace(direction=direction, dtype=dtype, mb=batch, **DTYPES[dtype])] = None
    for problem in problems:
        first = Choices(problem, H200, Policy()).first
        with rendering() as texts:
            first.solver.plan(context, visible_problem(first.solver, problem), first.config)
        found.update(text for text in texts if isinstance(text, str))
    return len(problems), found


@click.command()
@results.recording
@click.option("--nets", default="resnet50_full,efficientnet_b0,convnext_t", show_default=True)
@click.option("--batch", default=32, show_default=True)
def main(nets: str, batch: int) -> None:
    """Count."""
    table = Table("net, dtype", "problems", "programs", "that multiply", "pack", "reduce", "fold")
    for net in nets.split(","):
        for dtype in DTYPES:
            problems, texts = programs(net, dtype, batch)
            kinds = Counter(name for text in texts for name in set(_KERNEL.findall(text)) & BESIDE)
            main_ones = sum(not set(_KERNEL.findall(text)) <= BESIDE for text in texts)
            counts = (problems, len(texts), main_ones, kinds["pack"], kinds["reduce"], kinds["fold"])
            table.add_row(f"{net}, {dtype}", *map(str, counts))
    Console(width=120).print(table)
    results.keep_table(table)


if __name__ == "__main__":
    main()
