"""Dask's package ``distributed``, imported when it is first needed, and its certificates."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ..api.errors import ConvDispatchError, InvalidArgument


def distributed() -> Any:
    """Return the package ``distributed``, set to print only warnings and errors on standard error.

    Raises ConvDispatchError where it is not installed.
    """
    try:
        package = importlib.import_module("distributed")
    except ImportError as error:
        raise ConvDispatchError(f"a cluster needs Dask: pip install 'convdispatch[cluster]' ({error})") from error
    for name in ("distributed", "distributed.core", "distributed.nanny", "distributed.scheduler", "distributed.worker"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Messages of the Dask client are suppressed, because ``Run`` itself reports a scheduler that goes away.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    return package


def security(ca_file: str | None = None, cert: str | None = None, key: str | None = None) -> Any:
    """Dask's Security with these files (PEM) for scheduler, workers and clients alike; None without any of them.

    Raises InvalidArgument where one of the three is missing.
    """
    if not (ca_file or cert or key):
        return None
    if not (ca_file and cert and key):
        raise InvalidArgument("TLS needs all three: --tls-ca-file, --tls-cert and --tls-key")
    names = {f"tls_{role}_{what}": file for role in ("scheduler", "worker", "client")
             for what, file in (("cert", cert), ("key", key))}  # fmt: skip
    return distributed().Security(tls_ca_file=ca_file, require_encryption=True, **names)


def why(error: BaseException) -> str:
    """The first line of the root cause of an error of Dask."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def hint(address: str, security: Any) -> str:
    """Advice if no scheduler can be used at an address."""
    if address.startswith("tls://"):
        files = "" if security else ": --tls-ca-file, --tls-cert and --tls-key name the files"
        return f"who listens there wants a certificate that its authority signed and this side trusts{files}"
    if security is not None:
        return "with certificates its address begins with tls://"
    return (
        "`convdispatch cluster --local` starts one; one that has certificates is at tls://..., and --tls-... name ours"
    )
