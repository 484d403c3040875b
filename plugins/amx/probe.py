"""Checks once per device that its compiler accepts the assembly and that results are right; a pass is cached."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyopencl as cl

from convdispatch.api import ConvProblem, Frozen, PluginError, proven
from convdispatch.api.cpu import lacking

from . import NEEDED

_PROBLEM = ConvProblem(mb=2, ic=40, ih=9, iw=8, oc=24, kh=3, kw=3, ph=1, pw=1, layout="nhwc")
_ONE_TAP = {"kh": 1, "kw": 1, "ph": 0, "pw": 0, "ph_r": 0, "pw_r": 0}


def require(context: Any, problem: ConvProblem = _PROBLEM, tiles: Any = None) -> None:
    """Check once that kernels of the class ``tiles`` compute correctly on the context's device. Raises PluginError.

    The check has the layout of ``problem``, and one tap or several as ``problem`` has: programs may then be shared.
    """
    taps = 1 if math.prod(problem.w_shape[2:] if problem.layout == "nchw" else problem.w_shape[1:-1]) == 1 else 3
    probed = _PROBLEM.replace(layout=problem.layout, **({} if taps == 3 else _ONE_TAP))
    if tiles.vectors:
        probed = probed.replace(dtype="bfloat16")
    failure = lacking(*NEEDED[tiles.vectors]) or proven(
        __package__, tiles.name, context.devices[0], lambda: _probe_failure(context, probed, tiles)
    )
    if failure is not None:
        raise PluginError(failure)


def _probe_failure(context: Any, problem: ConvProblem, tiles: Any) -> str | None:
    import ml_dtypes  # noqa: F401 importing ml_dtypes makes "bfloat16" a dtype of NumPy

    random, taps, pad = np.random.default_rng(3), range(problem.kh), problem.ph
    x = random.integers(-3, 4, problem.x_shape)
    w = random.integers(-3, 4, problem.w_shape)
    y = np.full(problem.y_shape, np.nan, problem.dtype)
    try:
        config = {"planes": 1 if tiles.vectors else 2, "rows": 7, "panels": 1, "items": 2}
        plan = tiles(problem, config).plan(context)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers = [cl.Buffer(context, flags, hostbuf=each.astype(problem.dtype)) for each in (x, w, y)]
        queue = cl.CommandQueue(context)
        plan.enqueue(queue, *buffers, cl.Buffer(context, cl.mem_flags.READ_WRITE, plan.workspace_size))
        cl.enqueue_copy(queue, y, buffers[2])
    except Frozen:
        raise
    except Exception as error:
        return f"the probe failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    channels_last = (lambda each: each) if problem.layout == "nhwc" else (lambda each: np.moveaxis(each, 1, -1))
    padded, w = np.pad(channels_last(x), ((0, 0), (pad, pad), (pad, pad), (0, 0))), channels_last(w)
    views = ((i, j, padded[:, i : i + problem.oh, j : j + problem.ow]) for i in taps for j in taps)
    expected = sum(np.einsum("ohwc,nc->ohwn", view, w[:, i, j]) for i, j, view in views)
    equal = np.array_equal(channels_last(y), expected.astype(problem.dtype))
    return None if equal else "the probe computed wrong results"
