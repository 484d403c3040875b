"""The child process in which a worker measures: one search for each request; a crash or hang costs one candidate."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

from ..api.errors import ConvDispatchError, ConvDispatchWarning
from ..api.policy import Policy
from ..api.problem import ConvProblem
from ..api.results import Result, Results
from ..device.child import answer, questions

_FIELDS = ("verdict", "spent_ms", "peak_bytes", "conditions", "inconclusive")


def to_json(results: Results) -> dict[str, Any]:
    """Results without their device, as JSON values."""
    rows = [asdict(result) | {"config": dict(result.config)} for result in results]
    tie = [results.index(result) for result in results.tie]
    return {"rows": rows, "problem": str(results.problem), "tie": tie, **{n: getattr(results, n) for n in _FIELDS}}


def from_json(values: dict[str, Any]) -> Results:
    """The results that ``to_json`` wrote; the caller sets their device."""
    rows = [Result(**{**row, "ci": tuple(row["ci"]) if row["ci"] else None}) for row in values["rows"]]
    results = Results(rows)
    results.problem = ConvProblem.parse(values["problem"])
    results.tie = tuple(rows[index] for index in values["tie"])
    for name in _FIELDS:
        setattr(results, name, values[name])
    return results


def _serve() -> None:
    """The child process: it reads the device, then on each line a problem, its limits and the candidates to leave
    out."""
    from ..device import runtime

    lines = questions()
    try:
        device = runtime.find_device(next(lines)["device"])
        _calibrate(device)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for request in lines:
        try:
            reply = _search(device, **request)
        except (ConvDispatchError, MemoryError) as error:
            reply = {"failure": str(error) or type(error).__name__}
        lost = runtime.probe.__wrapped__(device)
        if lost:
            answer({"lost": lost})
            return
        answer(reply)


def _search(device: Any, problem: str, without: dict[str, str], lift: bool, **limits: Any) -> dict[str, Any]:
    from ..device import runtime
    from ..device.size_limits import problem_must_fit
    from ..measurement.search import Search
    from ..selection.plugins import verdicts
    from ..selection.plugins.loader import plugins

    parsed = ConvProblem.parse(problem)
    problem_must_fit(parsed, runtime.device_info(device))
    if lift:
        verdicts.lift(parsed)
    watch = lambda name: answer({"at": name})  # noqa: E731
    search = Search(parsed, device, Policy(), isolate=False, watch=watch, without=without, **limits)
    results = search.run()
    return {
        "results": to_json(results),
        "records": [record.to_json() for record in search.records(results)],
        "unsound": {solver: [plugins().fingerprint(solver), what] for solver, what in search.unsound.items()},
    }


def _calibrate(device: Any) -> None:
    """Measure the device's rates, once for each machine, because the order of candidates depends on them."""
    from ..device import runtime
    from ..device.rates import rates, switched_off
    from ..measurement.calibration import calibrate

    info = runtime.device_info(device)
    if rates(info).measured or switched_off() or info.vendor == "oclgrind":
        return
    try:
        calibrate(device)
    except (OSError, ConvDispatchError) as error:
        warnings.warn(f"the device's rates stay estimated: {error}", ConvDispatchWarning, stacklevel=2)


if __name__ == "__main__":
    _serve()
