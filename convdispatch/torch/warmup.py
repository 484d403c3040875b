"""prepare and ready: plan, compile and load in advance what calls will need, on all processors; wait for background
work.

Ranks of one training best call it before the first step: CUDA loads a program when the device is idle, and a device on
which a collective is under way waits for the other ranks.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..api.errors import ConvDispatchError, ConvDispatchWarning
from ..api.policy import policy
from ..calls.framework import autotune, tiers
from ..calls.framework.fallback import Fallback
from ..calls.planner_pool.progress_line import ProgressLine
from ..device.places.stream import KINDS
from ..device.programs import compile_pool
from . import ranks
from .dispatch import engine, routing
from .eager.planning import LeftToPyTorch
from .geometry import Geometry
from .requirements import lacking
from .settings import DEFAULT
from .weights import promise


def prepare(model: torch.nn.Module, *inputs: Any, **named: Any) -> dict[str, Any]:
    """Prepare all that ``model(*inputs, **named)`` and its backward will use under ``enable()``.

    Runs the model once, by PyTorch's own convolutions, in the caller's modes (``no_grad``, ``inference_mode``,
    autocast; without gradients no backward is made ready); then plans each problem once, compiling in child processes
    too. Buffers and random numbers are as before, ``.grad`` is not touched. Of several ranks each calls it; it runs no
    collective, so a DistributedDataParallel may be given as it is.

    Answers ``{"ours": problems, "left": problems, "reasons": {sentence: problems}, "seconds": s}``.
    """
    sentence = lacking({"torch.utils._python_dispatch.TorchDispatchMode": "a model's calls cannot be seen ahead"})
    if sentence:
        raise RuntimeError(sentence)
    begin = time.perf_counter()
    unwrapped_model = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    calls: dict[Any, Callable[[], Any]] = {}
    with keeping_buffers(unwrapped_model), torch.random.fork_rng(devices=_numbers(unwrapped_model)), _recorder(calls):
        unwrapped_model(*inputs, **named)
    tasks, reasons = list(calls.values()), {}
    first_task = ranks.share(len(tasks))
    devices = (each.device for each in unwrapped_model.parameters() if each.device.type in ("cpu", *KINDS))
    with compiled_side_by_side(tasks[first_task:] + tasks[:first_task], next(devices, None)):
        outcomes = [_outcome(task) for task in tasks]
    engine.prepared(calls)
    for reason in outcomes:
        if reason is not None:
            reasons[reason] = reasons.get(reason, 0) + 1
    left_count = sum(reasons.values())
    took = time.perf_counter() - begin
    return {"ours": len(tasks) - left_count, "left": left_count, "reasons": reasons, "seconds": took}


def ready(timeout: float = tiers.WAIT_S) -> dict[str, int]:
    """Wait for the background work of earlier calls, at most ``timeout`` seconds, so that later calls run the final
    kernels. After a second a progress line says so; an interrupt ends the wait, and the work goes on.

    Returns how many of each were waited for: "kernels" that were being compiled, of problems that PyTorch computes
    meanwhile; "forms" of compiled graphs whose layouts were being built and timed; "measurements" of autotune. Warns of
    what is not ready yet.
    """
    end, measurements = time.monotonic() + timeout, autotune.pending()
    kernels = tiers.drain(timeout)
    from ..inference import form_tiers  # a first step does without ``inference``

    forms = form_tiers.settle_all(end)
    autotune.drain(end - time.monotonic())
    left = {"kernels": tiers.pending(), "forms": form_tiers.pending(), "measurements": autotune.pending()}
    if any(left.values()):
        words = ", ".join(f"{count} {name}" for name, count in left.items() if count)
        warnings.warn(f"not ready after {timeout:g} s: {words}", ConvDispatchWarning, stacklevel=2)
    return {"kernels": kernels, "forms": forms, "measurements": measurements}


@contextlib.contextmanager
def compiled_side_by_side(tasks: Sequence[Callable[[], Any]], device: torch.device | None) -> Iterator[None]:
    """Run ``tasks``, which plan problems, also in child processes, with a progress line on a terminal. The block begins
    when all is compiled: in it no call is computed by a substitute kernel."""
    finished = [0]
    with policy(tier="full"), ProgressLine("compiling", lambda: (finished[0], len(tasks) - finished[0])):
        with _compilers(device):
            compile_pool.run([functools.partial(_counted, task, finished) for task in tasks])
        finished[0] = len(tasks)
        yield


def _counted(task: Callable[[], Any], finished: list[int]) -> None:
    try:
        task()
    finally:
        finished[0] += 1


def _outcome(task: Callable[[], Any]) -> str | None:
    """The reason why PyTorch computes a call; None if we do."""
    try:
        call = task()
    except (ConvDispatchError, Fallback) as error:
        return str(error).splitlines()[0]
    return call.reason if isinstance(call, LeftToPyTorch) else None


@contextlib.contextmanager
def keeping_buffers(model: torch.nn.Module) -> Iterator[None]:
    """A context after which the model's buffers have the values that they had before."""
    saved_buffers = {name: each.detach().clone() for name, each in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, each in model.named_buffers():
                each.copy_(saved_buffers[name])


def _numbers(model: torch.nn.Module) -> list[int]:
    """The numbers of the devices with streams that hold the model."""
    return sorted({each.get_device() for each in model.parameters() if each.device.type in KINDS})


def _compilers(device: torch.device | None) -> Any:
    """A context in which compilers run in parallel for a device of PyTorch's."""
    with contextlib.suppress(Fallback):
        if device is not None and device.type in KINDS:
            from .eager.stream_tensors import device as opencl_device

            return compile_pool.side_by_side(opencl_device(torch.empty(0, device=device)), for_cuda=True)
        if device is not None:
            from ..calls.framework.fallback import cpu_device

            return compile_pool.side_by_side(cpu_device())
    return contextlib.nullcontext()


def _recorder(calls: dict[Any, Callable[[], Any]]) -> Any:
    """A mode in which PyTorch computes convolutions, and ``calls`` receives a function that plans the cached call of
    each part, once per key.

    The tensors are referenced until these functions have run: as many as a training step would hold of these layers.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    operators = (torch.ops.aten.convolution.default, torch.ops.convdispatch.convolution.default)

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            named = named or {}
            if function not in operators or len(arguments) < 9 or arguments[0].device.type not in ("cpu", *KINDS):
                if torch.is_inference_mode_enabled():  # in inference mode, ``conv2d`` has not been decomposed yet
                    with self:
                        result = function.decompose(*arguments, **named)
                    if result is not NotImplemented:
                        return result
                return function(*arguments, **named)
            x, w, bias, *geometry_arguments = arguments
            y = routing.original("convolution", *arguments)
            geometry = Geometry.of(*geometry_arguments)
            if any(geometry.rows(x.ndim - 2)):  # such a call becomes two operators of other shapes
                return y
            settings = routing.settings_in_force() or DEFAULT
            parts = [("forward", None, bias, promise(w) is not None)]
            if torch.is_grad_enabled():
                parts += [("data", y, None, promise(w) is not None)] if x.requires_grad else []
                parts += [("weights", y, None, False)] if w.requires_grad else []
            for part, grad, part_bias, constant in parts:
                call_arguments = (tuple(geometry), (x, w, grad, part_bias), constant, settings)
                key = engine.key_of(part, engine.facts_of(*call_arguments))
                if key not in calls:
                    calls[key] = functools.partial(engine.cached_call, part, *call_arguments)
            return y

    return Recorder()
