"""Whether a device's driver takes the instructions: a small convolution is compiled, run and checked, once a device."""

from __future__ import annotations

import functools
from typing import Any

from convdispatch.api import ConvProblem, DeviceInfo, Frozen

__all__ = ["probe"]

_PROBLEM = ConvProblem(mb=2, ic=16, ih=9, iw=8, oc=24, kh=3, kw=3, ph=1, pw=1)
_POINTS = ConvProblem(mb=2, ic=68, ih=9, iw=8, oc=24)
"""What ``direct`` takes: a kernel of 1x1; more slices than stages, the last one short."""
_TILES = {
    "mma": {"bm": 32, "bn": 32, "wm": 2, "wn": 1, "bk": 32, "format": "bfloat2", "stages": 2},
    "wgmma": {"bm": 64, "bn": 32, "wm": 1, "wn": 1, "bk": 32, "format": "bfloat2", "stages": 3},
    "tma": {"bm": 64, "bn": 64, "wm": 1, "wn": 1, "format": "float16", "stages": 3},
    "direct": {"bm": 32, "bn": 64, "wm": 1, "wn": 2, "bk": 16},
    "grouped": {"frag_m": 1, "warps": 4},
}


def _plan(context: Any, engine: str) -> tuple[ConvProblem, Any]:
    """A problem that needs all of an engine's instructions, and its plan."""
    from .direct.solver import DirectPlan
    from .grouped.solver import GroupedPlan
    from .packed.plan import NvidiaPlan
    from .tma.solver import TmaPlan

    tile = _TILES[engine]
    if engine == "direct":
        return _POINTS, DirectPlan(context, _POINTS, tile)
    if engine == "grouped":
        problem = _PROBLEM.replace(dtype="float16", layout="nhwc")
        return problem, GroupedPlan(context, problem, tile)
    if engine == "tma":
        problem = _PROBLEM.replace(dtype="float16", layout="nhwc")
        return problem, TmaPlan(context, problem, tile, "wgmma")
    return _PROBLEM, NvidiaPlan(context, _PROBLEM, tile, engine)


@functools.lru_cache(maxsize=64)
def _answer(device: DeviceInfo, engine: str) -> str | None:
    import numpy as np
    import pyopencl as cl

    found = _device(device)
    if found is None:
        return f"the device {device.name} is no longer listed"
    context = cl.Context([found])
    queue = cl.CommandQueue(context)
    random = np.random.default_rng(3)
    try:
        problem, plan = _plan(context, engine)
        x = random.integers(-3, 4, (problem.mb, problem.ih, problem.iw, problem.ic))  # sums stay exact in 16 bits
        w = random.integers(-1, 2, (problem.oc, problem.kh, problem.kw, problem.ic))
        last = problem.layout == "nhwc"
        y = np.full(problem.y_shape, np.nan, problem.dtype)
        given = [np.ascontiguousarray(each if last else each.transpose(0, 3, 1, 2), problem.dtype) for each in (x, w)]
        flags = cl.mem_flags
        buffers = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=each) for each in (*given, y)]
        plan.enqueue(queue, *buffers, cl.Buffer(context, flags.READ_WRITE, max(4, plan.workspace_size)))
        cl.enqueue_copy(queue, y, buffers[2])
    except Frozen:
        raise
    except Exception as error:
        return f"the probe failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    padded = np.pad(x, ((0, 0), (problem.ph, problem.ph), (problem.pw, problem.pw), (0, 0)))
    expected = sum(
        np.einsum("oc,nhwc->nhwo", w[:, i, j], padded[:, i : i + problem.oh, j : j + problem.ow])
        for i in range(problem.kh)
        for j in range(problem.kw)
    )
    right = np.array_equal(y if last else y.transpose(0, 2, 3, 1), expected)
    return None if right else "the probe computed wrong results"


def _device(device: DeviceInfo) -> Any:
    import pyopencl as cl

    for platform in cl.get_platforms():
        try:
            listed = platform.get_devices()
        except cl.Error:
            continue
        for each in listed:
            if each.name.strip() == device.name and each.driver_version.strip() == device.driver:
                return each
    return None


def probe(device: DeviceInfo, engine: str) -> str | None:
    """Why ``engine`` does not work on the device, or None; asked of the device once a process."""
    try:
        return _answer(device, engine)
    except Frozen:
        return f"{engine} was not probed before frozen()"
