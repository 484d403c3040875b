"""Makes a plan pack of what a command names: chosen first, then made once more so that only what is used goes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..device.cache import artifact_store
from ..device.programs import kernels
from ..device.runtime import find_device, probe
from ..selection import dispatch, planpack
from .ready import make_ready


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
    what: str, target: str | Path, device: str | None = None, *, all_weights: bool = False, **options: Any
) -> str:
    """Write a plan pack of a net by name, an ONNX file, a script's PyTorch model, a lock file or a problem; a sentence
    about it.

    Packed weights go in where they take longer to make than to read, or all of them. ``options`` are ``make_ready``'s.
    """
    chosen = find_device(device)
    with artifact_store.gathering(chosen) as first_artifacts:
        make_ready(what, device, **options)
    forms = _Forms(first_artifacts)
    artifact_store.put_in_force(forms)
    try:
        _forget()
        with artifact_store.gathering(chosen, all_weights) as gathered:
            probe(chosen)  # A process that loads the pack finds the device without the compiler.
            ready = make_ready(what, device, **options)
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
