"""Work on many devices of many machines by Dask's scheduler: each pair of a problem and a kind of device is a task.

``convdispatch cluster`` and ``convdispatch worker`` start a scheduler and a process for each device; ``find_many`` and
the commands with ``--cluster`` use them. A new kind of work is a function that ``worker.call`` gets. Dask is an extra,
``pip install 'convdispatch[cluster]'``, which is imported only when it is needed.

- ``requirements``: Dask's package, its certificates, and advice if no scheduler can be used.
- ``offers``: what a worker offers: one device, its kind as Dask's resource, processors that compile.
- ``serving``: starts schedulers and workers and ends them.
- ``worker``: the start of a worker, and the functions of its tasks.
- ``measuring``: the child process of a worker, which searches.
- ``running``: submits tasks and collects their results, while workers come and go.
- ``finding``: ``find_many``: searches by workers, recorded here.
- ``verifying``: the conformance kit on every kind of device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .finding import find_many
    from .serving import local_cluster

__all__ = ["find_many", "local_cluster"]


def __getattr__(name: str) -> Any:
    if name == "find_many":
        from .finding import find_many

        return find_many
    if name == "local_cluster":
        from .serving import local_cluster

        return local_cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
