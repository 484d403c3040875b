"""A Session in a child process, so that a kernel that crashes, hangs or loses the device costs one candidate.

The child says which candidate or peer it is at. When it dies, or is silent for too long, that one is left out with the
reason, and a new child measures the problem again. The device, its ceilings and the peers are the child's; this process
opens nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ....api.errors import ConvDispatchError
from ....api.problem import ConvProblem
from ....device.child import answer, questions
from ....measurement.farm import Died, NotStarted, OutOfTime, RestartingChild, outlive
from ..report import Measured, without_folders

__all__ = ["OutOfTime", "Worker"]


class Worker:
    """Session's methods, each answered by a child, which is started when it is needed.

    ``setup`` is what Session takes, in JSON values: ``device``, ``peers``, ``solver``, ``search``, ``budget_ms``,
    ``every_solver``, ``record``. A candidate that says nothing for ``silent_s`` seconds hangs. After ``until``
    (``time.monotonic``) every question raises OutOfTime.
    """

    def __init__(self, setup: Mapping[str, Any], silent_s: float, until: float | None = None) -> None:
        self._silent_s = silent_s
        self._child = RestartingChild(__name__, setup, until=until)
        try:
            hello = self._child.start()
        except NotStarted as died:
            raise ConvDispatchError(f"no process to measure in could be started: {died}") from died
        self.settings: dict[str, Any] = hello["settings"]
        self.missing: dict[str, str] = hello["missing"]

    def roof(self, dtype: str) -> dict[str, Any]:
        """The ceilings of a dtype. Raises ConvDispatchError when they cannot be measured."""
        try:
            return self._ask({"ask": "roof", "dtype": dtype})
        except Died as died:
            raise ConvDispatchError(f"the ceilings could not be measured: {died}") from died

    def measure(self, problem: ConvProblem, say: Callable[[str], None] = lambda words: None) -> Measured:
        """Measure a problem; ``say`` is called with the name of each candidate."""
        began, without = time.monotonic(), dict[str, str]()

        def ask(died: dict[str, str]) -> dict[str, Any]:
            without.update({name: without_folders(reason) for name, reason in died.items()})
            return self._ask({"ask": "measure", "problem": str(problem), "without": without}, say)

        try:
            return Measured.from_json(outlive(ask))
        except (Died, ConvDispatchError) as error:
            reason = without_folders(str(error))
        deaths = f"{len(without)} candidates took their process with them: {', '.join(without)}; " if without else ""
        lost = Measured(str(problem), problem.flops, problem.bytes)
        lost.failure, lost.spent_ms = f"{deaths}the last process: {reason}", (time.monotonic() - began) * 1e3
        return lost

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _ask(self, question: dict[str, Any], say: Callable[[str], None] = lambda words: None) -> Any:
        try:
            reply = self._child.answer(question, self._silent_s, say)
        except NotStarted as died:
            raise ConvDispatchError(f"no process to measure in could be started: {died}") from died
        if "error" in reply:
            raise ConvDispatchError(reply["error"])
        return reply["answer"]


# --- code that runs in the child process -----------------------------------------------------------------------------


def _serve() -> None:
    from ....device import runtime
    from ....measurement.peaks import measure_roof
    from . import peers as peer_modules
    from .session import Session

    lines = questions()
    setup = next(lines)
    try:
        device = runtime.find_device(setup.pop("device"))
        peers, missing = peer_modules.load(setup.pop("peers"), runtime.device_info(device))
        session = Session(device, peers=peers, watch=lambda name: answer({"at": name}), **setup)
    except Exception as error:
        answer({"error": str(error)})
        return
    answer({"settings": session.settings, "missing": missing})
    for request in lines:
        try:
            match request["ask"]:
                case "roof":
                    result: Any = asdict(measure_roof(device, request["dtype"]))
                case "measure":
                    result = asdict(session.measure(ConvProblem.parse(request["problem"]), request["without"]))
        except Exception as error:
            result, failure = None, f"{type(error).__name__}: {error}"
        lost = runtime.probe.__wrapped__(device)
        if lost:
            answer({"lost": lost})
            return
        answer({"error": failure} if result is None else {"answer": result})


if __name__ == "__main__":
    _serve()
