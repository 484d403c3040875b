"""Runs candidates in a child process first, so that a candidate that crashes or hangs ends only the child.

The child is ``python -m convdispatch.measurement.search.probing``: it verifies a candidate as a search does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyopencl as cl

from ...api.fault_text import words
from ...device.child import answer, questions
from ..farm import Died, NotStarted, RestartingChild

START_S = 60.0
"""Seconds that a child may take to load its plugins and open the device."""
RUN_S = 60.0
"""Seconds that one candidate may take in the child, compilation included. They do not count against the search's
budget, so that a candidate that hangs takes no time from the others."""
LOST = "in a child process: "
"""The beginning of the reason of a failure, if the candidate ended the child process or hung."""


class Prober:
    """A child process that tries candidates for one problem on one device; restarted after a death."""

    def __init__(self, problem: Any, device: Any, workspace_limit: int | None = None) -> None:
        from ...device import runtime

        setup = {"problem": str(problem), "device": runtime.address(device), "workspace_limit": workspace_limit}
        self._child = RestartingChild(__name__, setup, start_s=START_S)

    def ask(self, solver: str, config: Mapping[str, Any], timeout_s: float = RUN_S) -> tuple[str, str]:
        """Try a candidate: ``("right", "")``, or ``wrong``, ``failed`` or ``refused`` with the reason."""
        try:
            reply = self._child.answer({"solver": solver, "config": dict(config)}, timeout_s)
        except NotStarted as death:
            return "failed", f"the child process did not start: {death}"
        except Died as death:
            return "failed", f"{LOST}{death}"
        return reply["status"], reply["reason"]

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _serve() -> None:
    """The child process: it reads a line of setup, then one candidate on each line."""
    from ...api.problem import ConvProblem
    from ...device import runtime

    lines = questions()
    setup = next(lines)
    problem, device = ConvProblem.parse(setup["problem"]), runtime.find_device(setup["device"])
    harness: list[Any] = []
    limit = setup["workspace_limit"]
    answer({"status": "ready", "reason": ""})
    for request in lines:
        answer(_try(problem, device, request, harness, limit))
        # A lost device would fail every later candidate, so the process ends; the next candidate gets a new one.
        if runtime.probe.__wrapped__(device):
            return


def _try(problem: Any, device: Any, candidate: dict[str, Any], harness: list[Any], limit: int | None) -> dict[str, str]:
    from ...device import runtime
    from ...selection import dispatch
    from ...selection.derivation import named
    from ...selection.plugins.loader import plugins
    from .trial import Harness, WrongResult

    try:
        solver = named(candidate["solver"], plugins().solvers)
        prepared = dispatch.make(solver, candidate["config"], problem, runtime.context(device))
        if limit is not None and prepared.workspace_size > limit:
            return {"status": "right", "reason": ""}  # The search refuses this plan because of its workspace.
        if not harness:
            harness.append(Harness(problem, cl.CommandQueue(runtime.context(device))))
        harness[0].verify(prepared)
    except WrongResult as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:  # The parent process gets the error, and decides what it means for the candidate.
        return {"status": "failed", "reason": words(error)}
    return {"status": "right", "reason": ""}


if __name__ == "__main__":
    _serve()
