"""The offer of a worker: one device of this machine, its kind as a Dask resource, and processors that compile.

A worker serves one device and offers a Dask resource that is named after the device's kind (``device_key``) and this
package's version. Each task needs 1 of it, so that its amount is the number of concurrent tasks. Only one task measures
at a time (``worker.exclusive``); if the worker has processors for compilation, the next task compiles meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import NoDevice

COMPILERS = 3
"""The most processors per GPU that compile while it is measured: a search of some seconds needs no more."""


@dataclass(frozen=True)
class Offer:
    """One device that a worker offers. All fields are JSON values, because offers are sent between processes."""

    key: str
    """The key of the kind of device."""
    address: str
    """The text by which ``find_device`` finds the device on its machine."""
    place: str
    """The machine and the device's address in one word, which no other device has."""
    info: dict[str, Any]
    """The fields of the device's DeviceInfo."""
    compilers: int
    """The number of processors that compile the next task's candidates while the device measures."""
    version: str

    @property
    def device(self) -> DeviceInfo:
        """Return the device as the DeviceInfo that solvers get."""
        tuples = {"max_work_item_sizes": tuple(self.info["max_work_item_sizes"])}
        return DeviceInfo(**{**self.info, **tuples, "extensions": frozenset(self.info["extensions"])})

    @property
    def tasks(self) -> int:
        """The tasks that the worker runs at once: the one that measures, and one that compiles."""
        return 2 if self.compilers else 1

    @property
    def resource(self) -> str:
        """The name of Dask's resource; workers of another version of this package offer another one."""
        return f"{self.key} {self.version}"

    @property
    def silicon(self) -> str:
        """The name of the hardware on which the device's work runs, which all CPU runtimes of a machine share."""
        return "cpu" if self.info["type"] == "cpu" else f"{self.info['platform']} {self.address}"

    def text(self) -> str:
        """The offer as JSON text, which ``Offer(**json.loads(text))`` reads."""
        return json.dumps(asdict(self))


def offers_of_this_machine(choices: Sequence[str] = (), compilers: int | None = None, machine: str = "") -> list[Offer]:
    """Offers for this machine's working devices that ``choices`` name; without names for all but simulators.

    ``compilers`` is the number of processors that compile for each GPU during measurements; a CPU has none, because all
    its processors measure. ``machine`` is the machine's name, by default its host name. Raises NoDevice if none works.
    """
    from .. import __version__
    from ..device import runtime
    from ..selection.records.record import device_key

    if choices:
        chosen = list(dict.fromkeys(runtime.find_device(choice) for choice in choices))
    else:
        chosen = [d for d in runtime.devices() if runtime.device_info(d).vendor != "oclgrind" and not runtime.probe(d)]
    if not chosen:
        # ``default_device`` raises NoDevice, whose message says what is wrong with each device.
        runtime.default_device()
        raise NoDevice("only a simulator works here, which is offered where --device names it")
    machine = machine or platform.node() or "localhost"
    gpus = sum(runtime.device_info(device).type != "cpu" for device in chosen)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spare = max(0, cores - gpus)  # Each GPU's measuring process has a processor core of its own.
    offers = []
    for device in chosen:
        info = runtime.device_info(device)
        share = 0 if info.type == "cpu" else min(COMPILERS, spare // max(1, gpus))
        address = runtime.address(device)
        offers.append(
            Offer(
                key=device_key(info),
                address=address,
                place=f"{machine}/{address}",
                info={**asdict(info), "extensions": sorted(info.extensions)},
                compilers=share if compilers is None or info.type == "cpu" else compilers,
                version=__version__,
            )
        )
    return offers
