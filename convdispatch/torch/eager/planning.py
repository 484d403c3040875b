"""A call of an operator as the kept call that computes it, or the reason why PyTorch's own kernel does."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...api.errors import InvalidArgument, NoSolver
from ...api.policy import Policy, policy
from ...api.problem import ConvProblem
from .. import ranks
from ..geometry import DTYPES, FORMATS, Geometry, Left, format_of, problem_of
from ..settings import Settings, math_of
from .host import HostCall
from .host import device as cpu

__all__ = ["PLAIN", "Asked", "Leave", "made"]

PLAIN: tuple[str | None, bool] = (None, False)
"""What follows a convolution: no activation, nothing added."""


class Asked(NamedTuple):
    """One part of an operator's call: its tensors, and what holds for it."""

    part: str
    """``forward``, ``data`` or ``weights``."""
    geometry: Geometry
    x: torch.Tensor
    w: torch.Tensor
    grad: torch.Tensor | None
    bias: torch.Tensor | None
    constant: bool
    settings: Settings
    switched: tuple[Any, ...]
    chosen: Policy
    after: tuple[str | None, bool] = PLAIN
    """The activation that follows, and whether a tensor is added before it."""


class Leave:
    """A call that is PyTorch's, each time."""

    prepared = None
    shape = None
    foretold = True

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *_: Any) -> Any:
        raise Left(self.reason)


def made(asked: Asked) -> Any:
    """``call(x, w, y, bias, constant)`` for tensors like those. Raises Left where only this one call is PyTorch's."""
    try:
        call = _call(asked)
    except NoSolver as error:
        return Leave(str(error).splitlines()[0])
    except Left as left:
        if not left.lasting:
            raise
        return Leave(str(left))
    call.foretold = asked.part != "forward" or not ranks.many()
    return call


def _call(asked: Asked) -> Any:
    x, w = asked.x, asked.w
    _check(asked)
    try:
        form = format_of(x, w, asked.bias, asked.geometry)
    except RuntimeError:
        _problem(asked, False)  # says what is wrong
        raise
    last = form is not torch.contiguous_format
    if last and form is not FORMATS.get(x.ndim):
        raise Left(f"the memory format {form} of {x.ndim}-D tensors is none of these engines'")
    problem, least = _problem(asked, last), asked.settings.min_flops
    if least is not None and problem.flops < least:
        raise Left(f"fewer than min_flops={least:g} operations")
    if 0 in w.shape or 0 in x.shape[1:]:
        raise Left("a size of zero other than the batch's")
    shape = {"data": x.shape, "weights": w.shape}.get(asked.part) or _result_shape(problem, last)
    with policy(solver=asked.chosen.solver, deterministic=asked.chosen.deterministic):
        if x.is_cuda:
            from .cuda_stream import StreamCall, device

            ranks.agree(problem, lambda: device(x), x)
            return StreamCall(problem, tuple(shape), form, x)
        if x.device.type == "opencl":
            from .opencl_buffers import BufferCall

            return BufferCall(problem, tuple(shape), x.dtype)
        if not x.is_cpu:
            raise Left(f"no engine here runs on {x.device.type}")
        ranks.agree(problem, cpu)
        return HostCall(problem, tuple(shape), form, x.dtype)


def _problem(asked: Asked, last: bool) -> ConvProblem:
    """Raises InvalidArgument, InvalidProblem."""
    dtype, grad, bias = DTYPES[asked.x.dtype], asked.grad, asked.bias
    problem = problem_of(
        asked.part,
        asked.geometry,
        asked.x.shape,
        asked.w.shape,
        None if grad is None else grad.shape,
        dtype,
        last=last,
        math=math_of(asked.settings, asked.switched, dtype),
        bias=bias is not None,
        constant=asked.constant,
        after=asked.after,
    )
    if bias is not None and tuple(bias.shape) != (problem.channels_out,):
        raise InvalidArgument(f"bias must have shape ({problem.channels_out},), got {tuple(bias.shape)}")
    return problem


def _result_shape(problem: ConvProblem, last: bool) -> tuple[int, ...]:
    shape = problem.out_shape
    return (shape[0], shape[-1], *shape[1:-1]) if last else shape


def _check(asked: Asked) -> None:
    """Raises Left for what no engine here computes, InvalidArgument for tensors that do not go together."""
    x = asked.x
    for name, tensor in {"input": x, "weight": asked.w, "bias": asked.bias, "grad_output": asked.grad}.items():
        if tensor is None:
            continue
        if tensor.layout is not torch.strided:
            raise Left(f"{name} is {tensor.layout}")
        if tensor.dtype not in DTYPES:
            raise Left(f"{str(tensor.dtype).removeprefix('torch.')} is none of {', '.join(DTYPES.values())}")
        if tensor.dtype != x.dtype:
            raise InvalidArgument(f"{name} must be {x.dtype} as input is, got {tensor.dtype}")
        if tensor.device != x.device:
            raise InvalidArgument(f"{name} must be on {x.device} as input is, got {tensor.device}")
    if not 3 <= x.ndim <= 5:
        raise Left(f"{x.ndim - 2} axes of space, not 1 to 3")
