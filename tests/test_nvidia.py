"""The nvidia plugin: everything but the tensor cores' instructions runs on any device, in plain C stand-ins.

Integer data compare exactly; every operand lies between guard zones, outputs and workspaces begin as NaN, each plan
runs twice.
"""

from __future__ import annotations

import itertools

import numpy as np
import pyopencl as cl
import pytest
from checking import TOLERANCE, Guarded, compare, make_operands, numpy_dtype
from convdispatch_nvidia.job import Job
from convdispatch_nvidia.plan import NvidiaPlan
from convdispatch_nvidia.tile import Tile

from convdispatch import ConvProblem, shapes
from convdispatch.api.problem import DIRECTIONS

LAYOUTS = ("nchw", "nhwc")


def region(guarded: Guarded) -> cl.Buffer:
    """The payload of a guarded array as a buffer of its own."""
    return guarded.buffer.get_sub_region(guarded.start, max(1, guarded.nbytes))


def check(queue, problem: ConvProblem, config, engine, *, data="integer", emulate=True, tolerance=None) -> None:
    """Run one configuration twice between guard zones; compare with the reference."""
    plan = NvidiaPlan(queue.context, problem, config, engine, emulate=emulate)
    hint = f"{problem} {engine} {config}"
    operands, expected = make_operands(problem, data)
    given = {key: Guarded(array, queue) for key, array in operands.present().items() if key != "initial"}
    scratch = Guarded(np.full(max(1, plan.workspace_size), 0xFF, np.uint8), queue)
    buffers = {key: region(value) for key, value in given.items()}
    if getattr(plan, "packed_size", 0):
        packed = Guarded(np.full(plan.packed_size, 0xFF, np.uint8), queue)
        plan.pack(queue, buffers["w"], region(packed)).wait()
        buffers["w"] = region(packed)
        assert packed.damage(payload_too=False) is None, hint
    extras = {key: buffers[key] for key in ("bias", "residual") if key in buffers}
    for _ in range(2):
        blank = np.full(problem.out_shape, np.nan, numpy_dtype(problem.dtype))
        out = Guarded(operands.initial if problem.accumulate else blank, queue)
        buffers[problem.written] = region(out)
        plan.enqueue(queue, buffers["x"], buffers["w"], buffers["y"], region(scratch), **extras).wait()
        for key, guarded in {**given, "workspace": scratch, "out": out}.items():
            damage = guarded.damage(payload_too=key not in ("out", "workspace"))
            assert damage is None, f"{hint}: {key}: {damage}"
        limit = 0.0 if data == "integer" else tolerance or TOLERANCE[problem.dtype]
        compare(out.read()[1], expected, limit, hint)
