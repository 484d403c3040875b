"""Plans made of steps: launches and matrix products in order, chained by events.

For solvers of several passes (transform, product, inverse transform): areas of one workspace, a matrix product that
reads and writes them, and a plan that runs the passes in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from ...api.problem import ConvProblem
from ..programs.kernels import OPERANDS, Launch, build, config_macros, kernel_text

if TYPE_CHECKING:
    from ..gemm import GemmPlan

Step = Callable[[Any, Sequence[Any], Any], Any]
"""``step(queue, operands, wait_for) -> Event``, operands in the order of OPERANDS; a Launch is one."""


class Areas:
    """Lays areas of a workspace one after the other: ``add`` returns an area's offset, ``size`` is the sum of sizes.

    Sizes are rounded up to multiples of ``align`` bytes; the default is enough for every vector load.
    """

    def __init__(self, align: int = 128) -> None:
        self.align, self.size = align, 0

    def add(self, size: int) -> int:
        """Byte offset of a new area of ``size`` bytes."""
        start, self.size = self.size, self.size + -(-size // self.align) * self.align
        return start


@dataclass(frozen=True)
class Product:
    """One matrix product as a step: the names of its operands among OPERANDS, and the offsets in elements."""

    plan: GemmPlan
    a: str
    b: str
    c: str
    a_offset: int = 0
    b_offset: int = 0
    c_offset: int = 0
    scratch: int = 0
    """Byte offset of the product's own workspace."""
    bias_offset: int = 0
    places: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(OPERANDS.index(name) for name in (self.a, self.b, self.c)))

    def __call__(self, queue: cl.CommandQueue, operands: Sequence[Any], wait_for: Any = None) -> cl.Event:
        """Enqueue the product on ``queue``, with operands in the order of OPERANDS."""
        a, b, c = self.places
        workspace, bias, residual = operands[3:6]
        return self.plan.enqueue(
            queue,
            operands[a],
            operands[b],
            operands[c],
            workspace,
            wait_for,
            bias=bias,
            residual=residual,
            a_offset=self.a_offset,
            b_offset=self.b_offset,
            c_offset=self.c_offset,
            bias_offset=self.bias_offset,
            residual_offset=self.c_offset,
            workspace_offset=self.scratch,
        )


class StepPlan:
    """A Plan that runs ``steps`` in order.

    ``packers`` are steps that write the packed form of constant weights from ``w`` to the buffer that is passed as
    ``workspace``. The steps of ``enqueue`` then get the packed form as ``w``. If weights are not constant, a solver
    lists its packers among the steps.
    """

    def __init__(
        self,
        workspace_size: int,
        steps: Sequence[Step],
        packed_size: int = 0,
        packers: Sequence[Step] = (),
        pack_key: str | None = None,
    ) -> None:
        self.workspace_size, self.packed_size, self.pack_key = workspace_size, packed_size, pack_key
        self._steps, self._packers = tuple(steps), tuple(packers)

    @classmethod
    def packing(
        cls, once: bool, workspace_size: int, packers: Sequence[Step], steps: Sequence[Step], packed_size: int, key: Any
    ) -> StepPlan:
        """A plan whose packers run ``once``, for constant weights, or else before the steps of each call. ``key`` is a
        JSON value, equal for plans that pack the same weights into the same bytes."""
        if once:
            return cls(workspace_size, steps, packed_size, packers, json.dumps(key, sort_keys=True))
        return cls(workspace_size, [*packers, *steps])

    def pack(self, queue: cl.CommandQueue, w: Any, packed: Any, wait_for: Any = None) -> cl.Event:
        """Write the weights' packed form, which ``enqueue`` then takes as ``w``."""
        return _run(self._packers, queue, (None, w, None, packed, None, None), wait_for)

    def enqueue(
        self,
        queue: cl.CommandQueue,
        x: Any,
        w: Any,
        y: Any,
        workspace: Any,
        wait_for: Any = None,
        *,
        bias: Any = None,
        residual: Any = None,
        norm: Any = None,
        saved: Any = None,
        sums: Any = None,
    ) -> cl.Event:
        """Enqueue the steps, each after the preceding one; returns the event of the last step."""
        return _run(self._steps, queue, (x, w, y, workspace, bias, residual, norm, saved, sums), wait_for)


class KernelPlan(StepPlan):
    """The usual Plan: one program and its launches in order.

    ``launches`` holds ``(kernel, global_size, local_size, arguments)``; ``arguments`` is a string of names among
    ``x w y bias residual workspace``, or a sequence that mixes these names with NumPy scalars. The program's text is
    the problem's macros, the configuration's, then ``file``.
    """

    def __init__(
        self,
        context: cl.Context,
        package: str,
        file: str,
        problem: ConvProblem,
        config: Mapping[str, Any],
        launches: Sequence[tuple[str, tuple[int, ...], tuple[int, ...] | None, str | Sequence[Any]]],
        *,
        workspace_size: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        text = problem.macros() + config_macros(config) + kernel_text(package, file, problem=problem, config=config)
        self.program = build(context, text, options)
        super().__init__(workspace_size, [Launch(self.program, *launch, names=OPERANDS) for launch in launches])


def _run(steps: Sequence[Step], queue: cl.CommandQueue, operands: Sequence[Any], wait_for: Any) -> cl.Event:
    for step in steps:
        wait_for = (step(queue, operands, wait_for),)
    return wait_for[0]
