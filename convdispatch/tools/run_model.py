"""The job behind ``convdispatch run``: a model file run on arrays, timed, and compared with another library."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime import device_info, find_device
from ..selection.text_table import Table, columns
from .model_file import read_inputs
from .peer_process import PeerProcess

_ROUNDS = 5
_PAUSE_S = 0.05
"""Seconds of pause before each engine runs, because the other engine's threads spin for a while after a run."""


@dataclass(frozen=True)
class Compared:
    """Another library's run of the same file: relative error of each output against its own, and its time."""

    peer: str
    errors: Mapping[str, float]
    ms: float


@dataclass
class RunReport:
    """The result of ``run_model``; printing it with ``rich`` shows its tables."""

    model: str
    device: str
    inputs: dict[str, np.ndarray]
    random: list[str]
    outputs: dict[str, np.ndarray]
    load_s: float
    first_s: float
    """The seconds of the first run: building the form, compiling, packing and running."""
    ms: float
    """The median milliseconds of a warm run with arrays on the host."""
    runs: int
    form: list[str] = field(default_factory=list)
    compared: Compared | None = None

    def __rich_console__(self, console: object, options: object) -> Iterator[Any]:
        table = Table(*columns("name", "", "name", "type", "shape"), *columns("number", "mean", "min", "max"))
        for direction, arrays in (("in", self.inputs), ("out", self.outputs)):
            for name, array in arrays.items():
                note = " (random)" if direction == "in" and name in self.random else ""
                table.add_row(direction, name + note, array.dtype.name, str(list(array.shape)), *_statistics(array))
        yield f"{self.model} on {self.device}"
        yield table
        yield (
            f"load {self.load_s:.2f} s, first run {self.first_s:.2f} s, then {self.ms:.3f} ms a run "
            f"(median of {self.runs}, arrays on the host)"
        )
        yield from self.form
        if self.compared is not None:
            listed = ", ".join(f"{name} {error:.1e}" for name, error in self.compared.errors.items())
            yield f"{self.compared.peer}: {self.compared.ms:.3f} ms; relative error of ours against it: {listed}"


def _statistics(array: np.ndarray) -> list[str]:
    if not array.size or array.dtype.kind not in "fiub":
        return ["", "", ""]
    wide = array.astype(np.float64)
    return [f"{value:.5g}" for value in (wide.mean(), wide.min(), wide.max())]


def run_model(
    path: Path | str,
    inputs: Sequence[str] = (),
    *,
    batch: int | None = None,
    against: str | None = None,
    device: Any = None,
    runs: int = 20,
    **numbers: Any,
) -> tuple[RunReport, Any]:
    """Run a model; ``(report, net)``. ``inputs`` are texts as ``read_inputs`` takes them; the rest is random.

    ``numbers`` are ``math`` and ``dtype`` of ``onnx.load``.

    Raises InvalidArgument for files and arrays that do not fit, and for a peer that is not installed; NoDevice.
    """
    from ..onnx import load

    start = time.perf_counter()
    net = load(path, device=device, **numbers)
    load_s = time.perf_counter() - start
    feeds, random = read_inputs(net, inputs, batch)
    peer = None if against is None else PeerProcess(against, Path(path), feeds, _threads(net))
    try:
        start = time.perf_counter()
        outputs = net(feeds)
        first_s = time.perf_counter() - start
        ms, their_ms = _times(lambda: net(feeds), peer, runs)
    finally:
        if peer is not None:
            peer.close()
    compared = None
    if peer is not None:
        their_outputs = dict(zip(outputs, peer.outputs, strict=True))
        errors = {name: _error(outputs[name], their_outputs[name]) for name in outputs}
        compared = Compared(str(against), errors, their_ms)
    where = str(device_info(find_device(device)))
    figures = {"outputs": outputs, "load_s": load_s, "first_s": first_s, "ms": ms, "runs": runs}
    figures |= {"form": _form_of(net), "compared": compared}
    return RunReport(str(path), where, feeds, random, **figures), net


def _threads(net: Any) -> int:
    """Compute units of a CPU device; 0, which is as many threads as there are cores, for another device."""
    device = net.queue.device
    return int(device.max_compute_units) if device.type & 2 else 0


def _form_of(net: Any) -> list[str]:
    built = net.latest
    if built is None:
        return ["nothing is computed: every output is a constant"]
    return [
        f"{len(built.layers)} operations, {built.commands} commands, {built.nbytes / 2**20:.1f} MiB of activations; "
        f"layout {built.layout or 'as traced'}, {built.queues} queues"
    ]


def _times(run_ours: Callable[[], Any], peer: PeerProcess | None, runs: int) -> tuple[float, float]:
    """Median milliseconds here and by a peer, NaN without one: a few rounds in turns, one run of each unseen."""
    rounds = min(max(1, runs), _ROUNDS)
    samples: tuple[list[float], list[float]] = [], []
    for round_number in range(rounds):
        count = len(range(round_number, max(1, runs), rounds))
        time.sleep(0 if peer is None else _PAUSE_S)
        run_ours()
        for _ in range(count):
            start = time.perf_counter()
            run_ours()
            samples[0].append((time.perf_counter() - start) * 1e3)
        if peer is not None:
            time.sleep(_PAUSE_S)
            samples[1].extend(peer.times(count))
    return statistics.median(samples[0]), statistics.median(samples[1]) if samples[1] else float("nan")


def _error(ours: np.ndarray, theirs: np.ndarray) -> float:
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    size = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / (size or 1.0)
