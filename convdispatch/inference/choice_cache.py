"""Which layout and how many queues were fastest for a net, kept on disk, so that the next process builds one form only.

A choice rests on the device and its driver, on what the net computes, on the text of the kernels and of what chooses
among them, on the plugins, rules, measurements and lock file: where any of them differs, forms are timed again. It is
final when two measurements agree that nothing disturbed. One made while the machine did other work is used for some
time and judged anew, and so is one whose form, when it is used, is much faster than it was when it was judged: steady
work of others leaves no other mark. It bears on time alone, never on results, so nothing that is damaged or missing is
an error. It is not kept while a policy is in force.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from ..api import settings
from ..api.policy import Policy, current_policy
from ..device import jsontext, plainfile
from ..device.runtime import device_info
from ..selection.plugins.loader import plugins
from ..selection.plugins.registry import registry_path
from ..selection.records.perfdb import user_folder
from ..selection.records.record_files import publish
from .form_benchmark import Verdict
from .graph import Graph, Ref, is_planned, operands
from .lower import problem_of
from .passes.layout import LAYOUTS, MIXED

if TYPE_CHECKING:
    import pyopencl as cl

ENOUGH = 2
"""Measurements in a row that must name the same form."""
CALM = 0.15
"""The most that other work may add to a run, as a fraction, for a measurement to be final."""
NOISY_RECALLS = 8
"""A choice of noisy measurements is built so often, then judged anew: what was wrong under load does not stay."""
CONTRADICTS = 0.75
"""Of the time at which a form was judged: if it then takes less, it was judged on a machine that did other work."""
_WATCHED = 5
"""Calls with NumPy arrays, each waited for, that are timed after a form was built unmeasured."""
_PARTS = ("api", "device", "elementwise", "inference", "nn", "selection")
"""What of this package decides how fast a net's forms are, beside its plugins."""


def key_of(graph: Graph, queue: cl.CommandQueue, purpose: str) -> str | None:
    """What a choice for this graph is kept under; None where none is to be kept."""
    if replace(current_policy(), tier=None) != Policy():
        return None
    info = device_info(queue.device)
    parts = [purpose, str(info), info.driver, str(info.compute_units), *sorted(plugins().solvers)]
    parts += [f"{loaded.name} {loaded.version}" for loaded in plugins().report]
    parts += [f"{name} {text}" for name, text in sorted(plugins().fingerprints.items())] + [_own_texts()]
    parts += [_stamp(registry_path()), _stamp(user_folder()), _stamp(settings.LOCK.value())]
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
        files = [file for file in files if "__pycache__" not in file.parts]
        return ";".join(f"{file.name} {file.stat().st_mtime_ns}" for file in files)
    return "none"


@functools.lru_cache(maxsize=1)
def _own_texts() -> str:
    """This package's kernels, and what chooses among them, as they were last written: an edit is no new version."""
    home, loaded = Path(__file__).parent.parent, plugins()
    modules = [loaded.manager.get_plugin(name) for name in sorted(loaded.own)]
    folders = [home / part for part in _PARTS]
    folders += [Path(module.__file__).parent for module in modules if getattr(module, "__file__", None)]
    return " ".join(_stamp(folder) for folder in folders)


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
    ms: float = 0.0
    """What a call took when it was measured; 0 where that is not known."""

    @property
    def is_final(self) -> bool:
        """Whether it may be built alone: two measurements agree, and if they were noisy, not too long ago."""
        return self.votes >= ENOUGH and (self.noise <= CALM or self.recalls < NOISY_RECALLS)


def load(key: str) -> Choice | None:
    """What is known of a net's forms; None for nothing. A final choice of a noisy machine counts its uses."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        held = Choice(**jsontext.loads(plainfile.read_text(_file(key))))
        numbers = (held.queues, held.votes, held.recalls)
        if not all(type(n) is int and 0 <= n <= 1 << 30 for n in numbers) or not 1 <= held.queues <= 64:
            return None
        if held.layout not in (None, *LAYOUTS, MIXED) or not all(0 <= float(n) < 1e9 for n in (held.noise, held.ms)):
            return None
        if held.is_final and held.noise > CALM:
            _write(key, replace(held, recalls=held.recalls + 1))
        return held
    return None


def store(key: str, layout: str | None, queues: int, verdict: Verdict, before: Choice | None) -> None:
    """Keep what a measurement found: its two series are two votes where they agree and nothing disturbed them, one
    where something did, none where they disagree. A folder that cannot be written keeps none."""
    votes = (2 if verdict.noise <= CALM else 1) if verdict.agreed else 0
    if before is not None and (before.layout, before.queues) == (layout, queues) and votes:
        votes += min(before.votes, ENOUGH)
    _write(key, Choice(layout, queues, votes, round(verdict.noise, 4), ms=round(verdict.ms[verdict.best], 4)))


class Watch:
    """Times the first calls of a form that was built unmeasured; one that contradicts its choice has forms judged anew
    when the net is built the next time."""

    def __init__(self, key: str, choice: Choice) -> None:
        self.key, self.choice, self.left, self.least = key, choice, _WATCHED, float("inf")

    def call(self, net: Any, inputs: Any, change: Any) -> Any:
        """The results of ``net``, an ``InferenceNet``, as its ``call_on_host`` answers them."""
        start = time.perf_counter()
        answer = net.call_on_host(inputs, change)
        self.left, self.least = self.left - 1, min(self.least, 1e3 * (time.perf_counter() - start))
        if self.left <= 0 and net.watch is self:
            net.watch = None
            if self.least < CONTRADICTS * self.choice.ms:
                _write(self.key, replace(self.choice, votes=0))
        return answer

    def pin(self, net: Any) -> None:
        """This form stays in any case."""


def _write(key: str, choice: Choice) -> None:
    with contextlib.suppress(OSError):
        publish(_file(key), json.dumps(asdict(choice)) + "\n")
