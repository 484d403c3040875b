"""Makes ready what a command names: a net, a model file, a lock file or a problem, as its first call would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api.problem import ConvProblem
from ..device import startup_profile
from ..device.cache import artifact_store
from ..device.programs import kernels
from ..device.runtime import context, device_info, find_device, probe, queue
from ..models import catalogue
from ..selection import dispatch, planpack
from ..selection.choice import lockfile
from ..selection.text_table import Column, Table
from .problems import input_shapes, is_model, read_entries


@dataclass
class Ready:
    """The net or plans that were made ready, and the time of each phase."""

    name: str
    device: str
    notes: startup_profile.Notes
    seconds: float
    held: Any = None
    """The form or the plans, referenced so that they stay in memory."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values: seconds and counts by layer and phase."""
        spent = [
            {"layer": layer, "phase": phase, "count": phase_time.count, "seconds": phase_time.seconds}
            for (layer, phase), phase_time in self.notes.spent.items()
        ]
        return {"name": self.name, "device": self.device, "seconds": self.seconds, "spent": spent}

    def __rich_console__(self, console: object, options: object) -> Iterator[Any]:
        names = [name for name in startup_profile.PHASES if self.notes.of(name).count]
        table = Table(Column("layer", "name"), *(Column(f"{name}, ms") for name in names))
        for layer in self.notes.layers:
            spent = [self.notes.spent.get((layer, name)) for name in names]
            table.add_row(layer or "(before and between)", *map(_ms, spent))
        table.add_row("all", *(_ms(self.notes.of(name)) for name in names))
        yield f"{self.name} on {self.device}: ready after {self.seconds:.2f} s"
        yield table
        accounted = sum(self.notes.of(name).seconds for name in names)
        compiled, loaded = self.notes.of("compile").count, self.notes.of("load").count
        yield f"{compiled} programs compiled, {loaded} loaded; {max(0.0, self.seconds - accounted):.2f} s elsewhere"


def _ms(spent: startup_profile.Spent | None) -> str:
    return "" if spent is None else f"{spent.seconds * 1e3:.1f} ({spent.count})"


def make_ready(what: str, device: str | None = None, batch: int | None = None) -> Ready:
    """Make ready a net of the catalogue, an ONNX file, a lock file's problems, or one problem.

    Raises InvalidArgument where nothing of that name is known, and what the first call would raise.
    """
    chosen = find_device(device)
    with startup_profile.noting() as notes:
        start = time.perf_counter()
        prepared = _prepared(what, chosen, batch)
        seconds = time.perf_counter() - start
    return Ready(str(what), str(device_info(chosen)), notes, seconds, prepared)


def _prepared(what: str, device: Any, batch: int | None) -> Any:
    if is_model(what):
        from ..onnx import load

        net = load(what, device=device)
        return net.build(*input_shapes(net, batch))
    if what in catalogue.names():
        from ..inference import build

        commands = queue(device)
        net = catalogue.create(what, queue=commands)
        return build(net, (batch or 1, net.CHANNELS, net.SIZE, net.SIZE), queue=commands, recall=True)
    if Path(what).is_file():
        decisions = lockfile.read(what)
        # The decisions hold for the whole process, because the process runs only this command.
        lockfile.agree(decisions)
        return [dispatch.prepare(ConvProblem.parse(text), context(device)) for text in decisions]
    problems = [entry.problem for entry in read_entries([what], batch=batch)]
    return [dispatch.prepare(problem, context(device)) for problem in problems]


class _Forms:
    """The inference forms that the first build chose, as a store of artifacts for the second build."""

    def __init__(self, gathered: artifact_store.Gathered) -> None:
        self.name, self.identity, self._forms = "the first making", gathered.identity, gathered.tables["forms"]

    def get(self, table: str, key: str) -> Any:
        return self._forms.get(key) if table == "forms" else None

    def holds(self, table: str) -> bool:
        """Whether the store has artifacts of a sort: it has forms only."""
        return table == "forms"


def make_pack(
    what: str, target: str | Path, device: str | None = None, *, batch: int | None = None, all_weights: bool = False
) -> str:
    """Write a plan pack of a net by name, an ONNX file, a lock file or a problem; a sentence about it.

    Packed weights go in where they take longer to make than to read, or all of them.
    """
    chosen = find_device(device)
    with artifact_store.gathering(chosen) as first_artifacts:
        make_ready(what, device, batch)
    forms = _Forms(first_artifacts)
    artifact_store.put_in_force(forms)
    try:
        _forget()
        with artifact_store.gathering(chosen, all_weights) as gathered:
            probe(chosen)  # A process that loads the pack finds the device without the compiler.
            ready = make_ready(what, device, batch)
    finally:
        artifact_store.take_out_of_force(forms)
    size = planpack.write(target, gathered)
    tables = gathered.tables
    packed = sum(len(content) for content in tables["weights"].values())
    counts = f"{len(tables['decisions'])} decisions, {len(tables['programs'])} programs"
    sizes = f"{packed / 1e6:.1f} MB of packed weights, {size / 1e6:.1f} MB in all"
    return f"{target}: {ready.name} on {ready.device}, {counts}, {sizes}"


def _forget() -> None:
    """Drop plans and programs, so that those that are used are built, and noted, again."""
    dispatch.forget()
    kernels.forget()
    probe.cache_clear()
