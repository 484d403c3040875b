"""Calibrates a device once, when it is first used, in a child process in the background.

The child gives way to other processes, and keeps nothing where its samples differ too much for a device without other
work, where it had too few of a CPU's processors (of those that a container may use), or slices of a GPU's time; then it
is tried again after ``AGAIN_S``. This process goes on with the estimates, so that its choices stay; the next one
predicts at what was measured. ``CONVDISPATCH_RATES=off`` measures nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from ..api.errors import ConvDispatchError
from ..device import background, runtime
from ..device.child import Child, Silent, answer, questions
from ..device.rates import place, switched_off

if TYPE_CHECKING:
    import pyopencl as cl

AGAIN_S = 3600.0
"""Seconds after which a device that could not be calibrated is tried again."""
CHILD_S = 60.0
"""The most seconds that the child process may take to calibrate a device."""
_seen: set[Any] = set()
_lock = threading.Lock()


def seen(device: cl.Device) -> None:
    """Called when a plan is made for a device: calibrate the device in the background if that was not done or tried.
    Returns at once."""
    if device in _seen:
        return
    with _lock:
        if device in _seen:
            return
        _seen.add(device)
    if switched_off() or runtime.device_info(device).vendor == "oclgrind" or not _marked(device):
        return
    threading.Thread(target=_calibrated, args=(device,), name="convdispatch-calibrate", daemon=True).start()


def _marked(device: cl.Device) -> bool:
    """Whether it is this process's turn: not calibrated, nor tried lately; notes that it is tried now."""
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


def _calibrated(device: cl.Device) -> None:
    with contextlib.suppress(OSError, Silent):
        with background.at_work():
            child = Child(__name__, {"device": runtime.address(device)})
        try:
            child.hear(CHILD_S)
        finally:
            child.close()


def _serve() -> None:
    """The child: one device."""
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
