"""What the benches of single GPUs share: a problem's buffers, plans timed over them, and the same in PyTorch."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
from exact import Exact
from fair import Side, graph_side, medians, sets_of

from convdispatch.api import ConvProblem, Launch
from convdispatch.device import runtime
from convdispatch.measurement.search.trialdata import numpy_dtype

PLUG = """
kernel void plug(global float *out, int steps) {
  float a = get_global_id(0), b = 0.5f;
  for (int i = 0; i < steps; ++i) { a = a * 0.999f + b; b = b * 0.999f + a; }
  out[get_global_id(0)] = a + b;
}
"""


class Ours:
    """One problem's buffers on the OpenCL device, and timing of plans over them (see ``fair``)."""

    def __init__(self) -> None:
        self.device = runtime.find_device("nvidia" if not os.environ.get("CONVDISPATCH_DEVICE") else None)
        self.info, self.context = runtime.device_info(self.device), runtime.context(self.device)
        self.queue = cl.CommandQueue(self.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._plug = cl.Program(self.context, PLUG).build().plug
        self._plug.set_scalar_arg_dtypes([None, np.int32])
        self._sink = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 1 << 20)
        self._block = np.random.default_rng(0).standard_normal(1000003, dtype=np.float32)
        if os.environ.get("ZEROS"):  # fewer bits toggle: shows whether the power limit is what bounds the speed
            self._block[:] = 0
        self.memory: dict[str, cl.Buffer] = {}
        self.form: Any = None

    def load(self, problem: ConvProblem) -> None:
        """Buffers for the problem's tensors, filled with normal data, in sets larger than the cache together; kept
        while shapes and dtype stay."""
        form = (problem.x_shape, problem.w_shape, problem.y_shape, problem.dtype)
        if self.form != form:
            self.memory.clear()
            self.host = {}
            for at, name in enumerate("xwy"):
                shape = getattr(problem, name + "_shape")
                self.host[name] = np.resize(self._block[at * 1000 :], shape).astype(numpy_dtype(problem))
                self.memory[name] = self._buffer(self.host[name])
            nbytes = sum(values.nbytes for values in self.host.values())
            copies = range(1, sets_of(nbytes))
            self.sets = [self.memory, *({n: self._buffer(v) for n, v in self.host.items()} for _ in copies)]
        self.form = form

    def _buffer(self, values: np.ndarray) -> cl.Buffer:
        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=values)

    def side(self, plan) -> Side:
        """The plan's side of a comparison."""
        scratch = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(4, plan.workspace_size))

        def batch(runs: int) -> None:
            for number in range(runs):
                m = self.sets[number % len(self.sets)]
                plan.enqueue(self.queue, m["x"], m["w"], m["y"], scratch)

        def plug(runs: int) -> None:  # some 0.1 ms a run
            self._plug(self.queue, (1024,), (256,), self._sink, 30000 * runs)

        def ms(before: cl.Event, after: cl.Event) -> float:
            self.queue.finish()
            return (after.profile.end - before.profile.end) * 1e-6

        return Side(batch, plug, lambda: cl.enqueue_marker(self.queue), ms)

    def time(self, plan, *, seconds: float = 0.02) -> float:
        """Median milliseconds of a run on the device."""
        return medians({"ours": self.side(plan)}, seconds)["ours"]

    def error(self, plan, problem: ConvProblem) -> float:
        """Relative error in norm of a fresh output, whole; float64 on the device is what it is compared with."""
        out = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, math.prod(problem.out_shape) * problem.itemsize)
        scratch = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(4, plan.workspace_size))
        for buffer in (out, scratch):
            cl.enqueue_fill_buffer(self.queue, buffer, np.uint8(0xFF), 0, buffer.size)
        memory = {**self.memory, problem.written: out}
        plan.enqueue(self.queue, memory["x"], memory["w"], memory["y"], scratch)
        exact = Exact(self.queue, self.info, problem.dtype)
        return exact.error(problem, exact.plan(problem), memory)


def passes(ours: Ours, plan, rounds: int = 5) -> list[float]:
    """Median milliseconds of each step, by its own event, in runs of the whole plan."""
    scratch = cl.Buffer(ours.context, cl.mem_flags.READ_WRITE, max(4, plan.workspace_size))
    operands = (ours.memory["x"], ours.memory["w"], ours.memory["y"], scratch, None, None)
    found = []
    for _ in range(rounds):
        events = [step(ours.queue, operands, None) for step in plan._steps]
        ours.queue.finish()
        found.append([(event.profile.end - event.profile.start) * 1e-6 for event in events])
    return list(np.median(found, axis=0))


def registers(ours: Ours, plan) -> str:
    """Registers (and spilled bytes) of each launch, as NVIDIA's compiler reports them; empty elsewhere."""
    if "cl_nv_compiler_options" not in ours.info.extensions:
        return ""
    words = []
    for step in plan._steps:
        if isinstance(step, Launch):
            program = cl.Program(ours.context, step.kernel.program.source).build(["-cl-nv-verbose"], cache_dir=False)
            if os.environ.get("OUT") and os.environ.get("DUMP_PTX") and step.kernel.name == "product":
                Path(os.environ["OUT"], os.environ["DUMP_PTX"]).write_bytes(program.binaries[0])
            log = program.get_build_info(ours.device, cl.program_build_info.LOG)
            used, spills = re.search(r"Used (\d+) registers", log), re.findall(r"(\d+) bytes spill stores", log)
            words.append((used[1] if used else "?") + (f"+{spills[0]}" if spills and spills[0] != "0" else ""))
    return "/".join(words)


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
