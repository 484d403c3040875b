"""The job behind ``convdispatch run``: a model file run on arrays, and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime import device_info, find_device
from ..selection.text_table import Table, columns
from .model_file import read_inputs


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
    device: Any = None,
    runs: int = 20,
    **numbers: Any,
) -> tuple[RunReport, Any]:
    """Run a model; ``(report, net)``. ``inputs`` are texts as ``read_inputs`` takes them; the rest is random.

    ``numbers`` are ``math`` and ``dtype`` of ``onnx.load``.

    Raises InvalidArgument for files and arrays that do not fit; NoDevice.
    """
    from ..onnx import load

    start = time.perf_counter()
    net = load(path, device=device, **numbers)
    load_s = time.perf_counter() - start
    feeds, random = read_inputs(net, inputs, batch)
    start = time.perf_counter()
    outputs = net(feeds)
    first_s = time.perf_counter() - start
    net(feeds)
    samples = []
    for _ in range(max(1, runs)):
        start = time.perf_counter()
        net(feeds)
        samples.append((time.perf_counter() - start) * 1e3)
    where = str(device_info(find_device(device)))
    figures = {"outputs": outputs, "load_s": load_s, "first_s": first_s, "ms": statistics.median(samples)}
    figures |= {"runs": runs, "form": _form_of(net)}
    return RunReport(str(path), where, feeds, random, **figures), net


def _form_of(net: Any) -> list[str]:
    built = net.latest
    if built is None:
        return ["nothing is computed: every output is a constant"]
    return [
        f"{len(built.layers)} operations, {built.commands} commands, {built.nbytes / 2**20:.1f} MiB of activations; "
        f"layout {built.layout or 'as traced'}"
    ]
