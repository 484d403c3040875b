"""Which layout and how many queues were fastest for a net, kept on disk, so that the next process builds one form only.

A choice rests on the device and its driver, on what the net computes, on the plugins, rules, measurements and lock file
that choose its plans: where any of them differs, forms are timed again. It bears on time alone, never on results, so
nothing that is damaged or missing is an error. It is not kept while a policy is in force.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ..api.policy import Policy, current_policy
from ..device.runtime import device_info
from ..selection.loader import plugins
from ..selection.records.packs import publish
from ..selection.records.perfdb import user_folder
from ..selection.registry import registry_path
from .graph import Graph, Ref, operands
from .layout import LAYOUTS
from .lower import is_planned, problem_of

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["key_of", "recall", "remember"]


def key_of(graph: Graph, queue: cl.CommandQueue) -> str | None:
    """What a choice for this graph is kept under; None where none is to be kept."""
    if current_policy() != Policy():
        return None
    info = device_info(queue.device)
    parts = [str(info), info.driver, str(info.compute_units), *sorted(plugins().solvers)]
    parts += [f"{loaded.name} {loaded.version}" for loaded in plugins().report]
    parts += [_stamp(registry_path()), _stamp(user_folder()), _stamp(os.environ.get("CONVDISPATCH_LOCK"))]
    for node in graph.nodes:
        shapes = [ref.shape for ref in operands(node.result) if isinstance(ref, Ref)]
        parts.append(str(problem_of(node)) if is_planned(node) else f"{node.name}{shapes}")
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part};".encode())
    return digest.hexdigest()[:40]


def _stamp(path: Path | str | None) -> str:
    """A file, or a folder's files, as they were last written."""
    if not path:
        return ""
    place = Path(path)
    with contextlib.suppress(OSError):
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        return ";".join(f"{file.name} {file.stat().st_mtime_ns}" for file in files)
    return "none"


def _file(key: str) -> Path:
    return Path(platformdirs.user_cache_dir("convdispatch")) / "forms" / f"{key}.json"


def recall(key: str) -> tuple[str | None, int] | None:
    """The layout and the most queues that were fastest; None where nothing is known."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        held = json.loads(_file(key).read_text(encoding="utf-8"))
        layout, queues = held["layout"], held["queues"]
        if layout in (None, *LAYOUTS) and isinstance(queues, int) and 1 <= queues <= 64:
            return layout, queues
    return None


def remember(key: str, layout: str | None, queues: int) -> None:
    """Keep a choice; a folder that cannot be written keeps none."""
    with contextlib.suppress(OSError):
        publish(_file(key), json.dumps({"layout": layout, "queues": queues}) + "\n")
