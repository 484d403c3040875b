"""Common parts of the reports of the conformance kit and the benchmark: the environment of a run, and their files."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ..api.device import DeviceInfo
from ..api.errors import InvalidArgument
from ..device import jsontext, plainfile
from ..selection.records.record import device_key, now

T = TypeVar("T")


def versions(names: Sequence[str]) -> dict[str, str]:
    """The versions of those of these packages that are installed."""
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def environment(device: DeviceInfo, packages: Sequence[str] = ("convdispatch", "pyopencl", "numpy")) -> dict[str, Any]:
    """The environment of a run as JSON values: device, driver and versions, without names of persons or hosts."""
    fields = asdict(device)
    del fields["extensions"]
    return {
        "created": now()[:19] + "Z",
        "device": fields | {"title": str(device), "key": device_key(device)},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": versions(packages),
    }


def read_report(path: Path, from_json: Callable[[Any], T]) -> T:
    """The report of a JSON file. Raises InvalidArgument, which names the file."""
    try:
        return from_json(jsontext.loads(plainfile.read_text(path)))
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from error
