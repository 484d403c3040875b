"""A search in a separate background process, with compilers, locks and contexts of its own.

The parent sends a device, then on each line a problem and the incumbent, which is the choice that runs it now; the
child replies with records. It runs at low priority, and reports a device that had other work meanwhile, which it
recognises by the incumbent's times: they vary, or differ from a last sample at the end.
"""

from __future__ import annotations

from typing import Any

from ..api.policy import Policy, policy
from ..api.problem import ConvProblem
from ..api.results import Results
from ..device.child import answer, ends_with_parent, questions
from ..selection.plugins.loader import plugins
from ..selection.records.record import LEAST_SAMPLES, choice_text

MODULE = __name__
LEAST_GAIN = 1.05
"""A candidate must be this many times faster than the solver in use to replace it, because times differ between
queues."""
MAX_SPREAD = 1.5
"""The highest ratio of slow to quick samples of the solver in use on a device without other work."""


def disturbance(results: Results, incumbent: str) -> str:
    """The evidence for other work on the device, from the times of the solver in use; empty if they are steady."""
    for result in results:
        timed = result.p20 and result.count >= LEAST_SAMPLES and choice_text(result.solver, result.config) == incumbent
        if timed and result.p80 > MAX_SPREAD * result.p20:
            return f"the device had other work: {result.solver} took {result.p20:.3g} to {result.p80:.3g} ms"
    return ""


def worth(results: Results, incumbent: str) -> list[bool]:
    """For each result, whether it is recorded; one that is faster than the incumbent by less than LEAST_GAIN is not."""
    incumbent_ms = next((r.median_ms for r in results if choice_text(r.solver, r.config) == incumbent), None)
    return [
        incumbent_ms is None
        or r.median_ms is None
        or r.median_ms >= incumbent_ms
        or r.median_ms * LEAST_GAIN <= incumbent_ms
        or choice_text(r.solver, r.config) == incumbent
        for r in results
    ]


def _serve() -> None:
    from ..device import runtime

    lines = questions()
    device = runtime.find_device(next(lines)["device"])
    answer({"ready": True, "may_halt": ends_with_parent()})
    for request in lines:
        answer(_search(device, **request))


def _search(device: Any, problem: str, incumbent: str, promises: dict[str, bool], budget_ms: float) -> dict[str, Any]:
    # ``search`` is imported here, because the parent process imports this module but never searches.
    from .search import Search

    with policy(**promises):
        chosen = Policy(**promises).selection
        search = Search(ConvProblem.parse(problem), device, chosen, budget_ms=budget_ms, incumbent=incumbent)
        results = search.run()
        results.inconclusive = "; ".join(filter(None, (results.inconclusive, disturbance(results, incumbent))))
        worthwhile = Results(r for r, keep in zip(results, worth(results, incumbent)) if keep)
        vars(worthwhile).update(vars(results))
        return {
            "records": [record.to_json() for record in search.records(worthwhile)],
            "unsound": {solver: [plugins().fingerprint(solver), what] for solver, what in search.unsound.items()},
        }


if __name__ == "__main__":
    _serve()
