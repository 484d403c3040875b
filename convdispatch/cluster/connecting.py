"""A client of a scheduler, and the kinds of device that its workers offer."""

from __future__ import annotations

import contextlib
import fnmatch
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..api.device import DeviceInfo
from ..api.errors import ConvDispatchError, NoDevice
from .offers import Offer, offer_of_worker
from .requirements import distributed, hint, why
from .serving import local_cluster

CONNECT_S = 20.0


@dataclass
class Kind:
    """One kind of device, and the workers that offer it: Dask's address to what each offers."""

    key: str
    device: DeviceInfo
    workers: dict[str, Offer] = field(default_factory=dict)

    @property
    def places(self) -> set[str]:
        """The places of the devices; two workers may offer the same device."""
        return {offer.place for offer in self.workers.values()}


@contextlib.contextmanager
def connected(client: Any = None, security: Any = None) -> Iterator[Any]:
    """Inside the block a ``distributed.Client``: the argument itself, a new one for a scheduler's address, or for None
    one for workers of this machine's devices, which end with the block. Raises ConvDispatchError."""
    package = distributed()
    if isinstance(client, package.Client):
        yield client
        return
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(local_cluster()) if client is None else str(client)
        try:
            with _without_garbage_collection():
                connection = package.Client(address, security=security, timeout=CONNECT_S, set_as_default=False)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            message = f"no scheduler can be used at {address} ({why(error)}); {hint(address, security)}"
            raise ConvDispatchError(message) from error
        stack.callback(connection.close, timeout=2)
        yield connection


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect garbage before the block, and none inside it: the end of an earlier client that could not connect takes
    the lock that the start of the next one holds, and a collection within that start would wait for ever."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Workers:
    """The workers of a client that offer devices; ``look`` updates them, because workers come and go."""

    def __init__(self, client: Any, devices: Sequence[str] | str | None = None) -> None:
        self._client = client
        self._chosen = None if devices in (None, "all") else [devices] if isinstance(devices, str) else list(devices)
        self._offers: dict[str, Offer | None] = {}
        self.other_versions: set[str] = set()

    def look(self) -> dict[str, Kind]:
        """The kinds of device that workers offer now and that were requested, by key."""
        from .. import __version__

        present = list(self._client.scheduler_info(n_workers=-1)["workers"])
        new = [address for address in present if address not in self._offers]
        if new:
            offers = self._client.run(offer_of_worker, workers=new, on_error="ignore")
            self._offers |= {a: Offer(**{**v, "cores": tuple(v["cores"])}) if v else None for a, v in offers.items()}
        self._offers = {address: offer for address, offer in self._offers.items() if address in set(present)}
        kinds: dict[str, Kind] = {}
        for address, offer in self._offers.items():
            if offer is None or not self._wanted(offer):
                continue
            if offer.version != __version__:
                self.other_versions.add(f"{offer.place} runs convdispatch {offer.version}, this is {__version__}")
                continue
            kinds.setdefault(offer.key, Kind(offer.key, offer.device)).workers[address] = offer
        return kinds

    def first(self) -> dict[str, Kind]:
        """The kinds of device, as ``look`` returns them. Raises NoDevice where there are none."""
        kinds = self.look()
        if not kinds:
            offered = sorted({offer.key for offer in self._offers.values() if offer is not None})
            why = "; ".join(sorted(self.other_versions)) or (f"offered are {', '.join(offered)}" if offered else "")
            condition = f" that {self._chosen} names" if self._chosen else ""
            raise NoDevice(
                f"no worker of the cluster offers a device{condition}{f': {why}' if why else ''}; `convdispatch worker "
                "ADDRESS` offers a machine's"
            )
        return kinds

    def _wanted(self, offer: Offer) -> bool:
        if self._chosen is None:
            return True
        texts = (offer.key, offer.info["vendor"], offer.info["type"], offer.info["name"].lower())
        return any(
            fnmatch.fnmatchcase(word, choice.lower()) or choice.lower() in word
            for choice in self._chosen
            for word in texts
        )
