"""oneDNN's solvers: what they refuse, and which layouts they offer for measurement."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyopencl as cl

from convdispatch.api import ConvProblem, DeviceInfo, Solver
from convdispatch.api.activations import onednn_eltwise

from .library import OneDNNError, missing
from .plan import OneDNNPlan, workspace_areas
from .primitive import Convolution, described, shared

_BLOCKS = "blocked", "blocked8"


def _layouts(problem: ConvProblem) -> tuple[str, ...]:
    """Layouts of x and y, the best guess first: the fastest ones including reorders, measured with AVX-512 and AVX2.

    oneDNN's own choice (``any``) does not count the reorders. A reorder does not pay for a 1x1 kernel and for the
    weights' gradient. A depthwise convolution takes up to ten times as long in plain layouts as in blocked ones.
    """
    if problem.depthwise:
        return (*(_BLOCKS if problem.direction == "fwd" else ()), "any", *_BLOCKS, "nhwc", "plain")
    if problem.direction == "bwd_weights" or problem.kd * problem.kh * problem.kw == 1:
        return ("plain", "any", "nhwc", *_BLOCKS)
    return ("any", "nhwc", *_BLOCKS, "plain")


@functools.lru_cache(maxsize=1024)
def _choices(problem: ConvProblem) -> tuple[tuple[dict[str, Any], ...], str]:
    """(configurations that run different implementations, the best guess first; the reason if there is none)."""
    choices: list[tuple[dict[str, Any], Convolution]] = []
    reference, refused = "", ""
    for data in dict.fromkeys(_layouts(problem)):
        config = {"data": data}
        try:
            convolution = described(problem, data)
        except OneDNNError as error:
            refused = refused or str(error)
            continue
        if convolution.implementation.startswith("ref"):
            reference = convolution.implementation
        elif not any(convolution.same(chosen) for _, chosen in choices):
            choices.append((config, convolution))
    reason = f"only the reference code {reference}" if reference else f"no implementation ({refused})"
    return tuple(config for config, _ in choices), reason


class _OneDNN(Solver):
    directions: tuple[str, ...] = ()

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Refuses other directions, a missing oneDNN, and problems that only oneDNN's reference code supports."""
        if problem.direction not in self.directions:
            return f"{' or '.join(self.directions)} only, got {problem.direction}"
        if problem.mb == 0:
            return "mb of 1 or more only, got 0"
        if problem.residual and problem.accumulate:
            return "residual or accumulate only, got both"
        largest = max(math.prod(shape) for shape in (problem.x_shape, problem.w_shape, problem.y_shape))
        if largest >= 1 << 31:  # some oneDNN implementations divide by an overflowed size, which ends the process
            return f"tensors of less than 2**31 elements only, got {largest}"
        if problem.activation and onednn_eltwise(problem.activation) is None:
            return f"activations that oneDNN has only, got {problem.activation}"
        reason = missing()
        if reason:
            return reason
        choices, missing_reason = _choices(shared(problem))
        return None if choices else f"an implementation in onednn only, got {missing_reason}"

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """Layouts of the images: the library's choice, the caller's, channels last, blocks of channels."""
        return _choices(shared(problem))[0]

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int:
        """Bytes that reordered images, weights that are not constant, and the library's scratch memory take."""
        return workspace_areas(problem, described(shared(problem), config["data"]))[1]

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> OneDNNPlan:
        """The primitive and its reorders; oneDNN generates their machine code in this call."""
        return OneDNNPlan(problem, config)


class Forward(_OneDNN):
    """Forward convolution with bias, a sum and an activation in the same pass."""

    directions = ("fwd",)


class Gradient(_OneDNN):
    """The data gradient and the weights' gradient."""

    directions = ("bwd_data", "bwd_weights")
