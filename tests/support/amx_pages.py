"""Convolutions whose operands touch forbidden pages: ``python tests/support/amx_pages.py WAY WHERE PROBLEM...``.

Prints a word for each that went well; a kernel that reads or writes a byte too far ends the process. With WAY
``overrun`` a kernel does so on purpose.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pyopencl as cl
from as_amx import native, translated
from as_gpu import hurried
from checking import make_operands, numpy_dtype
from convdispatch_amx import convolve, vectors, weights

from convdispatch import ConvProblem
from convdispatch.device import runtime
from convdispatch.device.programs import kernels

PAGE, HOME = mmap.PAGESIZE, []
KINDS = ("fwd_f32_", "fwd_bf16_nhwc_", "bwd_data_f32_", "bwd_data_f32_nhwc_", "bwd_weights_f16_",
         "bwd_weights_f32_nhwc_", "fwd_f32_")  # fmt: skip
"""The last begins where its pages do, the others end there."""
VECTOR_KINDS = tuple(
    f"{way}_bf16_{layout}_" for way in ("fwd", "bwd_data", "bwd_weights") for layout in ("nchw", "nhwc")
)
OVERRUN = "kernel void overrun(global float *x, global float *y) { *y = x[get_global_size(0)]; }"


def page(context: cl.Context, array: np.ndarray, at_the_end: bool) -> tuple[np.ndarray, cl.Buffer]:
    """A copy of an array between two forbidden pages, against the one or the other, and a buffer over it."""
    size = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + 2 * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    HOME.append((memory, whole))
    start = PAGE + (size - array.nbytes if at_the_end else 0)
    held = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    held[...] = array
    libc = ctypes.CDLL(None, use_errno=True)
    for forbidden in (whole.ctypes.data, whole.ctypes.data + PAGE + size):
        assert libc.mprotect(ctypes.c_void_p(forbidden), PAGE, 0) == 0
    return held, cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=held)


def main(way: str, where: str, *texts: str) -> None:
    device = runtime.default_device()
    context, info = runtime.context(device), runtime.device_info(device)
    queue, compiled = cl.CommandQueue(context), kernels._compile
    if way == "overrun":
        x = page(context, np.zeros(PAGE, np.float32), True)[1]
        cl.Program(context, OVERRUN).build().overrun(queue, (PAGE,), None, x, page(context, np.zeros(32), True)[1])
        queue.finish()
        return
    if where == "native":
        assert native(device, "amx.vectors" if way == "vectors" else "amx.tiles") is None  # also asks for registers
    else:
        convolve.require = weights.require = lambda *given, **named: None
        kernels._compile = lambda context, text, options: compiled(context, translated(text), hurried(context, options))
    for text in texts:
        for number, kind in enumerate(KINDS if way != "vectors" else VECTOR_KINDS * 2):
            problem = ConvProblem.parse(kind + text)
            makes = (convolve.Tiles, weights.Weights) if way != "vectors" else (vectors.Vectors, vectors.VectorWeights)
            solver = makes[problem.direction == "bwd_weights"]()
            operands, expected = make_operands(problem)
            held = {**operands.present(), problem.written: np.full(problem.out_shape, np.nan, expected.dtype)}
            plan = solver.plan(context, problem, next(iter(solver.configs(problem, info))))
            given = {
                key: page(context, array.astype(numpy_dtype(problem.dtype)), number < 6) for key, array in held.items()
            }
            scratch = page(context, np.full(plan.workspace_size, 0xFF, np.uint8), number < 6)[1]
            plan.enqueue(queue, *(given[name][1] for name in "xwy"), scratch).wait()
            assert np.array_equal(given[problem.written][0].astype(np.float64), expected), problem
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
