"""Puts a plan pack in force: entries that fit this machine's devices and plugins are used; others are reported once."""

from __future__ import annotations

import functools
import io
import json
import threading
import warnings
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

from ...api import settings
from ...api.errors import ConvDispatchWarning, InvalidArgument
from ...device import plainfile, runtime
from ...device.cache import artifact_store, keys
from ...device.cache.artifact_store import Gathered
from ..plugins.loader import plugins
from .reading import FORMAT_VERSION, MANIFEST, TEXTS, PackFile, read


class LoadedPack:
    """A pack in force until ``close()``, or the end of a ``with`` block; plans made from it stay cached."""

    def __init__(self, file: PackFile, misfits: tuple[str, ...]) -> None:
        self.name, self.misfits = file.name, misfits
        """The pack's path, and a sentence for each of its entries that does not fit this machine."""
        self._file = file
        artifact_store.put_in_force(file)

    def close(self) -> None:
        """Take the pack out of force."""
        artifact_store.take_out_of_force(self._file)

    def __enter__(self) -> LoadedPack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_pack(path: str | Path) -> LoadedPack:
    """Put a plan pack (``convdispatch pack``) in force: its problems are planned as it says, without ranking or
    compiling, also inside ``frozen()``.

    What does not fit (the device, its driver, a plugin's version) is chosen and compiled anew, with one warning that
    says what and why. Raises InvalidArgument for a file that is no pack.
    """
    here = [keys.identity(device) for device in runtime.devices()]
    file = read(path, lambda identity: identity in here)
    misfits = _misfits(file, here)
    if misfits:
        words = (
            f"the plan pack {path} does not fit: {'; '.join(misfits)}. What does not fit is chosen and compiled anew"
        )
        warnings.warn(words, ConvDispatchWarning, stacklevel=2)
    if file.weights:
        threading.Thread(target=_check, args=(file,), name="convdispatch-pack", daemon=True).start()
    return LoadedPack(file, tuple(misfits))


@functools.cache
def from_environment() -> None:
    """Put in force, once a process, what ``CONVDISPATCH_PACK`` names: one pack, or several with the path separator."""
    for path in settings.PACK.value():
        load_pack(path)


def _misfits(file: PackFile, here: list[dict[str, str]]) -> list[str]:
    """Return a sentence for each entry that does not fit; decisions and weights of changed plugins are removed from the
    pack."""
    misfits = []
    if file.identity not in here:
        name = file.identity.get("device")
        like = next((device for device in here if device["device"] == name), None)
        if like is None:
            misfits.append(f"it is for {name}, the devices here are {', '.join(device['device'] for device in here)}")
        else:
            fields = [field for field in like if like[field] != file.identity.get(field)]
            misfits.append(
                "; ".join(f"the {field} of {name} was {file.identity.get(field)}, is {like[field]}" for field in fields)
            )
    loaded = plugins()
    changed = {}
    for plugin, version in file.plugins.items():
        installed = loaded.fingerprints.get(plugin)
        if installed != version:
            changed[plugin] = "is not here" if installed is None else f"was {version}, is {installed}"
    misfits += [f"plugin {plugin} {change}" for plugin, change in changed.items()]
    if changed:
        file.without("decisions", lambda key: loaded.provider(file.decisions[key]["solver"]) not in changed)
        file.without("weights", lambda key: loaded.provider(key.partition(" ")[0]) not in changed)
    return misfits


def _check(file: PackFile) -> None:
    """Compare packed weights with their checksums, in the background."""
    for member in file.weights:
        file.content(member)


def write(path: str | Path, gathered: Gathered) -> int:
    """Write a pack, whole or not at all; returns its bytes. Raises InvalidArgument if it cannot be written."""
    loaded = plugins()
    used = {decision["solver"] for decision in gathered.tables["decisions"].values()}
    manifest: dict[str, Any] = {
        "plan pack": FORMAT_VERSION,
        "device": gathered.identity,
        "plugins": {loaded.provider(solver): loaded.fingerprint(solver) for solver in sorted(used)},
        "decisions": gathered.tables["decisions"],
        "forms": gathered.tables["forms"],
        "programs": {},
        "weights": {},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for table in ("programs", "weights"):
            for index, (key, value) in enumerate(sorted(gathered.tables[table].items())):
                # An entry without bytes states that packed weights of a kind exist; it has no archive member.
                member = manifest[table][key] = f"{table}/{index}.bin" if len(value) else ""
                if member:
                    out.writestr(zipfile.ZipInfo(member), memoryview(value).cast("B"), zipfile.ZIP_STORED)
        for name, texts in ((TEXTS, gathered.tables["texts"]), (MANIFEST, manifest)):
            out.writestr(zipfile.ZipInfo(name), json.dumps(texts, sort_keys=True), zipfile.ZIP_DEFLATED)
    try:
        plainfile.publish(path, content.getvalue())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the plan pack {path} cannot be written: {error}") from None
    return len(content.getvalue())
