"""Which solvers the rules prefer for a problem: the registry's first match, and before packaged rules the plugins' own.

The user's rules come first. Then come the rules of plugins, each of which may prefer its own solvers by a
``registry.yaml`` in its package; then the packaged rules. A user's registry without ``include`` replaces both.
"""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass

from ...api.device import DeviceInfo
from ...api.problem import ConvProblem
from ..plugins.loader import plugins
from ..plugins.registry import Rule, packaged_path, registry


@dataclass(frozen=True)
class Preferred:
    """One name, glob or family of a rule; all solvers that it selects share ``place``, 0 for the first."""

    place: int
    glob: str
    rule: Rule
    plugin: str | None = None
    """The plugin whose solvers the name, glob or family selects; None for those of all plugins."""

    def __str__(self) -> str:
        packaged = packaged_path()
        where = self.rule.where.removeprefix(f"{packaged.parent}{os.sep}" if packaged else "")
        when = ", ".join(map(str, self.rule.when))
        globs = self.rule.globs(self.glob)
        name_text = self.glob if globs == (self.glob,) else f"{self.glob} ({', '.join(globs)})"
        return f"{where} prefers {name_text} for {when or 'everything'}"

    def selects(self, solver: str) -> bool:
        """Return whether the rule selects ``solver``; a derived solver only if the glob includes it, because rewriting
        has a cost."""
        if self.plugin is not None and plugins().provider(solver) != self.plugin:
            return False
        return any(
            ("+" in glob or "+" not in solver) and fnmatch.fnmatchcase(solver, glob)
            for glob in self.rule.globs(self.glob)
        )

    def may_select_derived(self) -> bool:
        """Whether the glob may select derived solvers."""
        return any("+" in glob for glob in self.rule.globs(self.glob))


def preferred(problem: ConvProblem, device: DeviceInfo) -> list[Preferred]:
    """Return the solvers that the matching rules prefer, the most preferred first. Raises InvalidPolicy."""
    rules, order = registry(), []
    first_rule = rules.rule(problem, device)
    if rules.own is not None and first_rule not in rules.rules[: rules.own]:
        matching = {name: shipped.rule(problem, device) for name, shipped in plugins().rules.items()}
        for name, rule in matching.items():
            order += [Preferred(i, glob, rule, name) for i, glob in enumerate(rule.prefer if rule else ())]
    offset = 1 + max((entry.place for entry in order), default=-1)
    order += [Preferred(offset + i, glob, first_rule) for i, glob in enumerate(first_rule.prefer if first_rule else ())]
    return sorted(order, key=lambda one: one.place)
