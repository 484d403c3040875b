"""Both sides of a comparison on one NVIDIA GPU: plans over random values, timed by the device's clock, and PyTorch."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pyopencl as cl

from bench.timer import Side, graph_side, medians, sets_of
from convdispatch.api import ConvProblem
from convdispatch.device import runtime
from convdispatch.measurement import reference

CHECKED = 512
"""Elements of a result that are compared with float64's."""
PLUG = """
kernel void plug(global float *out, int steps) {
  float a = get_global_id(0), b = 0.5f;
  for (int i = 0; i < steps; ++i) { a = a * 0.999f + b; b = b * 0.999f + a; }
  out[get_global_id(0)] = a + b;
}
"""
STAMP = """
kernel void stamp(global ulong *out) {
  ulong now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *out = now;
}
"""


class Bench:
    """Random values that every tensor is a part of, on the host and on the device, and timing on the device."""

    def __init__(self, dtype: str, elements: int = 210_000_000) -> None:
        self.device = runtime.find_device(None if os.environ.get("CONVDISPATCH_DEVICE") else "nvidia")
        self.info, self.context = runtime.device_info(self.device), runtime.context(self.device)
        # Profiling costs every kernel 1 to 4 microseconds: the device's own clock is read before and after instead.
        self.queue = cl.CommandQueue(self.context)
        block = np.random.default_rng(0).standard_normal(1_000_003, dtype=np.float32)
        if dtype == "bfloat16":
            import ml_dtypes

            self.block = block.astype(ml_dtypes.bfloat16)
        else:
            self.block = block.astype(dtype)
        size, whole = self.block.nbytes, elements * self.block.itemsize
        flags = cl.mem_flags
        self.out = cl.Buffer(self.context, flags.READ_WRITE, whole)
        self.values = [cl.Buffer(self.context, flags.READ_WRITE, whole) for _ in range(2)]
        self.blocks = [np.roll(self.block, -4096 * (1 + place)) for place in range(2)]
        for values, block in zip(self.values, self.blocks):
            cl.enqueue_copy(self.queue, values, block.view(np.uint8))
            filled = size
            while filled < whole:  # whole blocks, so that element i is block[i % len(block)]
                more = min(filled, whole - filled)
                cl.enqueue_copy(self.queue, values, values, byte_count=more, dst_offset=filled, src_offset=0)
                filled += more
        program = cl.Program(self.context, PLUG + STAMP).build()
        self.plug = cl.Kernel(program, "plug")
        self.plug.set_scalar_arg_dtypes([None, np.int32])
        self.sink = cl.Buffer(self.context, flags.READ_WRITE, 1 << 20)
        self.stamps = []
        for _ in range(2):
            kernel = cl.Kernel(program, "stamp")
            self.stamps.append((kernel, cl.Buffer(self.context, flags.READ_WRITE, 8)))
            kernel.set_args(self.stamps[-1][1])
        self.scratch: cl.Buffer | None = None

    def load(self, problem: ConvProblem) -> None:
        """Name the problem's tensors, and copies of them, which are timed in turns: all together exceed the cache.

        The first are whole buffers, since releasing parts of buffers crashes some drivers.
        """
        self.problem = problem
        self.memory = {problem.written: self.out}
        self.operands = [name for name in "xwy" if name != problem.written]
        self.memory |= dict(zip(self.operands, self.values))
        sizes = {name: math.prod(getattr(problem, name + "_shape")) * problem.itemsize for name in "xwy"}
        self.sets = [self.memory]
        for _ in range(sets_of(sum(sizes.values())) - 1):
            made = {name: cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size) for name, size in sizes.items()}
            for name, size in sizes.items():
                if name != problem.written:
                    cl.enqueue_copy(self.queue, made[name], self.memory[name], byte_count=size)
            self.sets.append(made)

    def workspace(self, size: int) -> cl.Buffer:
        """One buffer that grows."""
        if self.scratch is None or self.scratch.size < size:
            self.scratch = None
            self.scratch = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(size, 1 << 20))
        return self.scratch

    def enqueue(self, plan, turn: int = 0):
        """The plan once, over the tensors whose turn it is."""
        m = self.sets[turn % len(self.sets)]
        return plan.enqueue(self.queue, m["x"], m["w"], m["y"], self.workspace(plan.workspace_size))

    def side(self, plan) -> Side:
        """The plan's side of a comparison, by the device's own clock."""
        places = itertools.cycle(self.stamps)

        def batch(runs: int) -> None:
            for turn in range(runs):
                self.enqueue(plan, turn)

        def plug(runs: int) -> None:
            self.plug(self.queue, (1024,), (256,), self.sink, 20000 * runs)

        def mark() -> cl.Buffer:
            kernel, place = next(places)
            cl.enqueue_nd_range_kernel(self.queue, kernel, (1,), (1,))
            return place

        def ms(before: cl.Buffer, after: cl.Buffer) -> float:
            found = np.zeros(2, np.uint64)
            for number, place in enumerate((before, after)):
                cl.enqueue_copy(self.queue, found[number : number + 1], place)
            return float(found[1] - found[0]) * 1e-6

        return Side(batch, plug, mark, ms)

    def time(self, plan, seconds: float) -> float:
        """Median milliseconds of a run on the device (see ``fair``)."""
        return medians({"ours": self.side(plan)}, seconds, samples=3)["ours"]

    def error(self, plan, problem: ConvProblem) -> float:
        """Relative error in norm of drawn outputs; infinite where the output, which began as NaN, is not all finite."""
        got = np.empty(problem.out_shape, self.block.dtype)
        cl.enqueue_fill_buffer(self.queue, self.out, np.uint8(0xFF), 0, got.nbytes)
        self.enqueue(plan).wait()
        cl.enqueue_copy(self.queue, got.view(np.uint8), self.out)
        if not np.isfinite(got).all():
            return math.inf
        blocks = zip(self.operands, self.blocks)
        operands = {name: np.resize(block, getattr(problem, f"{name}_shape")) for name, block in blocks}
        at = reference.positions(problem, CHECKED)
        return reference.relative_error(got.ravel()[at], reference.sample(problem, at, **operands))


def torch_side(problem: ConvProblem) -> Side:
    """The same in PyTorch, as CUDA graphs of whole samples; cudnn.benchmark on.

    TF32 where the problem's math allows it; channels last for NHWC.
    """
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = problem.math in ("tf32", "fast")
    form = {"memory_format": torch.channels_last} if problem.layout == "nhwc" else {}
    plain, kind = problem.replace(layout="nchw"), getattr(torch, problem.dtype)
    shapes = [getattr(plain, name + "_shape") for name in "xwy"]
    nbytes = sum(int(np.prod(shape)) for shape in shapes) * problem.itemsize
    sets = [
        [torch.randn(shape, device="cuda").to(kind).contiguous(**form) for shape in shapes]
        for _ in range(sets_of(nbytes))
    ]
    geometry = [(problem.sh, problem.sw), (problem.ph, problem.pw), (problem.dh, problem.dw)]
    mask = [problem.direction == "bwd_data", problem.direction == "bwd_weights", False]

    def work(number: int) -> None:
        x, w, y = sets[number % len(sets)]
        if problem.direction == "fwd":
            torch.nn.functional.conv2d(x, w, None, *geometry, problem.g)
        else:
            torch.ops.aten.convolution_backward(y, x, w, None, *geometry, False, [0, 0], problem.g, mask)

    return graph_side(work)


def torch_ms(problem: ConvProblem, seconds: float = 0.006) -> float:
    """Median milliseconds of a run in PyTorch, timed as ours are."""
    return medians({"torch": torch_side(problem)}, seconds)["torch"]
