"""The public ``explain``: of a problem, or of a call of ``conv`` with the same arguments."""

from __future__ import annotations

from typing import Any

from ..api.errors import InvalidArgument
from ..api.literals import Activation, Layout, Math, Padding, Steps
from ..api.problem import ConvProblem
from ..selection import explanation
from ..selection.explanation import Explanation
from .arguments import Request, described_problem


def explain(
    problem: Any,
    w: Any = None,
    bias: Any = None,
    *,
    device: Any = None,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: Activation | None = None,
    residual: Any = None,
    layout: Layout = "nchw",
    math: Math = "float32",
) -> Explanation:
    """Every solver's answer to a problem: refused with the reason, or accepted with its rank, and the source of the
    choice.

    ``explain(problem, device)`` takes a ConvProblem or its text, and what ``runtime.find_device`` takes;
    ``explain(x, w, bias, ...)`` the arguments of a call of ``conv``, which is not made. Compiles nothing, runs nothing.
    Raises InvalidArgument, InvalidProblem, and MemoryLimit for what the device cannot hold.
    """
    if isinstance(problem, (ConvProblem, str)):
        return explanation.explain(problem, w if device is None else device)
    for name, array in (("x", problem), ("w", w)):
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise InvalidArgument(
                f"explain takes a problem, such as 'mb1ic64ih56oc64kh3ph1', or arrays x and w as conv does; got "
                f"{type(array).__name__} for {name}"
            )
    dtype = str(problem.dtype).rpartition(".")[2]  # PyTorch's dtypes print as torch.float32
    options = (stride, padding, dilation, groups, activation, layout, math, False)
    described = described_problem(Request("fwd", (problem, w, None), options, bias, residual), dtype)
    queue = getattr(problem, "queue", None)
    return explanation.explain(described, device if device is not None else getattr(queue, "device", None))
