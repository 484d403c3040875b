"""``cluster`` and ``worker``: a farm of devices by Dask, and the options by which other commands use one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from .interrupts import leave
from .options import stderr
from .output import echo

_TLS = (
    click.option(
        "--tls-ca-file", type=click.Path(exists=True, dir_okay=False), default=None, help="Authorities to trust, PEM."
    ),
    click.option(
        "--tls-cert", type=click.Path(exists=True, dir_okay=False), default=None, help="This side's certificate, PEM."
    ),
    click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), default=None, help="Its private key, PEM."),
)
_DEVICES = click.option(
    "--device", "devices", multiple=True, metavar="NAME", help="Offer this device, as elsewhere named; else all here."
)
_NAME = click.option("--name", default="", help="What to call this machine, where other machines have the same name.")
_COMPILERS = click.option(
    "--compilers", type=click.IntRange(min=0), default=None, help="Processors a GPU that compile meanwhile. Default: 3."
)


def TLS(command: Callable[..., Any]) -> Callable[..., Any]:
    """Dask's options for TLS."""
    for option in reversed(_TLS):
        command = option(command)
    return command


def CLUSTER(command: Callable[..., Any]) -> Callable[..., Any]:
    """The scheduler whose workers do the work, and the options for TLS."""
    option = click.option(
        "--cluster",
        metavar="ADDRESS",
        default=None,
        help="Let the workers of this Dask scheduler do it (tcp://HOST:8786), on every kind of device they offer.",
    )
    return option(TLS(command))


def security_of(options: dict[str, Any]) -> Any:
    """Take the options for TLS out of ``options``: Dask's Security, or None."""
    from ...cluster.requirements import security

    return security(*(options.pop(name) for name in ("tls_ca_file", "tls_cert", "tls_key")))


@click.command()
@click.option("--local", is_flag=True, help="Also start a worker for each device of this machine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen there. Who reaches it runs code here.")
@click.option("--port", type=click.IntRange(0, 65535), default=8786, show_default=True, help="0: any that is free.")
@_DEVICES
@_COMPILERS
@_NAME
@TLS
@click.option("--json", "as_json", is_flag=True, help="Print the address and what is offered as one line of JSON.")
def cluster(local: bool, host: str, port: int, devices: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Start a Dask scheduler, print its address, and serve until Ctrl-C.

    Dask takes Python's pickles: whoever reaches the scheduler runs code as you on every worker. It listens on this
    machine alone unless --host says otherwise; then use TLS (docs/use/choose-algorithms.md).
    """
    from ...cluster.offers import offers_of_this_machine
    from ...cluster.serving import serve

    if devices and not local:
        raise click.UsageError("--device names what --local offers")
    security = security_of(options)
    offers = offers_of_this_machine(devices, options["compilers"], options["name"]) if local else []
    if host not in ("127.0.0.1", "localhost", "::1") and security is None:
        stderr().print(f"whoever reaches {host}:{port} can run code as you here and on every worker: use --tls-*")

    def ready(address: str) -> None:
        if as_json:
            echo(json.dumps({"address": address, "devices": [offer.place for offer in offers]}))
            return
        echo(f"scheduler at {address}")
        for offer in offers:
            echo(f"worker for {offer.key} at {offer.place}")
        echo(f"more workers: convdispatch worker {address}; work: convdispatch find NET --cluster {address}")

    serve(offers=offers, host=host, port=port, security=security, ready=ready)
    leave(0)


@click.command()
@click.argument("address")
@_DEVICES
@_COMPILERS
@_NAME
@TLS
def worker(address: str, devices: tuple[str, ...], compilers: int | None, name: str, **options: Any) -> None:
    """Offer this machine's devices to the Dask scheduler at ADDRESS (tcp://HOST:8786) until Ctrl-C.

    A process a device, which is started again when it dies. Tasks are code: use a scheduler that you trust.
    """
    from ...cluster.offers import offers_of_this_machine
    from ...cluster.serving import serve

    security = security_of(options)
    offers = offers_of_this_machine(devices, compilers, name)

    def ready(at: str) -> None:
        for offer in offers:
            echo(f"{offer.place} offers {offer.key} at {at}")

    serve(address=address, offers=offers, security=security, ready=ready)
    leave(0)
