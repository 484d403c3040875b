"""Which solvers the rules prefer for a problem: the registry's first match, and before packaged rules the plugins' own.

The user's rules stand before all. Then a plugin may put its own solvers in front, by a ``registry.yaml`` in its
package; several plugins share the places. Then come the packaged rules. A registry that replaces these replaces both.
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
    """The solvers that one name, glob or family of a rule means share ``place``, 0 for the first."""

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
        named = self.glob if globs == (self.glob,) else f"{self.glob} ({', '.join(globs)})"
        return f"{where} prefers {named} for {when or 'everything'}"

    def means(self, solver: str) -> bool:
        """Return whether the rule selects ``solver``; a derived solver only if the glob includes it, because rewriting
        has a cost."""
        if self.plugin is not None and plugins().provider(solver) != self.plugin:
            return False
        return any(
            ("+" in glob or "+" not in solver) and fnmatch.fnmatchcase(solver, glob)
            for glob in self.rule.globs(self.glob)
        )

    def means_derived(self) -> bool:
        """Whether derived solvers may be meant."""
        return any("+" in glob for glob in self.rule.globs(self.glob))


def preferred(problem: ConvProblem, device: DeviceInfo) -> list[Preferred]:
    """Return the solvers that the matching rules prefer, the most preferred first. Raises InvalidPolicy."""
    rules, order = registry(), []
    first = rules.rule(problem, device)
    if rules.own is not None and first not in rules.rules[: rules.own]:
        matching = {name: shipped.rule(problem, device) for name, shipped in plugins().rules.items()}
        for name, rule in matching.items():
            order += [Preferred(i, glob, rule, name) for i, glob in enumerate(rule.prefer if rule else ())]
    after = 1 + max((one.place for one in order), default=-1)
    order += [Preferred(after + i, glob, first) for i, glob in enumerate(first.prefer if first else ())]
    return sorted(order, key=lambda one: one.place)
