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


def read_reports(path: Path, from_json: Callable[[Any], T]) -> list[T]:
    """The report of a JSON file, or those of all kinds of device of a cluster.

    Raises InvalidArgument, which names the file.
    """
    try:
        values = jsontext.loads(plainfile.read_text(path))
        if values == []:
            raise InvalidArgument("it holds no report")
        return [from_json(report) for report in (values if isinstance(values, list) else [values])]
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from error


def only(reports: Sequence[T], path: Path) -> T:
    """The one report of a file. Raises InvalidArgument."""
    if len(reports) != 1:
        raise InvalidArgument(f"{path} holds the reports of {len(reports)} kinds of device, where one was expected")
    return reports[0]
