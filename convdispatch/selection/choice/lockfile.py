"""A lock file fixes which solver and configuration runs each problem of a net, on every machine and in every run.

``convdispatch find --lock FILE`` writes one, ``CONVDISPATCH_LOCK=FILE`` puts it in force, and ``find --lock FILE
--check`` fails when today's decisions differ. JSON, sorted, one problem a line, so that version control shows changes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...api import settings
from ...api.errors import ConvDispatchError, InvalidArgument, InvalidPolicy
from ...api.policy import forbid_when_frozen
from ...api.problem import ConvProblem
from ...device import jsontext, plainfile

SCHEMA = 1


@dataclass(frozen=True)
class Decision:
    """The decision for one problem: a solver and one of its configurations."""

    solver: str
    config: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.solver} {json.dumps(dict(self.config), sort_keys=True)}"


def read(path: str | Path) -> dict[str, Decision]:
    """The decisions of a lock file by problem text. Raises InvalidPolicy naming the file and what is wrong."""
    try:
        values = jsontext.loads(plainfile.read_text(path))
    except OSError as error:
        raise InvalidPolicy(f"the lock file {path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise InvalidPolicy(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except ValueError as error:
        # A lock file that is not UTF-8, is nested too deep or has too long a number raises ValueError.
        raise InvalidPolicy(f"the lock file {path} cannot be read: {error}") from error
    if not isinstance(values, dict) or values.get("schema") != SCHEMA or not isinstance(values.get("problems"), dict):
        raise InvalidPolicy(f"{path} is no lock file of schema {SCHEMA}: write it with convdispatch find --lock")
    decisions = {}
    for text, entry in values["problems"].items():
        if not isinstance(entry, dict) or not isinstance(entry.get("solver"), str):
            raise InvalidPolicy(f"{path}: {text} names no solver")
        config = entry.get("config", {})
        if not isinstance(config, dict):
            raise InvalidPolicy(f"{path}: the configuration of {text} is a mapping, got {config!r}")
        try:
            decisions[str(ConvProblem.parse(text))] = Decision(entry["solver"], config)
        except ConvDispatchError as error:
            raise InvalidPolicy(f"{path}: {error}") from None
    return decisions


def write(path: str | Path, decisions: Mapping[str, Decision]) -> None:
    """Write a lock file, whole or not at all. Raises InvalidArgument if the file cannot be written."""
    lines = ",\n".join(
        f"{json.dumps(text)}: {json.dumps({'solver': d.solver, 'config': dict(d.config)}, sort_keys=True)}"
        for text, d in sorted(decisions.items())
    )
    try:
        plainfile.publish(path, f'{{"schema": {SCHEMA}, "problems": {{\n{lines}\n}}}}\n', durable=True)
    except (OSError, ValueError) as error:  # A path that contains a NUL character raises ValueError.
        raise InvalidArgument(f"the lock file {path} cannot be written: {error}") from None


def drift(locked: Mapping[str, Decision], today: Iterable[tuple[str, Decision]]) -> list[str]:
    """Return a sentence for each problem whose present decision differs from the locked one."""
    differences = []
    for text, decision in today:
        locked_decision = locked.get(text)
        if locked_decision is None:
            differences.append(f"{text}: not locked, today {decision}")
        elif (locked_decision.solver, dict(locked_decision.config)) != (decision.solver, dict(decision.config)):
            differences.append(f"{text}: locked {locked_decision}, today {decision}")
    return differences


@functools.lru_cache(maxsize=8)
def _known(path: Path) -> dict[str, Decision]:
    forbid_when_frozen("read the lock file")
    return read(path)


_agreed: dict[str, Decision] = {}


def agree(decisions: Mapping[str, Decision]) -> None:
    """Fix decisions that several processes took together, by problem text; they come before this process's own file."""
    _agreed.update(decisions)


def in_force(problem: ConvProblem) -> tuple[Decision, str] | None:
    """The decision that ``agree`` or ``CONVDISPATCH_LOCK`` fixes for a problem, and what did; None if nothing does."""
    path = settings.LOCK.value()
    text = str(problem) if _agreed or path else ""
    if text in _agreed:
        return _agreed[text], "of all ranks"
    decision = _known(path).get(text) if path else None
    return None if decision is None else (decision, str(path))
