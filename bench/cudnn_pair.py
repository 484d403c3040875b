"""One problem in cuDNN twice, as a plugin and inside PyTorch, on the same memory of one GPU."""

from __future__ import annotations

import faulthandler
import fcntl
import statistics
from pathlib import Path
from typing import Any

from convdispatch.api import ConvProblem
from convdispatch.device import runtime
from convdispatch.selection.plugins.loader import plugins

PAUSE = 300_000
"""Cycles of the GPU for which a stream is held up for each repetition that the host is to queue meanwhile."""


class Pair:
    """One problem in both worlds on the same memory: convdispatch's tensors, which PyTorch views."""

    def __init__(self) -> None:
        import pyopencl as cl
        import torch

        from convdispatch.device.cuda.bridge import bridge_of

        self.torch = torch
        torch.backends.cudnn.benchmark = True
        self.device = runtime.find_device("nvidia")
        self.info, context = runtime.device_info(self.device), runtime.context(self.device)
        # Order by events alone: calls that follow one another in cuDNN then need no crossing between the worlds.
        out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self.queue = cl.CommandQueue(context, properties=out_of_order)
        self.bridge = bridge_of(self.queue)
        self.stream = torch.cuda.ExternalStream(self.bridge.stream.value)
        self.own = torch.cuda.Stream()
        self.scratch: Any = None
        self._last: Any = None

    def load(self, problem: ConvProblem) -> None:
        """Tensors of normal data, and PyTorch's views of them (NHWC as channels last)."""
        from convdispatch.tensor import Tensor

        torch, self.problem = self.torch, problem
        torch.cuda.synchronize()
        self.tensors = {
            name: Tensor.empty(getattr(problem, name + "_shape"), problem.dtype, self.queue) for name in "xwy"
        }
        self.views = {name: torch.from_dlpack(tensor) for name, tensor in self.tensors.items()}
        for name, view in self.views.items():
            view.normal_(std=1.0 if name != problem.written else 0.0)
        if problem.layout == "nhwc":
            self.views = {name: view.permute(0, 3, 1, 2) for name, view in self.views.items()}
        torch.cuda.synchronize()
        tf32 = problem.math == "tf32"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32

    def release(self) -> None:
        """Let go of the problem's memory, which other processes want."""
        self.tensors, self.views, self.scratch, self._last = {}, {}, None, None
        runtime.release_memory(self.device)
        self.torch.cuda.empty_cache()

    def theirs(self) -> Any:
        """PyTorch's answer."""
        p, v = self.problem, self.views
        geometry = ([p.sh, p.sw], [p.ph, p.pw], [p.dh, p.dw])
        if p.direction == "fwd":
            return self.torch.nn.functional.conv2d(v["x"], v["w"], None, *geometry, p.g)
        mask = [p.direction == "bwd_data", p.direction == "bwd_weights", False]
        answer = self.torch.ops.aten.convolution_backward(
            v["y"], v["x"], v["w"], None, *geometry, False, [0, 0], p.g, mask
        )
        return answer[0 if mask[0] else 1]

    def runner(self, plan: Any) -> Any:
        """What runs one of the plugin's plans once, after the run before."""
        operands = [*(self.tensors[name].base_data for name in "xwy"), self.scratch]

        def run() -> None:
            self._last = [plan.enqueue(self.queue, *operands, self._last)]

        return run

    def time(self, run: Any, stream: Any, repeat: int) -> float:
        """Milliseconds a run between CUDA's events on a stream."""
        cuda = self.torch.cuda
        before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(stream):
            cuda._sleep(PAUSE * repeat)
            before.record()
            for _ in range(repeat):
                run()
            after.record()
        after.synchronize()
        return before.elapsed_time(after) / repeat

    def difference(self, ours: Any) -> float:
        """Norm of the difference of both answers over the norm of PyTorch's."""
        self.torch.cuda.synchronize()
        ours()
        self._last[0].wait()
        theirs = self.theirs().double()
        return float((self.views[self.problem.written].double() - theirs).norm() / theirs.norm())

    def commands(self, run: Any, stream: Any) -> list[str]:
        """What the GPU does in one run, kernels and copies, by PyTorch's profiler."""
        torch = self.torch
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            with torch.cuda.stream(stream):
                run()
            torch.cuda.synchronize()
        return [event.name for event in profile.events() if event.device_type.name == "CUDA"]


_WORKER: dict[str, Any] = {}


def begin(tries: int, profile: int) -> None:
    """A worker process: its own context, and the lock of those that use the device."""
    faulthandler.enable()
    _WORKER.update(pair=Pair(), tries=tries, profile=profile, lock=Path("/tmp/vendors.lock").open("w"))  # noqa: SIM115


def compare(given: tuple[int, dict[str, Any], ConvProblem]) -> dict[str, Any]:
    """Both sides' times of a case (number, row, problem), added to its row; or why there are none."""
    number, row, problem = given
    try:
        row = row | _compare(problem, profile=bool(_WORKER["profile"]) and number % _WORKER["profile"] == 0)
    except Exception as error:  # one case must not end the run: it is reported
        row["failed"] = f"{type(error).__name__}: {error}"
    _WORKER["pair"].release()
    return row


def _compare(problem: ConvProblem, profile: bool) -> dict[str, Any]:
    pair, lock = _WORKER["pair"], _WORKER["lock"]
    solver = plugins().solvers["cudnn.convolution"]
    reason = solver.rejects(problem, pair.info)
    if reason:
        raise RuntimeError(reason)
    pair.load(problem)
    runs, found = [], []
    for config in list(solver.configs(problem, pair.info))[: _WORKER["tries"]]:
        try:
            runs.append((solver.plan(pair.queue.context, problem, config), config))
        except Exception:  # an engine that the heuristics name may still not serve: PyTorch passes over it too
            continue
    pair.scratch = runtime.workspace(pair.queue, max((plan.workspace_size for plan, _ in runs), default=0))
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        for _ in range(2):  # PyTorch chooses, by timings of its own
            with pair.torch.cuda.stream(pair.own):
                pair.theirs()
        pair.torch.cuda.synchronize()
        for plan, config in runs:
            run = pair.runner(plan)
            try:
                pair.time(run, pair.stream, 1)
                found.append((pair.time(run, pair.stream, 2), len(found), run, config))
            except Exception:
                continue
        if not found:
            raise RuntimeError("no configuration runs")
        found.sort(key=lambda row: row[:2])
        repeat = int(min(20, max(3, 1.0 / found[0][0])))
        finalists, theirs = found[:2], []
        times: list[list[float]] = [[] for _ in finalists]
        for _ in range(5):
            for place, (_, _, run, _) in enumerate(finalists):
                times[place].append(pair.time(run, pair.stream, repeat))
            theirs.append(pair.time(pair.theirs, pair.own, repeat))
        ours, place = min((statistics.median(samples), place) for place, samples in enumerate(times))
        run, config = finalists[place][2:]
        row = {"difference": pair.difference(run)}
        if profile:
            sides = {"ours": pair.commands(run, pair.stream), "torch": pair.commands(pair.theirs, pair.own)}
            row["commands"] = {
                side: [name for name in names if "vectorized_gather" not in name] for side, names in sides.items()
            }
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
    torch_ms = statistics.median(theirs)
    return row | {
        "problem": str(problem), "ours": ours, "torch": torch_ms, "ratio": torch_ms / ours, "config": config,
    }  # fmt: skip
