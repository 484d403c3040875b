"""Starts schedulers and workers, as processes of Dask, and runs them until they are stopped.

A worker is a process for each device; Dask's nanny restarts it when it dies. Everything listens only on 127.0.0.1
unless another address is given, because whoever reaches a scheduler can run code on all its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..api.errors import ConvDispatchError
from .offers import Offer
from .requirements import distributed, hint, why

LOOPBACK = "127.0.0.1"
CLOSE_S = 6.0
CONNECT_S = 60.0
"""Seconds within which a worker must reach its scheduler, and for which it stays after the scheduler is gone."""


def serve(
    *,
    address: str | None = None,
    offers: Sequence[Offer] = (),
    host: str = LOOPBACK,
    port: int = 8786,
    security: Any = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Run workers for ``offers`` at the scheduler of an address, or a scheduler of our own and its workers.

    The process should end by ``os._exit`` afterwards: threads of Dask's may be left that wait for the other side.
    ``ready`` is told the scheduler's address once all have registered. Ends by SIGINT, SIGTERM, or when all workers
    have ended. Raises ConvDispatchError where a port is taken or no scheduler answers.
    """
    # The workers' processes inherit the variable, which sets Dask's log level.
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")
    package = distributed()
    # ``asyncio.run`` is not used, because it would wait for the threads in which Dask watches its processes.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        own = {"host": host, "port": port} if address is None else None
        loop.run_until_complete(_serve(package, address, own, offers, security, ready))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        if address is None:
            raise ConvDispatchError(f"no scheduler can listen on {host}:{port}: {why(error)}") from error
        raise ConvDispatchError(
            f"no scheduler can be used at {address} ({why(error)}); {hint(address, security)}"
        ) from error


async def _serve(
    package: Any, address: str | None, own: dict[str, Any] | None, offers: Sequence[Offer], security: Any, ready: Any
) -> None:
    """Run workers at a scheduler's address, or at a new scheduler on a host and port."""
    stop = asyncio.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        if own is not None:
            protocol = "tls" if security is not None else "tcp"
            options = {"protocol": protocol, "security": security, "dashboard_address": f"{LOOPBACK}:0"}
            scheduler = package.Scheduler(**own, **options)
            stack.push_async_callback(_within, scheduler.close)
            await scheduler
            address = scheduler.address
        nannies = [_nanny(package, address, offer, security) for offer in offers]
        stack.push_async_callback(_close, nannies)
        starting = asyncio.gather(*nannies)
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            starting.cancel()
            return
        starting.result()
        ready(address)
        ends = [asyncio.ensure_future(_ended(nanny)) for nanny in nannies]
        watched = {stopping, asyncio.gather(*ends)} if ends else {stopping}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)


async def _close(nannies: Sequence[Any]) -> None:
    await asyncio.gather(*(_within(nanny.close) for nanny in nannies))


async def _within(close: Callable[[], Any]) -> None:
    """Close within CLOSE_S, because two sides that close at the same time may wait for each other."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(close(), CLOSE_S)


async def _ended(nanny: Any) -> None:
    await nanny.finished()


def _nanny(package: Any, address: str, offer: Offer, security: Any) -> Any:
    scheduler = urlsplit(address).hostname or LOOPBACK
    local = scheduler in (LOOPBACK, "localhost", "::1")
    # A Dask worker listens on the network interface by which it reaches the scheduler, not on all interfaces.
    host = LOOPBACK if local else package.utils.get_ip(scheduler, urlsplit(address).port or 8786)
    return package.Nanny(
        address,
        host=host,
        nthreads=offer.tasks,
        resources={offer.resource: offer.tasks},
        name=f"{offer.place}#{os.getpid()}",
        memory_limit=0,
        security=security,
        death_timeout=CONNECT_S,
        preload=["convdispatch.cluster.worker"],
        preload_argv=[offer.text()],
        dashboard_address=f"{LOOPBACK}:0",
        local_directory=None,
    )


@contextlib.contextmanager
def local_cluster(devices: Sequence[str] = ()) -> Iterator[str]:
    """Inside the block the address of a new scheduler on a free port, with a worker for each device of this machine.

    ``devices`` are what ``runtime.find_device`` takes; all that work, where there is none. Raises ConvDispatchError.
    """
    chosen = [word for device in devices for word in ("--device", device)]
    command = [sys.executable, "-m", "convdispatch", "cluster", "--local", "--port", "0", "--json", *chosen]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise ConvDispatchError(f"no cluster could be started here: it ended with status {process.wait()}")
        yield json.loads(line)["address"]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
