"""A device proves that its compiler takes the instructions, and that they compute: once, and the pass is kept."""

from __future__ import annotations

from typing import Any

from convdispatch.api import ConvProblem, Frozen, PluginError, proven

from .processor import missing

__all__ = ["require"]

_PROBLEM = ConvProblem(mb=2, ic=40, ih=9, iw=8, oc=24, kh=3, kw=3, ph=1, pw=1, layout="nhwc")


def require(context: Any) -> None:
    """Have the context's device prove that tiles are multiplied, unless it has. Raises PluginError."""
    failure = missing() or proven(__package__, "tiles", context.devices[0], lambda: _answer(context))
    if failure is not None:
        raise PluginError(failure)


def _answer(context: Any) -> str | None:
    import numpy as np
    import pyopencl as cl

    from .convolve import compiled

    problem, random = _PROBLEM, np.random.default_rng(3)
    x = random.integers(-3, 4, problem.x_shape)
    w = random.integers(-3, 4, problem.w_shape)
    y = np.full(problem.y_shape, np.nan, problem.dtype)
    try:
        plan = compiled(context, problem, {"planes": 2, "rows": 7, "panels": 1, "items": 2})
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers = [cl.Buffer(context, flags, hostbuf=each.astype(problem.dtype)) for each in (x, w, y)]
        queue = cl.CommandQueue(context)
        plan.enqueue(queue, *buffers, cl.Buffer(context, cl.mem_flags.READ_WRITE, plan.workspace_size))
        cl.enqueue_copy(queue, y, buffers[2])
    except Frozen:
        raise
    except Exception as error:
        return f"the probe failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    views = ((i, j, padded[:, i : i + problem.oh, j : j + problem.ow]) for i in range(3) for j in range(3))
    right = np.array_equal(y, sum(np.einsum("ohwc,nc->ohwn", view, w[:, i, j]) for i, j, view in views))
    return None if right else "the probe computed wrong results"
