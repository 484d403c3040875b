"""What oneDNN computes wrongly if it is let: errata by shape, and primitives other than they were described."""

from __future__ import annotations

import numpy as np
import pytest

from convdispatch.api import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement.conformance.data import data_for
from convdispatch.selection.plugins.loader import plugins


@pytest.mark.parametrize("before", [0x00000000, 0xFFFFFFFF, 0x3F803F80], ids=["zeros", "NaN", "ones"])
@pytest.mark.parametrize(
    "text",
    [
        "bf16_mb3ic16ih17iw2oc40kh7kw4sh2sw3ph0pw3",  # ends of transposed rows were read that nobody wrote
        "bf16_ic8iw1oc8kw7sw2pw3",
        "f32_mb5ic3id5ih5iw10oc8kd7kh3kw8sd3sh3sw2pd5ph1pw6",  # kernels that hang over both ends in depth
        "bf16_mb3ic3id5ih5iw5oc3kd2kh7kw1sd3sh3sw2pd1ph1pw0",
        "bf16_nhwc_g4mb1ic68ih16iw37oc64kh3kw3dh2dw1",  # channels last, dilated across rows
        "bf16_nhwc_g2mb5ic10ih15iw35oc2kh3kw3ph0pw1dh2dw1",
        "bf16_mb3ic17ih25iw51oc1kh3kw3dh2dw1",  # this one ended the process
    ],
)
def test_erratum(text, before, device):
    """Weights' gradients that oneDNN computes wrongly if it is let, whatever the workspace held before."""
    problem = ConvProblem.parse("bwd_weights_" + text)
    queue, solver = runtime.queue(device), plugins().solvers["onednn.gradient"]
    info = runtime.device_info(device)
    if reason := solver.rejects(problem, info):
        pytest.skip(reason)
    for config in solver.configs(problem, info):
        checked(solver.plan(queue.context, problem, config), problem, queue, before)


def checked(plan, problem, queue, before=0):
    """A plan's weights' gradient, whose workspace holds ``before``, against the reference."""
    import pyopencl as cl

    data = data_for(problem, "integer", 3)
    held = {name: np.ascontiguousarray(data.operands[name]) for name in ("x", "y")}
    held["w"] = np.full(problem.w_shape, np.nan, held["x"].dtype)
    held["workspace"] = np.full(plan.workspace_size // 4 + 1, before, np.uint32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = {name: cl.Buffer(queue.context, flags, hostbuf=array) for name, array in held.items()}
    plan.enqueue(queue, **buffers)
    cl.enqueue_copy(queue, held["w"], buffers["w"])
    np.testing.assert_allclose(held["w"].astype(np.float64), data.expected, rtol=2**-8, err_msg=plan.implementation)


def test_a_primitive_that_another_thread_made_since_is_no_surprise(device):
    """The library's cache takes layouts that differ in steps of axes of length 1 for one, but not what they need."""
    from convdispatch_onednn.primitive import Convolution, described, shared

    problem = ConvProblem.parse("bwd_weights_bf16_ic8iw1oc16kw7sw2pw3")
    queue, solver = runtime.queue(device), plugins().solvers["onednn.gradient"]
    info, config = runtime.device_info(device), {"data": "nhwc"}
    if reason := solver.rejects(problem, info):
        pytest.skip(reason)
    before = described(shared(problem), config["data"])
    Convolution(problem, {"data": "plain"}).primitive()  # not destroyed: kept, if anything is
    made = solver.plan(queue.context, problem, config)
    assert made.implementation == before.implementation
    assert made.workspace_size == solver.workspace(problem, info, config)
    checked(made, problem, queue)
