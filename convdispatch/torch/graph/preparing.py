"""Compiles the kernels of a graph's convolutions in parallel before its first call.

Whoever compiles a graph waits for its kernels anyway; a CUDA graph that is captured before they are there would keep
PyTorch's for good.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from ..compile import fused_operator, normed_operators, operators
from ..dispatch import engine
from ..dispatch.routing import settings_in_force
from ..geometry import PLAIN
from ..settings import DEFAULT
from ..warmup import compiled_side_by_side
from ..weights import promise
from .tuning import tune


def prepare_kernels(graph: fx.Graph, device: torch.device | None, constant: bool, tuned: bool = False) -> None:
    """Plan every convolution of a graph with our operators. Convolutions of symbolic sizes are planned at their call.

    ``device`` is where the graph runs, None where its fake tensors say so; ``constant`` says whether the weights are
    frozen parameters, as in a graph for inference. ``tuned``: each problem is measured, and planned by what was found.
    """
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad():
        tasks = [task for node in graph.nodes for task in _tasks(node, device, constant)]
        if not tasks:
            return
        with compiled_side_by_side(tasks, tasks[0].keywords["device"]):
            for _ in range(1 + tuned):
                planned = []
                for task in tasks:
                    with contextlib.suppress(Exception):  # PyTorch computes this problem; the call reports why
                        planned.append(task())
                if tuned:
                    _tune(planned)


def _tune(calls: Iterable[Any]) -> None:
    """Measure the problems of planned calls, device by device."""
    problems: dict[Any, list[Any]] = {}
    for call in calls:
        if call.prepared is not None:
            problems.setdefault(call.device, []).append(call.problem)
    for device, each in problems.items():
        tune(each, device)


def _tasks(node: fx.Node, device: torch.device | None, constant: bool) -> Iterator[Any]:
    """Tasks that plan a node's problems: none for a node that is no convolution of convdispatch, or has symbolic
    sizes."""
    if node.target is fused_operator.fused_convolution:
        x, w, bias, residual, activation, *geometry = node.args
        parts = (activation, residual is not None, None, False)
        yield from _task(device, "forward", _whole(*geometry), (x, w, None, bias), constant, parts)
    elif node.target is operators.convolution:
        x, w, bias, *geometry_arguments = node.args
        yield from _task(device, "forward", tuple(geometry_arguments), (x, w, None, bias), constant, PLAIN)
    elif node.target is normed_operators.normed_convolution:
        x, w, bias, _, norm, sums, *geometry = node.args
        yield from _task(device, "forward", _whole(*geometry), (x, w, None, bias), constant, (None, False, norm, sums))
    elif node.target is normed_operators.normed_convolution_backward:
        grad, x, w, _, residual, norm, *geometry, mask = node.args
        tensors = (x, w, grad, None)
        if mask[0]:
            parts = (None, residual is not None, norm, mask[1])
            yield from _task(device, "data", _whole(*geometry), tensors, False, parts)
        if mask[2]:
            yield from _task(device, "weights", _whole(*geometry), tensors, False, (None, False, norm, False))
    elif node.target is operators.convolution_backward:
        grad, x, w, _, *geometry_arguments, mask = node.args
        for part, is_requested in (("data", mask[0]), ("weights", mask[1])):
            if is_requested:
                yield from _task(device, part, tuple(geometry_arguments), (x, w, grad, None), False, PLAIN)


def _whole(stride: Any, padding: Any, dilation: Any, groups: Any) -> tuple[Any, ...]:
    return stride, padding, dilation, False, [0] * len(stride), groups


def _task(
    device: torch.device | None, part: str, geometry: Any, operands: Any, constant: bool, epilogue: Any
) -> Iterator[Any]:
    values = [each.meta.get("val") if isinstance(each, fx.Node) else each for each in operands]
    for value in values:
        if value is not None and not isinstance(value, torch.Tensor):
            return
        if value is not None and any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride())):
            return
    yield functools.partial(_plan, part, geometry, values, constant, epilogue, device=device or values[0].device)


def _plan(part: str, geometry: Any, values: Any, constant: bool, epilogue: Any, device: torch.device) -> Any:
    x, w, grad, bias = (
        None if v is None else torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=device) for v in values
    )
    if constant:
        w = torch.nn.Parameter(w, requires_grad=False)
        constant = promise(w, fused=True) is not None
    return engine.cached_call(part, geometry, x, w, grad, bias, constant, settings_in_force() or DEFAULT, epilogue)
