"""The module that Dask loads when a worker starts: it reads the worker's offer and starts its child processes."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

import click

from .children import Children
from .offers import Offer


@click.command()
@click.argument("offer")
def dask_setup(worker: Any, offer: str) -> None:
    """Dask calls this function, by its name, when a worker starts.

    SIGINT is ignored, because Ctrl-C reaches all processes of a terminal; the command that started the worker ends it.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    values = json.loads(offer)
    worker.convdispatch_offer = Offer(**{**values, "cores": tuple(values["cores"])})
    worker.convdispatch_children = Children(worker.convdispatch_offer)
