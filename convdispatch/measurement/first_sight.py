"""Calibrates a device once, when it is first used, in a child process in the background.

The child runs at low priority, and stores nothing if the device had other work: its samples differ, or it had too few
of a CPU's processors or only slices of a GPU's time. Then the calibration is tried again after ``AGAIN_S``. This
process keeps the estimated rates, so that its choices do not change; the next process uses the measured ones.
``CONVDISPATCH_RATES=off`` measures nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import pyopencl as cl

from ..api.errors import ConvDispatchError
from ..device import background, runtime
from ..device.child import Child, Silent, answer, questions
from ..device.rates import place, switched_off

BEGIN_S = 5.0
"""Seconds from a device's first plan until it is calibrated: a process' first calls compile on all processors."""
AGAIN_S = 3600.0
"""Seconds after which a device that could not be calibrated is tried again."""
CHILD_S = 60.0
"""The most seconds that the child process may take to calibrate a device."""
_checked: set[Any] = set()
_lock = threading.Lock()


def seen(device: cl.Device) -> None:
    """Called when a plan is made for a device: calibrate it in the background, unless that was done or tried lately."""
    if device in _checked:
        return
    with _lock:
        if device in _checked:
            return
        _checked.add(device)
    if switched_off() or runtime.device_info(device).vendor == "oclgrind":
        return
    threading.Thread(target=_calibrate_in_child, args=(device,), name="convdispatch-calibrate", daemon=True).start()


def _claim(device: cl.Device) -> bool:
    """Whether the device is neither calibrated nor was tried lately; if so, note that this process tries it now."""
    path = place(runtime.device_info(device))
    mark = path.with_suffix(".tried")
    try:
        if path.exists() or (mark.exists() and time.time() - mark.stat().st_mtime < AGAIN_S):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:  # The user's folder cannot be written, so measured rates could not be stored.
        return False
    return True


def _calibrate_in_child(device: cl.Device) -> None:
    time.sleep(BEGIN_S)
    if not _claim(device):
        return
    with contextlib.suppress(OSError, Silent):
        with background.at_work():
            child = Child(__name__, {"device": runtime.address(device)})
        try:
            child.hear(CHILD_S)
        finally:
            child.close()


def _serve() -> None:
    """The child process: it calibrates one device."""
    from .calibration import Unsteady, calibrate

    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    device = runtime.find_device(next(questions())["device"])
    try:
        calibrate(device, steady=True)
        answer({"done": True})
    except (ConvDispatchError, Unsteady, OSError) as error:
        answer({"failed": str(error)})


if __name__ == "__main__":
    _serve()
