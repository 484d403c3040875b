"""Checks once per device that its compiler accepts the assembly and that results are right; a pass is cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyopencl as cl

from convdispatch.api import ConvProblem, Frozen, PluginError, Quantization, proven

__all__ = ["require"]

_PROBLEM = ConvProblem(
    mb=2, ic=40, ih=9, iw=8, oc=56, kh=3, kw=3, ph=1, pw=1, layout="nhwc", dtype="uint8", out_dtype="uint8"
)


def require(context: Any, name: str, kernel: Any, config: Mapping[str, Any]) -> None:
    """Check once that ``kernel`` computes correctly on the context's device. Raises PluginError.

    ``kernel`` is the class whose plan multiplies.
    """
    failure = proven(__package__, name, context.devices[0], lambda: _probe_failure(context, kernel, config))
    if failure is not None:
        raise PluginError(failure)


def _probe_failure(context: Any, kernel: Any, config: Mapping[str, Any]) -> str | None:
    problem, random = _PROBLEM, np.random.default_rng(3)
    x = random.integers(0, 256, problem.x_shape).astype(np.uint8)
    w = random.integers(-128, 128, problem.w_shape).astype(np.int8)
    quantization = Quantization(1.0, 9, 1.0, 2.0**10, 101, dtype="uint8")
    table = quantization.table(problem.oc)
    y = np.zeros(problem.y_shape, np.uint8)
    try:
        plan = kernel(problem, config).plan(context)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers = [cl.Buffer(context, flags, hostbuf=each) for each in (x, w, y, table)]
        queue, scratch = cl.CommandQueue(context), cl.Buffer(context, cl.mem_flags.READ_WRITE, plan.workspace_size)
        plan.enqueue(queue, *buffers[:3], scratch, bias=buffers[3])
        cl.enqueue_copy(queue, y, buffers[2])
    except Frozen:
        raise
    except Exception as error:
        return f"the probe failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    padded = np.pad(x.astype(np.int32) - 9, ((0, 0), (1, 1), (1, 1), (0, 0)))
    sums = sum(
        padded[:, i : i + problem.oh, j : j + problem.ow] @ w[:, i, j].astype(np.int32).T
        for i in range(3)
        for j in range(3)
    )
    expected = np.clip(np.rint(np.asarray(sums, np.float32) / np.float32(2**10)) + 101, 0, 255)
    return None if np.array_equal(y, expected) else "the probe computed wrong results"
