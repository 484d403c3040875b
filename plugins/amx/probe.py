"""Checks once per device that its compiler accepts the assembly and that results are right; a pass is cached."""

from __future__ import annotations

import math
from typing import Any

from convdispatch.api import ConvProblem, PluginError, require_proven
from convdispatch.api.cpu import lacking

from . import NEEDED

_PROBLEM = ConvProblem(mb=2, ic=40, ih=9, iw=8, oc=24, kh=3, kw=3, ph=1, pw=1, layout="nhwc")
_ONE_TAP = {"kh": 1, "kw": 1, "ph": 0, "pw": 0, "ph_r": 0, "pw_r": 0}


def require(context: Any, problem: ConvProblem = _PROBLEM, tiles: Any = None) -> None:
    """Check once that kernels of the class ``tiles`` compute correctly on the context's device. Raises PluginError.

    The check has the layout of ``problem``, and one tap or several as ``problem`` has: programs may then be shared.
    """
    one_tap = math.prod(problem.w_shape[2:] if problem.layout == "nchw" else problem.w_shape[1:-1]) == 1
    probed = _PROBLEM.replace(layout=problem.layout, **(_ONE_TAP if one_tap else {}))
    if tiles.vectors:
        probed = probed.replace(dtype="bfloat16")
    if (failure := lacking(*NEEDED[tiles.vectors])) is not None:
        raise PluginError(failure)
    config = {"planes": 1 if tiles.vectors else 2, "rows": 7, "panels": 1, "items": 2}
    require_proven(__package__, tiles.name, context, probed, lambda: tiles(probed, config).plan(context))
