"""Which layout was fastest for a net, stored so that the next process builds one form only.

A choice is an entry of the store's table ``forms``, under what the net computes, what it is for, and the
circumstances (``selection.decision_store``). It is final when two measurements agree that nothing disturbed. One made
while the machine did other work is used for some time and judged anew. It bears on time alone, never on results, so
nothing that is damaged or missing is an error. It is not stored while a policy is in force.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pyopencl as cl

from ..api.policy import Policy, current_policy
from ..device.cache.keys import key_of
from ..device.cache.store import FORMS
from ..device.runtime import device_info
from ..selection import decision_store
from .form_benchmark import Verdict
from .graph import Graph, Ref, is_planned, operands
from .lower import problem_of
from .passes.layout import LAYOUTS

ENOUGH = 2
"""The number of consecutive measurements that must name the same form before the choice is final."""
CALM = 0.15
"""The most that other work may add to a run, as a fraction, for a measurement to be final."""
NOISY_RECALLS = 8
"""After this many builds a choice from noisy measurements is measured again, so that a wrong choice under load does not
last."""
LOWERING = "lowering 2"
"""Changes whenever graphs become other commands than before, so that choices among earlier forms are timed again."""


def choice_key(graph: Graph, queue: cl.CommandQueue, purpose: str) -> str | None:
    """Return the key under which a choice for this graph is stored; None if it must not be stored."""
    if replace(current_policy(), tier=None) != Policy():
        return None
    return decision_store.key(device_info(queue.device), key_of(purpose, *described(graph)))


def described(graph: Graph) -> list[str]:
    """Return a text for each operation that a net computes."""
    descriptions = [LOWERING]
    for node in graph.nodes:
        shapes = [ref.shape for ref in operands(node.result) if isinstance(ref, Ref)]
        descriptions.append(str(problem_of(node)) if is_planned(node) else f"{node.name}{shapes}")
    return descriptions


@dataclass(frozen=True)
class Choice:
    """A form, the number of consecutive measurements that named it, and the noise of the last measurement."""

    layout: str | None
    """The form's layout; where engines were timed, the engine's name."""
    votes: int = 0
    noise: float = 0.0
    recalls: int = 0
    """The number of builds of this choice without a measurement since the last one."""

    @property
    def is_final(self) -> bool:
        """Whether it may be built alone: two measurements agree, and if they were noisy, not too long ago."""
        return self.votes >= ENOUGH and (self.noise <= CALM or self.recalls < NOISY_RECALLS)


def load(key: str, names: Sequence[str | None] = (None, *LAYOUTS)) -> Choice | None:
    """What is known of a net's forms, which are called ``names``; None for nothing. A final choice of a noisy machine
    counts its uses."""
    stored = FORMS.get(key)
    with contextlib.suppress(ValueError, TypeError):
        choice = Choice(**(stored or {}))
        numbers = (choice.votes, choice.recalls)
        if not all(type(n) is int and 0 <= n <= 1 << 30 for n in numbers):
            return None
        if choice.layout not in names or not 0 <= float(choice.noise) < 1e9:
            return None
        if choice.is_final and choice.noise > CALM:
            _write(key, replace(choice, recalls=choice.recalls + 1))
        return choice
    return None


def store(key: str, layout: str | None, verdict: Verdict, before: Choice | None) -> None:
    """Keep what a measurement found: its two series are two votes where they agree and nothing disturbed them, one
    where something did, none where they disagree."""
    votes = (2 if verdict.noise <= CALM else 1) if verdict.agreed else 0
    if before is not None and before.layout == layout and votes:
        votes += min(before.votes, ENOUGH)
    _write(key, Choice(layout, votes, round(verdict.noise, 4)))


def _write(key: str, choice: Choice) -> None:
    FORMS.put(key, asdict(choice))
