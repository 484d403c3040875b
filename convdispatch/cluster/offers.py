"""The offer of a worker: one device of this machine, its kind as a Dask resource, and processors that compile.

A worker serves one device and offers the resource that is named after the device's kind (``device_key``), of which
each task needs 1: as much as tasks may run there at a time. One alone measures (``exclusive``); where a worker has
processors to compile on, the next task compiles meanwhile.
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

QUEUED = 2
"""The most tasks that a worker has: the one that it measures, and the next."""
COMPILERS = 3
"""The most processors per GPU that compile while it is measured: a search of some seconds needs no more."""


@dataclass(frozen=True)
class Offer:
    """One device that a worker offers. In JSON values, for it travels from process to process."""

    key: str
    """The key of the kind of device."""
    address: str
    """The text by which ``find_device`` finds the device on its machine."""
    place: str
    """The machine and the device's address in one word, which no other device has."""
    info: dict[str, Any]
    """The fields of the device's DeviceInfo."""
    compilers: int
    cores: tuple[int, ...]
    """The processors that compile while the device measures; if empty, any processor may."""
    version: str

    @property
    def device(self) -> DeviceInfo:
        """Return the device as the DeviceInfo that solvers get."""
        tuples = {"max_work_item_sizes": tuple(self.info["max_work_item_sizes"])}
        return DeviceInfo(**{**self.info, **tuples, "extensions": frozenset(self.info["extensions"])})

    @property
    def resources(self) -> dict[str, float]:
        """Dask's resources of the worker."""
        return {self.key: QUEUED if self.compilers else 1}

    @property
    def silicon(self) -> str:
        """What the device's work runs on: all CPU runtimes of a machine share its processors."""
        return "cpu" if self.info["type"] == "cpu" else f"{self.info['platform']} {self.address}"

    def text(self) -> str:
        """JSON, which ``Offer(**json.loads(text))`` reads."""
        return json.dumps(asdict(self))


def offers_of_this_machine(choices: Sequence[str] = (), compilers: int | None = None, machine: str = "") -> list[Offer]:
    """The devices of this machine that work and that ``choices`` name, all but simulators where nothing is named.

    ``compilers`` is the number of processors a GPU to compile on while it is measured; for a CPU none, whose processors
    measure. ``machine`` names the machine, by default as the network does. Raises NoDevice where none works.
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
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    free = cores[gpus:]  # Each GPU's measuring process has a processor core of its own.
    offers = []
    for device in chosen:
        info = runtime.device_info(device)
        share = 0 if info.type == "cpu" else min(COMPILERS, len(free) // max(1, gpus))
        address = runtime.address(device)
        offers.append(
            Offer(
                key=device_key(info),
                address=address,
                place=f"{machine}/{address}",
                info={**asdict(info), "extensions": sorted(info.extensions)},
                compilers=share if compilers is None or info.type == "cpu" else compilers,
                cores=tuple(free),
                version=__version__,
            )
        )
    return offers


def offer_of_worker(dask_worker: Any = None) -> dict[str, Any] | None:
    """What the worker that runs this offers; None where it is another's worker."""
    offer = getattr(dask_worker, "convdispatch_offer", None)
    return None if offer is None else asdict(offer)
