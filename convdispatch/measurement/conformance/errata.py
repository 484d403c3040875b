"""Tries errata again, each in a child process: the checks of the kit at the problems that an entry names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...device import runtime
from ...selection.choice.set_aside import listed_errata, not_here, seen_errata
from ...selection.plugins.errata import Erratum
from ...selection.plugins.loader import plugins
from .levels import Case
from .outcome import Outcome
from .verify import TIMEOUT_S
from .workers import run

LEVEL = "erratum"
"""The level of the cases that an entry names: every configuration of a solver runs, the entry itself passed over."""


@dataclass(frozen=True)
class Trial:
    """What became of an erratum that was tried again."""

    erratum: Erratum
    state: str
    """``holds``; ``over``: what it sets aside computes right here; ``untried``: it cannot be tried on this machine."""
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON values."""
        named = asdict(self.erratum) | {"problems": [str(one) for one in self.erratum.problems]}
        named["when"] = [str(one) for one in self.erratum.when]
        return {**named, "state": self.state, "tried": self.reason}


def tries(device: Any = None, timeout_s: float = TIMEOUT_S) -> Iterator[Trial]:
    """Each erratum of the files, and each fault that this machine remembers, tried again on a device."""
    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    for one in (*listed_errata(), *seen_errata(info)):
        why = not_here(one, info) or (None if one.problems else "it names no problem to try")
        yield Trial(one, "untried", why) if why else _tried(one, chosen, timeout_s)


def _tried(erratum: Erratum, device: Any, timeout_s: float) -> Trial:
    cases = [Case(f"problem {number}", problem, LEVEL) for number, problem in enumerate(erratum.problems, 1)]
    names = [name for name in plugins().solvers if erratum.names(name)] or [erratum.solver]
    outcomes: list[Outcome] = []

    def heard(_: Case, ended: list[Outcome]) -> bool:
        outcomes.extend(ended)
        return True

    for plugin in sorted({plugins().provider(name) for name in names}):
        setup = {"plugin": plugin, "device": runtime.address(device), "solver": erratum.solver}
        setup |= {"derived": "+" in erratum.solver, "retried": erratum.where}
        run(cases, setup, 1, timeout_s, heard)
    for one in outcomes:
        if one.status == "failed":
            return Trial(erratum, "holds", f"{one.solver} {one.problem}: {one.reason}")
    passed = sum(one.status == "passed" for one in outcomes)
    if passed:
        return Trial(erratum, "over", f"{passed} of {len(outcomes)} problems were computed, and all of them right")
    return Trial(erratum, "untried", next((one.reason for one in outcomes), "nothing was computed"))
