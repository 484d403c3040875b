"""Makes PyTorch's threads sleep between its operators, so that OpenCL's threads find the CPU cores free.

PyTorch's operators on a CPU run on libgomp's threads, which spin for milliseconds after each, on the very cores that a
convolution here then wants. How long is read from the environment when libgomp is loaded; but where it counts more
threads than cores it spins a thousandth as long. A second team of threads, which sleeps, makes it count so.
"""

from __future__ import annotations

import os
import threading

import torch

_DECIDED = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_lock = threading.Lock()
_sleeper: threading.Thread | None = None


def share_cores() -> bool:
    """Stop PyTorch's threads from spinning between operators; returns whether this function has stopped them.

    For convolutions by ``convdispatch.conv`` among PyTorch's operators on a CPU; ``enable`` does it by itself where one
    runs on the CPU. PyTorch's own operators begin a few microseconds later. Nothing happens with one thread, and where
    ``OMP_WAIT_POLICY`` or ``GOMP_SPINCOUNT`` is set: then the user has decided.
    """
    global _sleeper
    if torch.get_num_threads() < 2 or any(name in os.environ for name in _DECIDED):
        return False
    with _lock:
        if _sleeper is None or not _sleeper.is_alive():  # the thread does not survive a fork
            ready = threading.Event()
            _sleeper = threading.Thread(target=_keep_a_team, args=(ready,), name="convdispatch-openmp", daemon=True)
            _sleeper.start()
            ready.wait()
    return True


def _keep_a_team(ready: threading.Event) -> None:
    try:
        torch.ones(1 << 17).add_(1)  # uses all cores, so that this thread owns an OpenMP team from now on
    finally:
        ready.set()
    threading.Event().wait()
