"""How many wrong kernels the kit catches at each level, and in what time: those of the tests' mutant plugin.

    CONVDISPATCH_PLUGIN_DIR=tests/support/mutant_plugin python bench/kit_mutants.py

``UNSEEN`` were written after the cases were fixed: they say what the kit does with slips that nobody made cases for.
Time is the processor's, of each level for the sound kernels, which compute every float32 case in two dimensions.
"""

from __future__ import annotations

import collections
import json
import sys
import time

from convdispatch.measurement.conformance import levels
from convdispatch.measurement.conformance.session import Kit
from convdispatch.selection.plugins.loader import plugins


def caught_at(kit: Kit, name: str) -> tuple[str, str, int]:
    """The level of the first case that fails, the check it fails, and how many cases lay in the corner."""
    solver, cases = kit.solvers[name], 0
    for case in levels.cases():
        if solver.rejects(case.problem, kit.info):
            continue
        cases += 1
        outcome = kit.examine(solver, case)
        if outcome.status == "failed":
            return case.level, f"{outcome.check} of {case.name}", cases
    return "", "", cases


def main() -> None:
    """Print JSON."""
    kit = Kit("mutants")
    module = sys.modules[type(plugins().solvers["mutant.sound"]).__module__]
    found = {"version": levels.VERSION, "cases": len(levels.cases())}
    for title, names in (("listed", module.MUTANTS), ("unseen", module.UNSEEN), ("adding", module.ADDING)):
        rows = {name: caught_at(kit, f"mutant.{name}") for name in names}
        count = collections.Counter(level for level, _, _ in rows.values())
        found[title] = {"of": len(rows), "first caught at": dict(count), "rows": rows}
    sound, spent = kit.solvers["mutant.sound"], {}
    for level in levels.LEVELS[:3] if "--time" in sys.argv else ():
        began = time.process_time()
        for case in levels.cases(level):
            kit.examine(sound, case)
        spent[level] = round(time.process_time() - began, 1)
    print(json.dumps(found | {"seconds": spent}, indent=1))


if __name__ == "__main__":
    main()
