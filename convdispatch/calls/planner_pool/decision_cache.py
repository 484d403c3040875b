"""What earlier processes of this machine chose under the same circumstances, so that the next one ranks nothing.

A file a device and circumstances beside the compiled kernels, a JSON line a decision. The circumstances are all that a
choice follows from: the device and its driver, the sources of this package and of the plugins, the registry, records,
verdicts and rates, and this library's variables. Where one of them changes another file answers. Lines are appended
whole and read with suspicion: a damaged one is passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...api import settings
from ...device import rates, runtime
from ...device.cache import artifact_store
from ...device.programs import template_cache
from ...device.programs.binary_cache import folder
from ...selection.planpack.decisions import HOUSES
from ...selection.plugins.loader import plugins
from ...selection.plugins.registry import packaged_path, registry_path
from ...selection.records.perfdb import default_folders

if TYPE_CHECKING:
    import pyopencl as cl

_MOST = 8 << 20
"""Bytes of a file after which nothing is added: some 30,000 decisions."""
_FIELDS = {"solver": str, "config": dict, "source": str, "seal": str}
_OPTIONAL = {"math": str}
"""Fields that earlier versions did not write."""


class DecisionCache:
    """The decisions under today's circumstances, read once. Disks that refuse cost the next process's ranking alone."""

    def __init__(self, device: cl.Device) -> None:
        where = folder()
        self._path = None if where is None else where / f"{_circumstances(device)[:40]}.choices"
        self._known = {} if self._path is None else _read(self._path)

    def get(self, key: str) -> dict[str, Any] | None:
        """Solver, configuration, source and math; None where nothing was chosen yet."""
        return self._known.get(key)

    def put(self, key: str, decision: dict[str, Any]) -> None:
        """Note a decision for processes to come."""
        if self._path is None or self._known.get(key) == decision:
            return
        self._known[key] = decision
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps([key, decision]).encode() + b"\n"
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if os.fstat(file).st_size < _MOST:
                    os.write(file, line)
            finally:
                os.close(file)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            key, decision = json.loads(line)
            kinds = _FIELDS | {name: kind for name, kind in _OPTIONAL.items() if name in decision}
            decision = {name: decision[name] for name in kinds}
            if isinstance(key, str) and all(isinstance(decision[name], kind) for name, kind in kinds.items()):
                found[key] = decision
    return found


def _circumstances(device: cl.Device) -> str:
    """A name for all that a choice follows from."""
    home = __name__.partition(".")[0]
    info = runtime.device_info(device)
    # A CPU's compute units are those that this process may use.
    known = {**dataclasses.asdict(info), "extensions": sorted(info.extensions)}
    parts = [json.dumps([artifact_store.identity(device), known], sort_keys=True)]
    parts += [template_cache.stamp(f"{home}.{zone}") for zone in HOUSES]
    parts.append(json.dumps(plugins().fingerprints, sort_keys=True))
    files = [each for each in (registry_path(), packaged_path()) if each is not None]
    files.append(rates.place(info))
    for source in default_folders().values():
        with contextlib.suppress(OSError):
            files += sorted(each for each in source.rglob("*") if each.is_file())
    for each in files:
        with contextlib.suppress(OSError):
            found = each.stat()
            parts.append(f"{each} {found.st_mtime_ns} {found.st_size}")
    parts += [f"{name}={text}" for name, text in settings.texts().items()]
    return artifact_store.key_of(*parts)
