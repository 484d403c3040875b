"""``torch.backends.cudnn.benchmark = True``: what could compute a problem is measured in the background.

One thread, one problem at a time, each within ``PROBLEM_MS`` and all within ``TOTAL_MS`` a process; calls go on
meanwhile with what was chosen before, and take the measured winner from their next run on.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import warnings
from typing import Any

from ...api.errors import ConvDispatchError, ConvDispatchWarning
from ...api.policy import Policy, policy
from ...api.problem import ConvProblem
from ...device import background

__all__ = ["PROBLEM_MS", "TOTAL_MS", "consider", "drain"]

PROBLEM_MS = 400.0
TOTAL_MS = float(os.environ.get("CONVDISPATCH_TORCH_FIND_MS", "60000"))
_asked: set[Any] = set()
_waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
_lock = threading.Lock()
_spent = 0.0
_busy = 0
_thread: threading.Thread | None = None


def consider(problem: ConvProblem, device: Any, chosen: Policy) -> None:
    """Measure a problem some time, if it was not asked for before; returns at once."""
    global _thread, _busy
    key = (problem, device, chosen)
    if key in _asked or chosen.frozen or chosen.solver is not None:
        return
    with _lock:
        if key in _asked:
            return
        _asked.add(key)
        from .. import ranks

        if ranks.many():  # what one rank measures, others would not run
            return
        _busy += 1
        _waiting.put((problem, device, chosen))
        if _thread is None:
            _thread = threading.Thread(target=_work, name="convdispatch-find", daemon=True)
            _thread.start()


def drain(timeout: float) -> bool:
    """Wait until everything that was asked for is measured; False after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while _busy and time.monotonic() < end:
        time.sleep(0.02)
    return not _busy


def _work() -> None:
    global _spent, _busy
    from ...device.runtime import device_info
    from ...measurement.find import find, why_find

    while True:
        problem, device, chosen = _waiting.get()
        try:
            left = TOTAL_MS - _spent
            with background.at_work(), policy(deterministic=chosen.deterministic):
                if left > 0 and why_find(problem, device_info(device), budget_ms=None) is not None:
                    begin = time.monotonic()
                    find(problem, device, budget_ms=min(PROBLEM_MS, left))
                    _spent += 1e3 * (time.monotonic() - begin)
        except ConvDispatchError as error:
            warnings.warn(f"{problem} was not measured in the background: {error}", ConvDispatchWarning, stacklevel=1)
        finally:
            with _lock:
                _busy -= 1
