"""Checks once per device that its compiler accepts the assembly and that results are right; a pass is cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convdispatch.api import ConvProblem, require_proven

__all__ = ["require"]

_PROBLEM = ConvProblem(
    mb=2, ic=40, ih=9, iw=8, oc=56, kh=3, kw=3, ph=1, pw=1, layout="nhwc", dtype="uint8", out_dtype="uint8"
)


def require(context: Any, name: str, kernel: Any, config: Mapping[str, Any]) -> None:
    """Check once that ``kernel``, a class whose plan multiplies, computes correctly there. Raises PluginError."""
    require_proven(__package__, name, context, _PROBLEM, lambda: kernel(_PROBLEM, config).plan(context))
