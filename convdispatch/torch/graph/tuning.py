"""``mode="max-autotune"``: measures the convolutions of a graph before its first call, and plans them by the
records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from ...api.errors import ConvDispatchError
from ...api.problem import ConvProblem
from ...calls.planner_pool.progress_line import ProgressLine
from ...device import runtime
from ...measurement.find import find, why_find
from ...selection import dispatch

BUDGET_MS = 2000.0
"""Time budget in milliseconds for the search of one problem, compilation included."""


def is_tuned(mode: str | None) -> bool:
    """Whether the ``mode`` of ``torch.compile`` requests measurements."""
    return bool(mode) and "max-autotune" in str(mode)


def tune(problems: Iterable[ConvProblem], device: Any) -> int:
    """Measure each problem for which there are too few records; returns how many there were.

    A terminal shows how far it is. An interrupt ends it as any other work; what was measured until then is recorded,
    and the next run begins there.
    """
    info = runtime.device_info(device)
    unknown = [each for each in dict.fromkeys(problems) if each.mb and why_find(each, info, budget_ms=BUDGET_MS)]
    finished = [0]
    with ProgressLine("measuring", lambda: (finished[0], len(unknown) - finished[0])):
        for problem in unknown:
            with contextlib.suppress(ConvDispatchError):  # a failed measurement falls back to the usual choice
                find(problem, device, budget_ms=BUDGET_MS)
                dispatch.forget(problem)
            finished[0] += 1
    return len(unknown)
