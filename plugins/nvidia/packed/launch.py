"""The product over packed operands as a launch: what plans of this plugin are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convdispatch.api import OPERANDS, ConvProblem, Launch, build, kernel_text

from .. import SHARED
from ..hopper import build_for_hopper
from .job import Job
from .product import product_text

if TYPE_CHECKING:
    from .plan import Layout

__all__ = ["ProductLaunch", "common_macros", "written"]


def common_macros(job: Job) -> str:
    """The problem's macros, and the type of offsets in the output."""
    return job.problem.macros() + f"#define OUT_INDEX {job.out_index}\n"


def written(problem: ConvProblem) -> list[str]:
    """The operands of a kernel that ends with the epilogue: the output, bias and residual."""
    return [problem.written, *(name for name in ("bias", "residual") if getattr(problem, name))]


class ProductLaunch:
    """The launch of ``product.cl.mako`` for a job; ``given`` names the operands A and B."""

    def __init__(self, job: Job, where: Layout, given: Sequence[str], *, emulate: bool = False) -> None:
        self.job, self._where, self._given, self._emulate = job, where, list(given), emulate

    def text(self) -> str:
        """The program."""
        job, where = self.job, self._where
        places = (job.source.name, "w") if job.data else ("y", "x")
        text = common_macros(job) + f"#define PARTIAL {int(job.partial)}\n#define PARTIAL_AT {where.partial // 4}L\n"
        last = job.problem.layout == "nhwc" and not job.tile.stacked
        text += f"#define PAIRS {int(last and job.walk.m % 2 == 0)}\n"
        text += f"#define OCTETS {int(last and job.walk.m % 8 == 0)}\n"
        for letter, name in zip("AB", places, strict=True):
            text += f"#define {letter}_AT {where.at.get(name, 0) // 2}L\n"
            if where.scales:
                text += f"#define MARKS_{letter}_AT {where.marks_at(letter)}L\n"
        text += job.instructions.text(self._emulate)
        for file in ("narrow.cl.mako", "finish.cl", "sums.cl", "shifted.cl"):
            text += kernel_text(SHARED, file, job=job)
        return text + product_text(job)

    def launch(self, context: Any) -> Launch:
        """Compile it."""
        job, given = self.job, list(self._given)
        if job.format.scaled:
            given += given
        given += ["workspace"] if job.partial else written(job.problem)
        text, hopper = self.text(), job.tile.engine == "wgmma" and not self._emulate
        program = build_for_hopper(context, text) if hopper else build(context, text)
        items = job.tile.items
        return Launch(program, "product", (job.work_groups * items,), (items,), given, names=OPERANDS)
