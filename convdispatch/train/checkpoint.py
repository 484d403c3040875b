"""Checkpoints of a training run: one safetensors file with weights, the optimiser's state, losses and settings."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..api.errors import InvalidArgument
from ..device import jsontext
from ..nn import Dropout, load_tensors, save_tensors
from .run import Run

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
