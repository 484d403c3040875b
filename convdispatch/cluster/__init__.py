"""Many devices on many machines by Dask's distributed scheduler: problems × kinds of device become tasks.

On the one side ``offers`` (what a worker has to offer) → ``serving`` (schedulers and workers); on the other
``connecting`` (a client, the kinds of device there are) → ``running`` (tasks out, answers in, while workers come and
go; ``placing`` says which goes where) → ``finding``, ``verifying``. ``tasks`` is what a worker runs, ``children`` the
processes in which it measures (``measuring``) and compiles, ``calling`` the one for longer commands.
Dask is an extra: ``pip install 'convdispatch[cluster]'``. Nothing of it is imported before it is asked for.
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
