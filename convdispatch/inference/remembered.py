"""Which layout and how many queues were fastest for a net, kept on disk, so that the next process builds one form only.

A choice rests on the device and its driver, on what the net computes, on the plugins, rules, measurements and lock file
that choose its plans: where any of them differs, forms are timed again. It is final when two measurements agree that
nothing disturbed; one made while the machine did other work is used for some time and judged anew. It bears on time
alone, never on results, so nothing that is damaged or missing is an error. It is not kept while a policy is in force.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
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
from .judging import Verdict
from .layout import LAYOUTS
from .lower import is_planned, problem_of

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Choice", "described", "key_of", "note", "recall"]

ENOUGH = 2
"""Measurements in a row that must name the same form."""
CALM = 0.15
"""The most that other work may add to a run, as a fraction, for a measurement to be final."""
NOISY_RECALLS = 8
"""A choice of noisy measurements is built so often, then judged anew: what was wrong under load does not stay."""


def key_of(graph: Graph, queue: cl.CommandQueue, purpose: str) -> str | None:
    """What a choice for this graph is kept under; None where none is to be kept."""
    if current_policy() != Policy():
        return None
    info = device_info(queue.device)
    parts = [purpose, str(info), info.driver, str(info.compute_units), *sorted(plugins().solvers)]
    parts += [f"{loaded.name} {loaded.version}" for loaded in plugins().report]
    parts += [_stamp(registry_path()), _stamp(user_folder()), _stamp(os.environ.get("CONVDISPATCH_LOCK"))]
    parts += described(graph)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part};".encode())
    return digest.hexdigest()[:40]


def described(graph: Graph) -> list[str]:
    """What a net computes, an operation a text."""
    found = []
    for node in graph.nodes:
        shapes = [ref.shape for ref in operands(node.result) if isinstance(ref, Ref)]
        found.append(str(problem_of(node)) if is_planned(node) else f"{node.name}{shapes}")
    return found


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


@dataclass(frozen=True)
class Choice:
    """A form, how many measurements in a row named it, and how noisy the last was."""

    layout: str | None
    queues: int
    votes: int = 0
    noise: float = 0.0
    recalls: int = 0
    """How often it was built unmeasured since the last measurement."""

    @property
    def is_final(self) -> bool:
        """Whether it may be built alone: two measurements agree, and if they were noisy, not too long ago."""
        return self.votes >= ENOUGH and (self.noise <= CALM or self.recalls < NOISY_RECALLS)


def recall(key: str) -> Choice | None:
    """What is known of a net's forms; None for nothing. A final choice of a noisy machine counts its uses."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        held = Choice(**json.loads(_file(key).read_text(encoding="utf-8")))
        numbers = (held.queues, held.votes, held.recalls)
        if not all(type(n) is int and 0 <= n <= 1 << 30 for n in numbers) or not 1 <= held.queues <= 64:
            return None
        if held.layout not in (None, *LAYOUTS) or not 0 <= float(held.noise) < float("inf"):
            return None
        if held.is_final and held.noise > CALM:
            _write(key, replace(held, recalls=held.recalls + 1))
        return held
    return None


def note(key: str, layout: str | None, queues: int, verdict: Verdict, before: Choice | None) -> None:
    """Keep what a measurement found: its two series are two votes where they agree and nothing disturbed them, one
    where something did, none where they disagree. A folder that cannot be written keeps none."""
    votes = (2 if verdict.noise <= CALM else 1) if verdict.agreed else 0
    if before is not None and (before.layout, before.queues) == (layout, queues) and votes:
        votes += min(before.votes, ENOUGH)
    _write(key, Choice(layout, queues, votes, round(verdict.noise, 4)))


def _write(key: str, choice: Choice) -> None:
    with contextlib.suppress(OSError):
        publish(_file(key), json.dumps(asdict(choice)) + "\n")
