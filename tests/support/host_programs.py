"""Problems, solvers and kernels by which programs and launches on the host's memory are tested."""

from __future__ import annotations

import numpy as np
import pyopencl as cl

from convdispatch.api.policy import Policy
from convdispatch.device import runtime
from convdispatch.selection.choice import ranking

TEXTS = (
    "mb1ic24ih1oc72kh1", "mb2ic16ih9oc24kh3ph1+bias", "g16mb1ic16ih8oc16kh3ph1", "bwd_data_mb2ic8ih7oc12kh3ph1",
    "bwd_weights_mb3ic6ih9oc8kh3ph1", "nhwc_mb2ic8ih6oc16kh3ph1+bias+relu", "f64_mb1ic5ih6oc7kh1+bias",
    "f16_mb2ic8ih6oc16kh3ph1",
)  # fmt: skip

ADD = """kernel void add(global const float *a, global const float *b, global float *c, int n) {
    for (int i = 0; i < n; i++) c[i] = a[i] + b[i];
}"""


def answer(queue, program):
    """What the kernel ``k`` of a program writes to the first int of its memory."""
    memory, found = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4), np.zeros(1, np.int32)
    program.k(queue, (1,), None, memory)
    cl.enqueue_copy(queue, found, memory)
    return int(found[0])


def solvers(problem, device, derived=False):
    """Names of the solvers that take the problem on the device, without derived ones where they are not asked for."""
    info = runtime.device_info(device)
    for name, solver in ranking.contestants(problem, info).items():
        if ranking.refusal(solver, problem, info, Policy()) is None and (derived or "+" not in name):
            yield name
