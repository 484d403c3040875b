"""The child process, started by ``pool``, that plans problems for a device.

It chooses, renders and compiles as a first call would, at a lower priority than its parent, and answers with the
decision, texts and binaries.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from typing import Any

from ...device.child import answer, questions

__all__: list[str] = []

_NICENESS = 10
"""Added to the child's niceness, because the parent's own work comes first."""
_NICENESS_ON_CPU = 19
"""The same for a CPU device, where the parent computes on the same processors."""


def _serve() -> None:
    _lower_priority(_NICENESS)
    requests = questions()
    platform, number = map(int, next(requests)["device"].split(":"))
    warnings.simplefilter("ignore")  # the parent process gives the warnings that concern it

    from ...api.policy import policy
    from ...api.problem import ConvProblem
    from ...device.cache import artifact_store
    from ...device.opencl.platforms import device_info, platforms
    from ...selection import dispatch
    from ...selection.plugins.loader import plugins

    device = platforms()[platform].get_devices()[number]
    if device_info(device).type == "cpu":
        _lower_priority(_NICENESS_ON_CPU - _NICENESS)
    plan = _planner(device)
    answer({"solvers": sorted(plugins().solvers)})
    epoch = None
    for request in requests:
        if request["epoch"] != epoch:  # records, rules or plugins have changed since the last request
            dispatch.forget()
            epoch = request["epoch"]
        try:
            with artifact_store.gathering(device) as gathered, policy(**request["policy"]):
                prepared = plan(ConvProblem.parse(request["problem"]), request["for_cuda"])
        except Exception as error:
            answer({"failed": f"{type(error).__name__}: {error}"})
            continue
        _answer(prepared, gathered)


def _lower_priority(steps: int) -> None:
    with contextlib.suppress(OSError):
        os.nice(steps)


def _planner(device: Any) -> Any:
    """Returns ``plan(problem, for_cuda)``, after which every program of the plan is cached in the form that the parent
    loads."""
    from ...device import runtime
    from ...device.places.stream import place_of_device
    from ...device.programs.ptx_program import for_streams
    from ...selection import dispatch

    context = runtime.context(device)

    def plan(problem: Any, for_cuda: bool) -> Any:
        place = place_of_device(device) if for_cuda else None
        with for_streams() if place is not None else contextlib.nullcontext():
            prepared = dispatch.prepare(problem, context)
        if place is not None:
            # The parent process gets the same error when it loads the plan, and reports it.
            with contextlib.suppress(Exception), place.current():
                if prepared.recordable:
                    place.assemble(prepared.executable(runtime.queue(device)))
        return prepared

    return plan


def _answer(prepared: Any, gathered: Any) -> None:
    programs = gathered.tables["programs"]
    reply = {
        "solver": prepared.solver.name,
        "config": dict(prepared.config),
        "source": prepared.source,
        "math": prepared.math,
        "texts": gathered.tables["texts"],
        "programs": [[key, len(binary)] for key, binary in programs.items()],
    }
    try:
        json.dumps(reply)
    except (TypeError, ValueError) as error:
        answer({"failed": f"a configuration is none that JSON holds: {error}"})
        return
    answer(reply, b"".join(programs.values()))


if __name__ == "__main__":
    _serve()
    os._exit(0)  # end without exit handlers: drivers need not be shut down
