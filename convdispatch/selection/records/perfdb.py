"""Stores measured records in folders that many processes share, and looks up the records of a problem.

Each search writes one file, named by the hash of its content, under a temporary name, syncs it and renames it: no
reader sees half a file, no writer waits for another, and no lock is held over a network file system. Files never
change; a newer record of the same choice is preferred when the folders are read and merged. A device's folders are read
once; after that a lookup is a dictionary look-up.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import threading
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ...api import settings
from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchWarning, InvalidArgument
from ...api.policy import Policy, forbid_when_frozen
from ...api.problem import ConvProblem
from ...device import cache_home, plainfile
from .record import (
    Damaged,
    NewerSchema,
    Provenance,
    Record,
    choice_text,
    device_key,
    file_text,
    is_device_key,
    read_records,
    text_name,
)
from .timing import Timing, verdict

ENTRY_POINTS = "convdispatch.records"
"""Entry-point group of tuning packs: data-only packages with a ``records`` folder."""


def user_folder() -> Path:
    """``CONVDISPATCH_DB``, else the ``perfdb`` folder among the user's application data."""
    return settings.DB.value() or cache_home.user_folder("data") / "perfdb"


def record_packs() -> dict[str, Path]:
    """The folders of the installed tuning packs, by the name of the entry point. A pack's code is never run."""
    pack_folders = {}
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            package, *subfolders = entry.module.split(".")
            # Only the top-level package is looked up, because ``find_spec`` of a submodule would import its package.
            spec = importlib.util.find_spec(package)
            locations = spec.submodule_search_locations if spec else None
            folder = Path(next(iter(locations or ())), *subfolders, "records")
            if not folder.is_dir():
                raise FileNotFoundError(f"{folder} is no folder")
        except Exception as error:  # An error of one tuning pack must not keep the others from being used.
            warnings.warn(f"tuning pack {entry.name} is set aside: {error!r}", ConvDispatchWarning, stacklevel=2)
        else:
            pack_folders[entry.name] = folder
    return pack_folders


def default_folders() -> dict[str, Path]:
    """The folders by source, in order of precedence: the user's, those of installed packs, the shipped one."""
    return {"user": user_folder(), **record_packs(), "shipped": Path(__file__).parent / "shipped"}


@functools.lru_cache(maxsize=1)
def perfdb() -> PerfDB:
    """The process's database over ``default_folders()``."""
    return PerfDB(default_folders())


def scope_of(policy: Policy) -> Policy | None:
    """The scope of searches and look-ups under a policy; None, the common scope, for the default policy."""
    policy = replace(policy.selection, tier=policy.tier)
    return None if policy == Policy() else policy


class PerfDB:
    """The merged records of several folders. ``folders`` maps source to folder, or lists folders; the first is written.

    It may be used by several threads, and its files by any number of processes.
    """

    def __init__(self, folders: dict[str, Path] | Sequence[Path | str]) -> None:
        if not isinstance(folders, dict):
            names = ["user", *("shipped" if i == 1 else f"shipped-{i}" for i in range(1, len(folders)))]
            folders = dict(zip(names, folders, strict=True))
        self.folders = {source: Path(folder) for source, folder in folders.items()}
        if not self.folders:
            raise InvalidArgument("PerfDB needs a folder at least, the first of which is written")
        self._lock = threading.RLock()
        # The records that are known, by device key and then by the problem's text.
        self._cached: dict[str, dict[str, list[Record]]] = {}
        self._warned: set[Path] = set()
        self._scoped: dict[tuple[Hashable, str], list[Record]] = {}
        self._in_memory: set[str] = set()
        """The keys of devices that have records only in memory, because their files could not be written."""
        self.generation = 0
        """A number that grows with every change of the known records; caches that depend on the records compare it."""

    @property
    def folder(self) -> Path:
        """The folder that is written."""
        return next(iter(self.folders.values()))

    def folder_of(self, device: DeviceInfo | str) -> Path:
        """Return the folder to which a device's records are written. Raises InvalidArgument for a text that is no
        device's key."""
        return self.folder / _key(device)

    # --- looking records up ------------------------------------------------------------------------------------------

    def lookup(self, problem: ConvProblem | str, device: DeviceInfo | str, scope: Hashable = None) -> list[Record]:
        """What is known of a problem on a device: the user's records before shipped ones, each fastest first, but what
        was benchmarked before what was only screened.

        Of a tie for the first place the deterministic one stands first, then the one with less workspace.
        Of one solver and configuration only the record that counts: the first source's, and there the newest.
        ``scope`` adds, before all others, what was recorded for that scope only.
        """
        records = self._load(device).get(str(problem), [])
        scoped = self._scoped.get((scope, _key(device))) if scope is not None else None
        if scoped:
            records = self._merge([*(record for record in scoped if record.problem == str(problem)), *records])
        return list(records)

    def all(self, device: DeviceInfo | str) -> list[Record]:
        """Every record of a device that ``lookup`` would return without a scope, by problem."""
        return [record for _, records in sorted(self._load(device).items()) for record in records]

    def devices(self) -> list[str]:
        """The keys of the devices that have a folder in any source."""
        keys = set()
        for folder in self.folders.values():
            with contextlib.suppress(OSError):
                keys |= {entry.name for entry in folder.iterdir() if is_device_key(entry.name) and entry.is_dir()}
        return sorted(keys)

    def refresh(self, device: DeviceInfo | str | None = None) -> None:
        """Drop the cached records of one device or all, so that the next lookup reads other processes' records too."""
        with self._lock:
            for key in [_key(device)] if device is not None else list(self._cached):
                self._cached.pop(key, None)
            self.generation += 1

    def is_partly_in_memory(self, device: DeviceInfo | str, scope: Hashable = None) -> bool:
        """Whether a lookup may return records that no file holds."""
        return _key(device) in self._in_memory or (scope, _key(device)) in self._scoped

    # --- writing records ---------------------------------------------------------------------------------------------

    def record(self, *records: Record, scope: Hashable = None) -> Path | None:
        """Store records of one device in one file, and in the cache of this process.

        Returns the file, or None if they are only in memory; a folder that cannot be written is reported once, by a
        warning. With a ``scope`` (a policy) no file is written and only look-ups with this scope return the records,
        because a search under a policy says nothing about other policies.
        """
        (key,) = {record.device for record in records}
        if scope is not None:
            scoped = self._scoped.setdefault((scope, key), [])
            scoped.extend(replace(record, source="scope") for record in records)
            return None
        forbid_when_frozen("write the performance database")
        try:
            return self.store(*records)
        except OSError as error:
            message = f"{self.folder} cannot be written ({error}): results last for this process only"
            self._warn_once(self.folder, message)
            self._add_to_cache(key, records)
            self._in_memory.add(key)
            return None

    def store(self, *records: Record) -> Path:
        """Write records of one device to a file, cache them, and return the file. Raises OSError."""
        (key,) = {record.device for record in records}
        text = file_text(records)
        path = self.folder_of(key) / text_name(text)
        plainfile.publish(path, text, durable=True)
        self._add_to_cache(key, records)
        return path

    def _add_to_cache(self, key: str, records: Sequence[Record]) -> None:
        with self._lock:
            problems = self._load(key)
            by_problem: dict[str, list[Record]] = {}
            for record in records:
                by_problem.setdefault(record.problem, []).append(replace(record, source="user"))
            # Of equal records the last counts, as if the records had been stored one by one.
            for problem, new_records in by_problem.items():
                problems[problem] = self._merge([*reversed(new_records), *problems.get(problem, [])])
            self.generation += 1

    # --- reading record files ----------------------------------------------------------------------------------------

    def _load(self, device: DeviceInfo | str) -> dict[str, list[Record]]:
        key = _key(device)
        problems = self._cached.get(key)
        if problems is None:
            forbid_when_frozen("read the performance database")
            with self._lock:
                if key not in self._cached:
                    self._cached[key] = self._read(key)
                    self.generation += 1
                problems = self._cached[key]
        return problems

    def _read(self, key: str) -> dict[str, list[Record]]:
        problems: dict[str, list[Record]] = {}
        for source, folder in self.folders.items():
            for record in self.read_folder(folder / key, source):
                if record.device == key:
                    problems.setdefault(record.problem, []).append(record)
        return {problem: self._merge(records) for problem, records in problems.items()}

    def read_folder(self, folder: Path, source: str = "") -> list[Record]:
        """Return every valid record of one folder."""
        try:
            paths = sorted(path for path in Path(folder).iterdir() if path.suffix == ".json")
        except OSError:  # The folder does not exist, so there are no records of the device.
            return []
        return [record for path in paths for record in self.read_file(path, source)]

    def read_file(self, path: Path, source: str = "") -> list[Record]:
        """Return the valid records of one file; a damaged file is reported."""
        try:
            text = plainfile.read_text(path)
        except OSError:  # Another process has removed the file since the folder was listed.
            return []
        except UnicodeDecodeError:
            text = ""
        try:
            records, faults = read_records(path.name, text, source)
            if faults:
                self._warn_once(path, f"{len(faults)} records of {path} are passed over: {faults[0]}")
            return records
        except NewerSchema as error:
            self._warn_once(path, f"{path} is left alone: {error}")
        except Damaged as error:
            self._warn_once(path, f"the damaged record {path} is passed over, and may be deleted: {error}")
        return []

    def _warn_once(self, path: Path, message: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            warnings.warn(f"performance database: {message}", ConvDispatchWarning, stacklevel=4)

    def _merge(self, records: Iterable[Record]) -> list[Record]:
        rank = {source: index for index, source in enumerate(("scope", *self.folders))}
        chosen: dict[tuple[str, str, str], Record] = {}
        for record in records:
            held = chosen.get(record.choice)
            if held is None or _is_preferred(record, held, rank):
                chosen[record.choice] = record
        ranked = sorted(
            chosen.values(),
            key=lambda r: (bool(r.inconclusive), rank.get(r.source, 0), not r.sure, r.median_ms, r.choice),
        )
        return _winner_first(ranked)


def _winner_first(ranked: list[Record]) -> list[Record]:
    """Move the first source's winner to the front: the preferred one of those that tie with the fastest.

    Only benchmarked records take part, because the median of a few screening samples may be too low by chance.
    """
    benchmarked = {choice_text(r.solver, r.config): r for r in ranked if r.source == ranked[0].source and r.sure}
    if not benchmarked or ranked[0].inconclusive:
        return ranked
    decision = verdict(
        {name: Timing(r.median_ms, r.ci_ms, r.p20_ms, r.p80_ms, r.count) for name, r in benchmarked.items()},
        deterministic={name: r.deterministic is not False for name, r in benchmarked.items()},
        workspace={name: r.workspace for name, r in benchmarked.items()},
    )
    winner = benchmarked[decision.winner]
    return [winner, *(record for record in ranked if record is not winner)]


def _is_preferred(record: Record, earlier: Record, rank: dict[str, int]) -> bool:
    """Whether ``record`` replaces an ``earlier`` one of the same choice: the first source's does, and there the newest;
    but screening does not replace benchmarking of the same kernel, and inconclusive records replace no others."""
    if bool(record.inconclusive) != bool(earlier.inconclusive):
        return not record.inconclusive
    rank_new, rank_old = -rank.get(record.source, 0), -rank.get(earlier.source, 0)
    if rank_new == rank_old and record.sure != earlier.sure and _same_kernel(record.provenance, earlier.provenance):
        return record.sure
    return (rank_new, record.created) > (rank_old, earlier.created)


def _same_kernel(left: Provenance, right: Provenance) -> bool:
    pairs = (left.kernel_hash, right.kernel_hash), (left.driver, right.driver)
    return all(a == b or not a or not b for a, b in pairs)


def _key(device: DeviceInfo | str) -> str:
    """The name of a device's folder. Raises InvalidArgument for a text that is no device's key."""
    if not isinstance(device, str):
        return _cached_key(device)
    if not is_device_key(device):
        raise InvalidArgument(f"a device's key is of small letters, digits and hyphens, got {device!r}")
    return device


_cached_key = functools.lru_cache(maxsize=64)(device_key)
