"""The training loop: steps of a run, and checkpoints from which a run continues exactly.

A checkpoint holds everything that the next step depends on, and is replaced atomically. So a run that was killed and
resumed ends with the same weights as an uninterrupted one, on the same device and with the same solvers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..device import runtime
from ..nn.saving import try_place
from .checkpoint import restore, save
from .data import Pictures, load
from .run import Run, Settings

_PROGRESS_S = 0.25
_MAX_QUEUED_STEPS = 64  # The most training steps that are enqueued before the loop waits for the device.
Progress = Callable[[int, int, float], None]
"""A function that is called as ``progress(steps done, all steps, present loss)``."""


@dataclass(frozen=True)
class TrainReport:
    """The result of a training run."""

    settings: Settings
    device: str
    accuracy: float
    """The fraction of the test images that were classified right."""
    losses: tuple[float, ...]
    """The loss of each step, including steps before a resumption."""
    seconds: float
    """Seconds of this process's steps, without the first one, which compiles."""
    steps: int
    """The number of steps that this process made."""
    images_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {**asdict(self), "losses": list(self.losses)}


def train(
    settings: Settings,
    *,
    device: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    every: int = 200,
    progress: Progress | None = None,
    data: Pictures | None = None,
) -> TrainReport:
    """Train a small net and test it.

    ``checkpoint`` is written every so many steps, at the end, and when the run is interrupted; with ``resume`` the run
    goes on from it (or begins, where there is none). ``progress`` is told about four times a second.

    Raises InvalidArgument for data or a checkpoint that is missing, damaged or another run's, before anything is
    computed; and for a checkpoint that exists where ``resume`` was not asked.
    """
    path = None if checkpoint is None else Path(checkpoint)
    if resume and path is None:
        raise InvalidArgument("resuming needs the checkpoint's path")
    if path is not None and path.exists() and not resume:
        raise InvalidArgument(f"{path} exists: go on from it with --resume, or remove it")
    if path is not None and not path.parent.is_dir():
        raise InvalidArgument(f"the checkpoint's folder {path.parent} does not exist")
    if path is not None:
        try_place(path)
    if every < 1:
        raise InvalidArgument(f"checkpoints come every 1 or more steps, got {every}")
    pictures = (load(settings.data) if data is None else data).first(settings.images, settings.test_images)
    queue = runtime.queue(runtime.find_device(device))
    run = Run(settings, pictures, queue)
    if path is not None and path.exists():
        restore(path, run)
    start, first_step = time.perf_counter(), run.step
    warm_start, reported = start, 0.0
    try:
        while run.step < run.total:
            run.advance()
            if run.step == first_step + 1:
                run.loss()
                warm_start = time.perf_counter()
            now = time.perf_counter()
            if progress is not None and (now - reported >= _PROGRESS_S or run.step == run.total):
                progress(run.step, run.total, run.loss())
                reported = now
            elif run.step % _MAX_QUEUED_STEPS == 0:
                queue.finish()
            if path is not None and (run.step % every == 0 or run.step == run.total):
                save(path, run)
        queue.finish()
    except KeyboardInterrupt:
        if path is not None:
            save(path, run)
        raise
    seconds, steps = time.perf_counter() - warm_start, run.step - first_step
    losses = tuple(run.losses.numpy()[: run.step].tolist())
    if not np.isfinite(losses[-1]):
        raise InvalidArgument(f"the loss became {losses[-1]}: a smaller --lr than {settings.lr} may help")
    images = (steps - 1) * settings.batch
    rate = images / seconds if steps > 1 else 0.0
    device_name = str(runtime.device_info(queue.device))
    return TrainReport(settings, device_name, run.accuracy(), losses, seconds, steps, rate)
