"""How many programs the convolutions of a training step need, by solver, on a described GPU: nothing is compiled.

python tests/support/step_programs.py            four nets, in float16 channels last and TF32 of NCHW
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable, Iterator

from convdispatch.api import ConvProblem, DeviceInfo
from convdispatch.api.problem import DIRECTIONS
from convdispatch.device.programs.kernels import rendering
from convdispatch.measurement import shapes
from convdispatch.selection.choice.ranking import rank
from convdispatch.selection.visible_problem import visible_problem
from convdispatch.tools.targets.described import DESCRIBED, described_context

NETS = ("resnet50_full", "densenet121", "convnext_t", "efficientnet_b0")
FORMS = {"float16": {"dtype": "float16", "layout": "nhwc"}, "tf32": {"math": "tf32"}}


def problems_of_step(net: str, batch: int = 64, **form: str) -> Iterator[ConvProblem]:
    """Each layer of a shape table in each direction, once; a first layer has no data gradient."""
    seen = set()
    for entry in shapes.load(net):
        for direction in DIRECTIONS:
            problem = entry.problem.replace(mb=batch, direction=direction, **form)
            if problem not in seen and not (direction == "bwd_data" and problem.ic == 3):
                seen.add(problem)
                yield problem


def programs(problems: Iterable[ConvProblem], device: DeviceInfo) -> collections.Counter[str]:
    """The number of different texts that the first choice of each problem compiles, by solver."""
    context, texts = described_context(device), {}
    for problem in problems:
        best = rank(problem, device)[0]
        with rendering() as rendered:
            best.solver.plan(context, visible_problem(best.solver, problem), best.config)
        for text in rendered:
            texts.setdefault(text, best.solver.name)
    return collections.Counter(texts.values())


def main() -> None:
    for form, options in FORMS.items():
        for net in sys.argv[1:] or NETS:
            counts = programs(problems_of_step(net, **options), DESCRIBED["h200"])
            by_solver = ", ".join(f"{name} {count}" for name, count in counts.most_common())
            print(f"{net} {form}: {sum(counts.values())} programs ({by_solver})", flush=True)


if __name__ == "__main__":
    main()
