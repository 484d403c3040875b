"""Solvers that each break the contract in one way, over im2col; ``FAULTS`` names those to provide."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyopencl as cl
from convdispatch_im2col import Im2col

from convdispatch.api import Solver, build, hookimpl

SOURCE = """
kernel void poke(global float *p, long at, float v) { p[at] = v; }
kernel void nudge(global float *p, float v) { p[0] *= v; }
"""


class Plan:
    """im2col's plan, then the fault."""

    def __init__(self, fault, context, problem, config):
        self.inner = Im2col().plan(context, problem, next(iter(Im2col().configs(problem, _info(context)))))
        self.fault, self.problem, self.config = fault, problem, config
        self.workspace_size = self.inner.workspace_size + (64 if fault == "overflow" else config.get("extra", 0))
        self.program = build(context, SOURCE)
        self.runs = 0
        if fault == "slow_compile":
            time.sleep(2.5)
        if fault == "no_compile":
            build(context, "kernel void broken( {")

    def enqueue(self, queue, x, w, y, workspace, wait_for=None):
        size = self.inner.workspace_size
        event = self.inner.enqueue(queue, x, w, y, workspace if size else None, wait_for)
        self.runs += 1
        count = y.size // 4
        if self.fault == "lies":
            event = cl.enqueue_fill_buffer(queue, y, b"\0\0\0\0", 0, y.size)
        elif self.fault == "partial":
            event = cl.enqueue_fill_buffer(queue, y, b"\xc1\x7f", y.size - 8, 8)
        elif self.fault == "outside":
            event = self._kernel("poke", queue, y, count, 1.0)
        elif self.fault == "before":
            event = self._kernel("poke", queue, y, -1, 1.0)
        elif self.fault == "overflow":
            event = self._kernel("poke", queue, workspace, self.workspace_size // 4, 1.0)
        elif self.fault == "alters":
            event = self._kernel("poke", queue, x, 0, 1.0)
        elif self.fault == "random":
            event = self._kernel("nudge", queue, y, 1.0 + 1e-6 * self.runs)
        elif self.fault == "sloppy":
            event = self._kernel("nudge", queue, y, 1.0001)
        elif self.fault == "slow":
            time.sleep(0.25)
        elif self.fault == "late" and self.runs > 2:  # once to be verified, once for its determinism
            raise RuntimeError("the device was lost")
        elif self.fault == "crashes":
            os.abort()
        elif self.fault == "hangs":
            Path(os.environ["HANGING"], str(os.getpid())).touch()
            time.sleep(1000)
        return event

    def _kernel(self, name, queue, memory, *numbers):
        import numpy as np

        kernel = cl.Kernel(self.program, name)
        arguments = [np.int64(n) if isinstance(n, int) else np.float32(n) for n in numbers]
        return kernel(queue, (1,), None, memory, *arguments)


def _info(context):
    from convdispatch.device import runtime

    return runtime.device_info(context.devices[0])


class Faulty(Solver):
    """One fault."""

    def __init__(self, fault):
        self.fault, self.name = fault, "faulty." + fault

    def rejects(self, problem, device):
        return "float32 only, got " + problem.dtype if problem.dtype != "float32" else None

    def configs(self, problem, device):
        if self.fault == "half":
            return [{"broken": True}, {"broken": False}]
        return [{"extra": 4096 * i} for i in range(3)] if self.fault == "many" else [{}]

    def cost(self, problem, device, config):
        known = {"good": 1.0, "slow": 2.0}.get(self.fault)
        return known and known * problem.flops

    def plan(self, context, problem, config):
        fault = {True: "lies", False: "good"}[config["broken"]] if self.fault == "half" else self.fault
        return Plan(fault, context, problem, config)


@hookimpl
def convdispatch_solvers():
    return [Faulty(fault) for fault in os.environ.get("FAULTS", "").split(",") if fault]
