"""explain and report: which solver runs each convolution of a model and why, its error and time, and PyTorch's from the
same run."""

from __future__ import annotations

import html
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..api.policy import policy
from ..device import runtime
from ..selection.explanation import explain as explain_problem
from ..selection.prepared import Constant
from . import counting
from .compile.fused_operator import unfused
from .dispatch import engine
from .dispatch.routing import enable, original, settings_in_force
from .warmup import keeping_buffers

_ROUNDS = 5
_ROW = "{:24} {:28} {:>8} {:>8} {:>6} {:>8} {:>8}"


@dataclass(frozen=True)
class Layer:
    """One call of a convolution in a model's forward pass."""

    name: str
    """The module's name in ``named_modules``."""
    problem: str
    solver: str | None
    """The name of the solver; None where PyTorch computes the call."""
    why: str
    """Why this solver ranked first, or why the call was left to PyTorch."""
    error: float | None = None
    """Relative error (norm) of the result against float64, on the first image of the batch."""
    torch_error: float | None = None
    """Relative error (norm) of PyTorch's own result against float64, on the first image of the batch."""
    ms: float | None = None
    """Median time of our call in milliseconds."""
    torch_ms: float | None = None


@dataclass(frozen=True)
class Explained:
    """A model's convolutions in the order of their calls."""

    device: str
    layers: tuple[Layer, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same content as JSON values."""
        return {"device": self.device, "layers": [asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        titles = ("layer", "solver", "ms", "torch", "ratio", "error", "torch")
        lines = [self.device, _ROW.format(*titles)]
        for layer in self.layers:
            ratio = layer.torch_ms / layer.ms if layer.ms and layer.torch_ms else None
            numbers = (layer.ms, ".3f"), (layer.torch_ms, ".3f"), (ratio, ".2f"), (layer.error, ".1e")
            cells = (
                "-" if each is None else format(each, form) for each, form in (*numbers, (layer.torch_error, ".1e"))
            )
            lines += [_ROW.format(layer.name, layer.solver or "PyTorch's", *cells), f"    {layer.problem}: {layer.why}"]
        our_ms, pytorch_ms = (sum(getattr(each, key) or 0 for each in self.layers) for key in ("ms", "torch_ms"))
        if our_ms:
            lines.append(f"{len(self.layers)} convolutions: {our_ms:.3f} ms, PyTorch {pytorch_ms:.3f} ms")
        return "\n".join(lines)


def explain(model: torch.nn.Module, *inputs: Any) -> Explained:
    """Run ``model(*inputs)`` once without gradients, and describe each of its convolutions.

    Each is timed as the model calls it, beside PyTorch's own kernel on the same tensors, in turns. What ``enable`` was
    given holds; without it, the defaults. Modes (train, eval) and buffers stay as they are.
    """
    names = ["(no module)"]
    taken: list[Any] = []

    def ours(part: str, call: Any, tensors: Any, geometry: Any) -> None:
        taken.append((names[-1], call, tensors, geometry))

    def theirs(operator: str, reason: str) -> None:
        if operator == "convolution":
            taken.append((names[-1], None, reason, None))

    stop, guard = engine.watch(ours), None if settings_in_force() is not None else enable()
    unwatch = counting.watch_left(theirs)
    try:
        eager = torch.compiler.set_stance("force_eager")  # compiled graphs do not call the model's modules
        with torch.no_grad(), keeping_buffers(model), _names(model, names), policy(tier="full"), eager:
            model(*inputs)
    finally:
        stop()
        unwatch()
        if guard is not None:
            guard.__exit__()
    with torch.no_grad():
        layers = tuple(_layer(*each) for each in taken)
    where = next((str(runtime.device_info(call.device)) for _, call, _, _ in taken if call is not None), "no device")
    return Explained(where, layers)


@contextmanager
def _names(model: torch.nn.Module, names: list[str]) -> Iterator[None]:
    """A context in which ``names`` ends with the name of the module whose forward runs."""
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: names.append(name or "(the model)")))
        handles.append(module.register_forward_hook(lambda *_: names.pop() and None, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer(name: str, call: Any, tensors: Any, geometry: Any) -> Layer:
    if call is None:
        return Layer(name, "", None, tensors)
    x, w, bias, *added = tensors
    epilogue = (*added, call.problem.activation) if added else (None, None)
    geometry_arguments = tuple(list(each) if isinstance(each, tuple) else each for each in geometry)
    constant = Constant(None) if call.problem.constant_weights else None

    def ours() -> torch.Tensor:
        operands = (None, w, x) if geometry.transposed else (x, w, None)
        return call(*operands, bias, constant, *added)

    def theirs() -> torch.Tensor:
        return unfused(original("convolution", x, w, bias, *geometry_arguments), *epilogue)

    on_device = x.is_cpu or x.is_cuda
    our_result, pytorch_result = (ours(), theirs()) if on_device else (ours(), None)
    expected = _exact(x[:1], w, bias, geometry_arguments, epilogue) if x.shape[0] else None
    ms, torch_ms = _timed(ours, theirs, x.is_cuda) if pytorch_result is not None else (None, None)
    why = explain_problem(call.problem, runtime.device_info(call.device)).why if call.prepared is not None else ""
    source = call.prepared.source if call.prepared is not None else ""
    sentence = why if why.startswith(call.solver) else f"{call.solver} runs: {source}"
    errors = [
        None if each is None or expected is None else _error(each[:1], expected)
        for each in (our_result, pytorch_result)
    ]
    return Layer(name, str(call.problem), call.solver, sentence, *errors, ms, torch_ms)


def _exact(
    x: torch.Tensor, w: torch.Tensor, bias: Any, geometry_arguments: tuple[Any, ...], epilogue: tuple[Any, Any]
) -> torch.Tensor:
    added = None if epilogue[0] is None else epilogue[0][: x.shape[0]]
    x, w, bias, added = (None if each is None else each.detach().cpu().double() for each in (x, w, bias, added))
    return unfused(original("convolution", x, w, bias, *geometry_arguments), added, epilogue[1])


def _error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.detach().cpu().double() - expected).norm() / expected.norm().clamp_min(1e-300))


def _timed(our_call: Callable[[], Any], pytorch_call: Callable[[], Any], cuda: bool) -> tuple[float, float]:
    """Median milliseconds of our call and of PyTorch's, run alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for side, run in zip(times, (our_call, pytorch_call), strict=True):
            run()
            if cuda:
                start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start_event.record()
                run()
                end_event.record()
                end_event.synchronize()
                side.append(start_event.elapsed_time(end_event))
            else:
                begin = time.perf_counter()
                run()
                side.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[0]), statistics.median(times[1])


def report(model: torch.nn.Module, *inputs: Any, path: str | Path = "convdispatch-torch.html") -> Path:
    """Write ``explain(model, *inputs)`` as one self-contained HTML page; returns its path."""
    title = html.escape(type(model).__name__)
    words = (
        f"PyTorch {torch.__version__}; medians of {_ROUNDS}, in turns. Errors: relative, against float64, first image."
    )
    table = html.escape(str(explain(model, *inputs)))
    target = Path(path)
    target.write_text(
        f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><p>{words}</p><pre>{table}</pre>\n",
        encoding="utf-8",
    )
    return target
