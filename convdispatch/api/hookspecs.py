"""The two hooks. A plugin is a module that implements the first; a layer wraps the second.

The specifications only grow: pluggy passes an implementation just the arguments that it names.
"""

from __future__ import annotations

from typing import Any

import pluggy

PROJECT = "convdispatch"
"""Name of the pluggy project and of the entry-point group."""

API_VERSION = 1
"""Raised when a plugin written for the older number would break. A plugin may state ``api_version = 1``."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def convdispatch_solvers() -> list[Any]:  # type: ignore[empty-body]
    """Return the solvers this plugin provides, a list of Solver."""


@hookspec(firstresult=True)
def convdispatch_enqueue(
    queue: Any,
    problem: Any,
    solver: Any,
    plan: Any,
    x: Any,
    w: Any,
    y: Any,
    workspace: Any,
    wait_for: Any,
    bias: Any,
    residual: Any,
    weights: Any,
) -> Any:
    """Run one planned convolution and return its event. Layers wrap this hook (``hookimpl(wrapper=True)``).

    ``weights`` is the memory of the weights as the caller gave them, also where ``w`` is their packed form; None where
    that is not known.
    """
