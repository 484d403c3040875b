"""The training loop: steps of a run, and checkpoints from which a run continues exactly.

A checkpoint holds everything that the next step depends on, and is replaced atomically. So a run that was killed and
resumed ends with the same weights as an uninterrupted one, on the same device and with the same solvers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..device import jsontext, runtime
from ..nn import Dropout, load_tensors, save_tensors
from ..nn.saving import try_place
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


_FORMAT = "convdispatch training 1"


def save(path: Path, run: Run) -> None:
    """Write the run's state; the old file is replaced after the new one is completely written."""
    tensors: dict[str, object] = {f"model.{name}": value for name, value in run.net.state_dict().items()}
    tensors |= {f"optimizer.{name}": value for name, value in run.optimizer.state_dict().items()}
    if run.scaler is not None:
        tensors |= {f"scaler.{name}": value for name, value in run.scaler.state_dict().items()}
    tensors["losses"] = run.losses.numpy()[: run.step]
    states = {name: part.generator.state for name, part in run.net.named_modules() if isinstance(part, Dropout)}
    metadata = {
        "format": _FORMAT,
        "step": str(run.step),
        "settings": json.dumps(asdict(run.settings)),
        "generators": json.dumps(states),
    }
    save_tensors(path, tensors, metadata)


def restore(path: Path, run: Run) -> None:
    """Restore the run to its saved state.

    Raises InvalidArgument for a file that is damaged, no checkpoint of this program, or of a run with other settings
    (only the number of epochs may be larger).
    """
    arrays, metadata = load_tensors(path)
    if metadata.get("format") != _FORMAT:
        raise InvalidArgument(f"{path} is no checkpoint of convdispatch train, its format is {metadata.get('format')}")
    try:
        step, settings = int(metadata["step"]), dict(jsontext.loads(metadata["settings"]))
        states = {str(name): int(state) for name, state in jsontext.loads(metadata["generators"]).items()}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidArgument(f"checkpoint {path} is damaged: {error}") from None
    expected = asdict(run.settings)
    # Checkpoints from before the setting `precision` existed are of float32 runs.
    settings.setdefault("precision", "float32")
    differing = [
        f"{name} {settings.get(name)}" for name in expected if name != "epochs" and settings.get(name) != expected[name]
    ]
    if differing:
        raise InvalidArgument(f"{path} was made with {', '.join(differing)}; resume with the same, or begin anew")
    losses = arrays.get("losses", np.zeros(0))
    if not 0 < step <= run.total or losses.shape != (step,):
        raise InvalidArgument(f"{path} is at step {step} of {run.total} with {losses.shape} losses: nothing to resume")
    generators = {name: part.generator for name, part in run.net.named_modules() if isinstance(part, Dropout)}
    if generators.keys() != states.keys():
        raise InvalidArgument(f"checkpoint {path} is damaged: it has random states of {', '.join(states) or 'nothing'}")
    try:
        run.optimizer.load_state_dict(_part(arrays, "optimizer."))
        run.net.load_state_dict(_part(arrays, "model."))
        if run.scaler is not None:
            run.scaler.load_state_dict(_part(arrays, "scaler."))
    except InvalidArgument as error:
        raise InvalidArgument(f"checkpoint {path}: {error}") from None
    for name, generator in generators.items():
        generator.state = states[name]
    run.losses[:step].write(losses)
    run.step = step


def _part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
