"""A native library behind a plan: 1x1 layers by gemm1x1 of gemm.so, which the wheel brings."""

import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyopencl as cl

from convdispatch.api import Solver, hookimpl

LIBRARY = Path(__file__).parent / "gemm.so"
_workers = ThreadPoolExecutor(2, "native")


@functools.cache
def library():
    """The library, loaded when it is first wanted. Raises OSError."""
    found = ctypes.CDLL(str(LIBRARY))
    found.gemm1x1.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_size_t] * 4]
    found.gemm1x1.restype = None
    return found


@functools.cache
def unavailable():
    """None, or what this machine lacks: doctor and verify show it."""
    try:
        library()
    except OSError as error:
        return f"gemm.so does not load ({error}): install the wheel for this platform"
    return None


class NativePlan:
    workspace_size = 0
    recordable = False  # it enqueues by its own means

    def __init__(self, context, problem):
        self.problem = problem
        # Mapping needs a queue, and the caller's may be blocked behind this very work: so one of the plan's own.
        self.own = cl.CommandQueue(context)

    def enqueue(self, queue, x, w, y, workspace, wait_for=None):
        before = cl.enqueue_marker(queue, wait_for=wait_for)
        done = cl.UserEvent(queue.context)
        after = cl.enqueue_barrier(queue, wait_for=[done])
        queue.flush()
        _workers.submit(self._work, before, done, x, w, y)
        return after

    def _work(self, before, done, x, w, y):
        status = cl.command_execution_status.COMPLETE
        try:
            before.wait()
            p = self.problem
            pixels = p.ih * p.iw
            sizes = p.mb * p.ic * pixels, p.oc * p.ic, p.mb * p.oc * pixels
            flags = cl.map_flags.READ, cl.map_flags.READ, cl.map_flags.WRITE
            views = [
                cl.enqueue_map_buffer(self.own, memory, flag, 0, size, np.float32)[0]
                for memory, flag, size in zip((x, w, y), flags, sizes)
            ]
            library().gemm1x1(*(view.ctypes.data for view in views), p.mb, p.ic, p.oc, pixels)
            for view in views:
                view.base.release(self.own)
            self.own.finish()
        except Exception:
            status = -1  # the caller's wait fails instead of hanging
        done.set_status(status)


class Native(Solver):
    name = "native.gemm1x1"
    spreads_nonfinite = False

    def rejects(self, problem, device):
        if device.type != "cpu":
            return f"memory of a CPU device only, got a {device.type}"
        if problem.direction != "fwd":
            return f"forward only, got {problem.direction}"
        if (problem.dtype, problem.layout, problem.ndim) != ("float32", "nchw", 2):
            return f"2-D float32 in nchw only, got {problem.ndim}-D {problem.dtype} in {problem.layout}"
        sides = problem.kh, problem.kw, problem.sh, problem.sw, problem.g
        if set(sides) != {1} or problem.y_shape[2:] != problem.x_shape[2:]:
            return "1x1 with stride 1, no padding and one group only"
        return unavailable() if problem.mb else "1 image or more, got 0"

    def plan(self, context, problem, config):
        return NativePlan(context, problem)


@hookimpl
def convdispatch_solvers():
    return [Native()]
