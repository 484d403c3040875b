"""Sums of parts whose sizes are arguments: divisors are exact, and layers share a program."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
from convdispatch_nvidia.direct.solver import DirectPlan
from convdispatch_nvidia.packed.plan import NvidiaPlan

from convdispatch import ConvProblem
from convdispatch.api import define, kernel_text
from convdispatch.device.programs.geometry_arguments import divided_by
from convdispatch.device.programs.kernels import rendering

KERNEL = "kernel void divide(global const INT *n, global INT *q, DIVISOR(d)) "
KERNEL += "{ const int i = get_global_id(0); q[i] = DIVIDED(n[i], d); }\n"
LAST = 2**31 - 1


@pytest.mark.parametrize("wide", [0, 1])
def test_division_by_an_argument_is_exact(queue, wide):
    text = define(WIDE=wide, INT="long" if wide else "int") + kernel_text("convdispatch.api", "divide.cl") + KERNEL
    kernel = cl.Kernel(cl.Program(queue.context, text).build(), "divide")
    rng, number = np.random.default_rng(0), np.int64 if wide else np.int32
    sizes = [*range(1, 70), *(2**k + e for k in (7, 15, 16, 30) for e in (-1, 0, 1)), LAST - 1, LAST]
    sizes += [int(d) for d in rng.integers(1, LAST, 60)]
    for d in sizes:
        most = LAST // d * d
        near = [0, 1, d - 1, d, min(LAST, d + 1), max(0, most - 1), most, LAST - 1, LAST]
        n = np.array([*near, *rng.integers(0, LAST, 55), *([most << 20, (1 << 40) + d] if wide else [])], number)
        given, got = cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=n), np.empty_like(n)
        out = cl.Buffer(queue.context, cl.mem_flags.WRITE_ONLY, n.nbytes)
        kernel(queue, n.shape, None, given, out, *divided_by(d))
        cl.enqueue_copy(queue, got, out)
        np.testing.assert_array_equal(got, n // d, err_msg=f"by {d}")


def reductions(plan, texts, config):
    """The programs that add parts, of plans of several problems."""
    found = set()
    for text in texts:
        with rendering() as rendered:
            plan(None, ConvProblem.parse(text), config)
        found |= {each for each in rendered if isinstance(each, str) and "void reduce(" in each}
    return found


@pytest.mark.parametrize("layout", ["", "nhwc_"])
def test_layers_share_the_program_that_adds_their_parts(layout):
    """Whatever their sizes; another epilogue, another order of axes and another number of parts are other programs."""
    texts = [
        f"bwd_weights_f32_{layout}{s}"
        for s in ("mb32ic64ih56oc64kh3ph1", "mb16ic256ih14oc512kh1", "mb8ic96ih9oc40kh5ph2")
    ]
    config = {"bm": 64, "bn": 64, "wm": 2, "wn": 2, "format": "half2", "split": 8}
    packed = lambda *given: NvidiaPlan(*given, "mma")  # noqa: E731
    assert len(reductions(packed, texts, config)) == 1
    assert len(reductions(packed, texts, config) | reductions(packed, texts, config | {"split": 4})) == 2
    ones = [f"bwd_weights_f32_{layout}{s}" for s in ("mb32ic64ih56oc64kh1", "mb16ic256ih14oc512kh1")]
    assert len(reductions(DirectPlan, ones, {"bm": 64, "bn": 64, "wm": 2, "wn": 2, "split": 8})) == 1
