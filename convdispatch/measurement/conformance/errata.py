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
"""The level of the cases that an erratum names: every configuration of a solver runs, and the erratum is ignored."""


@dataclass(frozen=True)
class Trial:
    """The result of trying an erratum again."""

    erratum: Erratum
    state: str
    """``holds``: the fault occurs; ``over``: all results are right; ``untried``: this machine cannot try it."""
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON values."""
        fields = asdict(self.erratum) | {"problems": [str(item) for item in self.erratum.problems]}
        fields["when"] = [str(item) for item in self.erratum.when]
        return {**fields, "state": self.state, "tried": self.reason}


def tries(device: Any = None, timeout_s: float = TIMEOUT_S) -> Iterator[Trial]:
    """Try each erratum of the files, and each stored fault of this machine, again on a device."""
    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    for erratum in (*listed_errata(), *seen_errata(info)):
        obstacle = not_here(erratum, info) or (None if erratum.problems else "it names no problem to try")
        yield Trial(erratum, "untried", obstacle) if obstacle else _try_again(erratum, chosen, timeout_s)


def _try_again(erratum: Erratum, device: Any, timeout_s: float) -> Trial:
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
    for outcome in outcomes:
        if outcome.status == "failed":
            return Trial(erratum, "holds", f"{outcome.solver} {outcome.problem}: {outcome.reason}")
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    if passed:
        return Trial(erratum, "over", f"{passed} of {len(outcomes)} problems were computed, and all of them right")
    return Trial(erratum, "untried", next((outcome.reason for outcome in outcomes), "nothing was computed"))
