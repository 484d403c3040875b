"""A gathered collection to a file."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ...api.errors import InvalidArgument
from ...device.cache.artifact_store import Gathered
from ..plugins.loader import plugins
from .reading import FORMAT_VERSION, MANIFEST, TEXTS


def write(path: str | Path, gathered: Gathered) -> int:
    """Write a pack, whole or not at all; returns its bytes. Raises InvalidArgument if it cannot be written."""
    target = Path(path)
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
    try:
        handle, temporary_path = tempfile.mkstemp(suffix=".part", dir=target.resolve().parent)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the plan pack {path} cannot be written: {error}") from None
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
            for table in ("programs", "weights"):
                for index, (key, content) in enumerate(sorted(gathered.tables[table].items())):
                    member = f"{table}/{index}.bin"
                    manifest[table][key] = member
                    # An entry without bytes states that packed weights of a kind exist; it has no archive member.
                    if not len(content):
                        manifest[table][key] = ""
                        continue
                    out.writestr(zipfile.ZipInfo(member), memoryview(content).cast("B"), zipfile.ZIP_STORED)
            for name, value in ((TEXTS, gathered.tables["texts"]), (MANIFEST, manifest)):
                out.writestr(zipfile.ZipInfo(name), json.dumps(value, sort_keys=True), zipfile.ZIP_DEFLATED)
        Path(temporary_path).replace(target)
    except BaseException as error:
        Path(temporary_path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InvalidArgument(f"the plan pack {path} cannot be written: {error}") from None
        raise
    return target.stat().st_size
