"""Whether a device computes a small problem as a plan should: a check that a plugin makes once of what it relies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.dtypes import numpy_dtype
from ..api.errors import Frozen, PluginError
from ..api.problem import ConvProblem
from ..device.programs.proven import proven
from .conformance.data import data_for

SEED = 3
"""Of the data: quantized ones have all of an epilogue's numbers."""


def require_proven(package: str, what: str, context: cl.Context, problem: ConvProblem, make_plan: Callable) -> None:
    """Check once that the context's device computes ``problem`` by the plan that ``make_plan()`` returns.

    ``package`` is the plugin's, ``what`` names what is checked. Raises PluginError where it does not.
    """
    failure = proven(package, what, context.devices[0], lambda: probe_failure(context, problem, make_plan))
    if failure is not None:
        raise PluginError(failure)


def probe_failure(context: cl.Context, problem: ConvProblem, make_plan: Callable[[], Any]) -> str | None:
    """Why a plan does not compute ``problem`` to the last bit of the reference, on integers of exact sums; or None."""
    data = data_for(problem, "integer", SEED)
    wrong = np.where(data.expected > 0, data.expected - 1, data.expected + 1)
    out = wrong.astype(numpy_dtype(problem.form(problem.written)[1]))
    try:
        plan, flags = make_plan(), cl.mem_flags.READ_WRITE
        host = {name: np.ascontiguousarray(array) for name, array in {**data.operands, problem.written: out}.items()}
        held = {name: cl.Buffer(context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=host[name]) for name in host}
        workspace, queue = cl.Buffer(context, flags, max(4, plan.workspace_size)), cl.CommandQueue(context)
        extras = {name: held[name] for name in problem.extras}
        plan.enqueue(queue, held["x"], held["w"], held["y"], workspace, **extras)
        cl.enqueue_copy(queue, out, held[problem.written])
    except Frozen:
        raise
    except Exception as error:
        return f"the probe failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return None if np.array_equal(out, data.expected.astype(out.dtype)) else "the probe computed wrong results"
