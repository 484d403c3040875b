"""explain: which solver runs each convolution of a function, and why; nothing is compiled or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from ..api.policy import promising
from ..calls.framework.fallback import Fallback, cpu_device
from ..device import runtime
from ..device.places.stream import stream_kind
from ..selection.explanation import explain as explain_problem
from .lowering import planned
from .primitive import conv_p, jax_conv_p, settings_in_force


@dataclass(frozen=True)
class Layer:
    """One convolution of a traced function."""

    name: str
    """The name of the convolution in jax: its enclosing scopes, or its position."""
    problem: str
    solver: str | None
    """The solver's name; None if XLA computes the convolution."""
    why: str
    """The reason why the solver was chosen, or why XLA computes the convolution."""


@dataclass(frozen=True)
class Explained:
    """A function's convolutions in the order of its program."""

    device: str
    layers: tuple[Layer, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"device": self.device, "layers": [asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        lines = [self.device, f"{'layer':32} solver"]
        for layer in self.layers:
            lines.append(f"{layer.name:32} {layer.solver or 'XLA'}")
            lines.append(f"    {layer.problem}: {layer.why}" if layer.problem else f"    {layer.why}")
        return "\n".join(lines)


def explain(function: Callable[..., Any], *arguments: Any) -> Explained:
    """Trace ``function(*arguments)`` and explain each convolution in it, including those of gradients.

    The arguments of ``enable`` apply if it is in force, else its defaults.
    """
    settings = dict(settings_in_force() or {"math": None})
    math = settings.pop("math")
    platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
    cl_device = cpu_device(pointers=True) if platform == "cpu" else stream_kind(platform).numbered(0).device
    info = runtime.device_info(cl_device)
    layers = []
    for number, equation in enumerate(_convolutions(jax.make_jaxpr(function)(*arguments).jaxpr), 1):
        name = str(equation.source_info.name_stack) or f"convolution {number}"
        avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
        try:
            plan = planned(platform, *avals, math, equation.params)
        except Fallback as error:
            layers.append(Layer(name, "", None, str(error)))
            continue
        with promising(settings):
            answer = explain_problem(plan.problem, info)
        layers.append(Layer(name, str(plan.problem), answer.chosen, answer.why))
    return Explained(str(info), tuple(layers))


def _convolutions(jaxpr: Any) -> Iterator[Any]:
    """The equations that are convolutions, including those of inner programs."""
    for equation in jaxpr.eqns:
        if equation.primitive in (conv_p, jax_conv_p):
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _convolutions(inner)
