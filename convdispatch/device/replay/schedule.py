"""Assigns the steps of a program to queues, and determines the steps that each must wait for.

Branches that do not depend on each other may overlap; on many devices only if they are on different queues. A step goes
to the queue of a step it depends on if that is the queue's last one, so that chains need no events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..commands.recording import Command


@dataclass(frozen=True)
class Step:
    """Commands, as indices into the recording, that run in a row on one queue."""

    key: int
    queue: int
    commands: tuple[int, ...]
    after: tuple[int, ...] = ()
    """Keys of the steps on other queues for which the step waits."""
    awaited: bool = False
    """Whether a step on another queue waits for this one."""
    starts: bool = False
    """Whether the step depends on no other and is on another queue than the first, for whose commands it must wait."""


@dataclass(frozen=True)
class Schedule:
    """Steps in the order in which they are enqueued; ``regions`` are ranges of commands that may overlap in time."""

    steps: tuple[Step, ...]
    queues: int
    regions: tuple[tuple[int, int], ...] = ()

    @classmethod
    def single(cls, commands: Sequence[Command]) -> Schedule:
        """A schedule of all commands on one queue, in order."""
        return cls((Step(0, 0, tuple(range(len(commands)))),), 1)

    @classmethod
    def branches(cls, commands: Sequence[Command], needs: Mapping[int, Sequence[int]], queues: int) -> Schedule:
        """A schedule on at most ``queues`` queues; ``needs`` are the earlier steps that each step depends on.

        Commands name their step; steps without commands (views) pass their dependences on. The last step is on the
        first queue and waits for everything, so that its event is the program's.
        """
        members: dict[int, list[int]] = {}
        for index, command in enumerate(commands):
            members.setdefault(command.step, []).append(index)
        direct = _direct(sorted(members), needs)
        queue_of, last_on = _assign(direct, queues)
        if not queue_of or len(set(queue_of.values())) == 1:
            return cls.single(commands)
        final = max(queue_of)
        if queue_of[final] != 0:  # renumber the queues, so that the last step's queue has the number 0
            swap = {0: queue_of[final], queue_of[final]: 0}
            queue_of = {key: swap.get(queue, queue) for key, queue in queue_of.items()}
            last_on = {swap.get(queue, queue): key for queue, key in last_on.items()}
        after = {key: tuple(n for n in direct[key] if queue_of[n] != queue_of[key]) for key in direct}
        unawaited = tuple(key for queue, key in last_on.items() if queue != 0 and key not in after[final])
        after[final] = (*after[final], *unawaited)
        awaited = {needed for keys in after.values() for needed in keys}
        steps = tuple(
            Step(key, queue, tuple(members[key]), after[key], key in awaited, starts=queue > 0 and not direct[key])
            for key, queue in queue_of.items()
        )
        return cls(steps, max(queue_of.values()) + 1, _regions(direct, members))


def _direct(present: Sequence[int], needs: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """For each step with commands, the nearest steps with commands that it depends on."""
    with_commands = set(present)

    def nearest(key: int, seen: set[int]) -> set[int]:
        dependences = set()
        for needed in needs.get(key, ()):
            if needed in with_commands:
                dependences.add(needed)
            elif needed not in seen:
                seen.add(needed)
                dependences |= nearest(needed, seen)
        return dependences

    return {key: tuple(sorted(nearest(key, set()))) for key in present}


def _assign(direct: Mapping[int, Sequence[int]], queues: int) -> tuple[dict[int, int], dict[int, int]]:
    queue_of: dict[int, int] = {}
    last_on: dict[int, int] = {}
    for key, needed in direct.items():
        chained = [queue_of[n] for n in reversed(needed) if last_on[queue_of[n]] == n]
        free = [q for q in range(queues) if q not in last_on or _done(last_on[q], key, direct)]
        queue = chained[0] if chained else free[0] if free else queue_of[needed[-1]] if needed else 0
        queue_of[key] = queue
        last_on[queue] = key
    return queue_of, last_on


def _done(step: int, key: int, direct: Mapping[int, Sequence[int]]) -> bool:
    """Whether ``key`` depends on ``step``, directly or indirectly, so that the queue of ``step`` is free by then."""
    unvisited, seen = list(direct[key]), set()
    while unvisited:
        ancestor = unvisited.pop()
        if ancestor == step:
            return True
        if ancestor not in seen and ancestor > step:
            seen.add(ancestor)
            unvisited += direct[ancestor]
    return False


def _regions(direct: Mapping[int, Sequence[int]], members: Mapping[int, Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of commands that may overlap: those between steps that are ordered with respect to all other steps."""
    order = list(direct)
    ancestors: dict[int, set[int]] = {}
    for key in order:
        ancestors[key] = set(direct[key]).union(*(ancestors[n] for n in direct[key]))
    descendants = {key: sum(key in ancestors[later] for later in order) for key in order}
    cuts = [len(ancestors[key]) + descendants[key] == len(order) - 1 for key in order]
    regions, overlapping = [], []
    for key, cut in [*zip(order, cuts, strict=True), (None, True)]:
        if cut:
            if overlapping:
                indices = [place for k in overlapping for place in members[k]]
                regions.append((min(indices), max(indices)))
            overlapping = []
        else:
            overlapping.append(key)
    return tuple(regions)
