"""The smallest honest plugin: direct sums, one work item an output element, every problem and direction.

Tests load it as a drop-in, a fake vendor and a second opinion: ``CONVDISPATCH_PLUGIN_DIR=tests/support/naive_plugin``.
"""

import math

from convdispatch.api import KernelPlan, Solver, hookimpl


class Direct(Solver):
    """Textbook loops; fuses nothing, so every epilogue is the generic one."""

    name = "naive.direct"
    exact = True

    def rejects(self, problem, device):
        return device.supports(problem.dtype)

    def plan(self, context, problem, config):
        size = (math.prod(problem.out_shape),)
        return KernelPlan(context, __name__, "direct.cl", problem, config, [("direct", size, None, "x w y")])


@hookimpl
def convdispatch_solvers():
    return [Direct()]
