"""The training loop: steps of a run, and checkpoints from which a run goes on exactly.

A checkpoint holds everything that the next step depends on, and writing one replaces the file in one step; so a run
that was killed and resumed ends with the very weights of one that was not, on the same device and with the same
solvers.
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

_TELL_SECONDS = 0.25
_AHEAD = 64  # training steps that may wait on the device's queue
Progress = Callable[[int, int, float], None]
"""``progress(steps done, all steps, present loss)``."""


@dataclass(frozen=True)
class TrainReport:
    """The result of a training run."""

    settings: Settings
    device: str
    accuracy: float
    """Share of the test images whose class was found."""
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
    began, before = time.perf_counter(), run.step
    warm, reported = began, 0.0
    try:
        while run.step < run.total:
            run.advance()
            if run.step == before + 1:
                run.loss()
                warm = time.perf_counter()
            now = time.perf_counter()
            if progress is not None and (now - reported >= _TELL_SECONDS or run.step == run.total):
                progress(run.step, run.total, run.loss())
                reported = now
            elif run.step % _AHEAD == 0:
                queue.finish()
            if path is not None and (run.step % every == 0 or run.step == run.total):
                save(path, run)
        queue.finish()
    except KeyboardInterrupt:
        if path is not None:
            save(path, run)
        raise
    seconds, made = time.perf_counter() - warm, run.step - before
    losses = tuple(run.losses.numpy()[: run.step].tolist())
    if not np.isfinite(losses[-1]):
        raise InvalidArgument(f"the loss became {losses[-1]}: a smaller --lr than {settings.lr} may help")
    images = (made - 1) * settings.batch
    rate = images / seconds if made > 1 else 0.0
    where = str(runtime.device_info(queue.device))
    return TrainReport(settings, where, run.accuracy(), losses, seconds, made, rate)
