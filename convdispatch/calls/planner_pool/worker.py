"""The child process, started by ``pool``, that plans problems for a device.

It chooses, renders and compiles as a first call would, at a lower priority than its parent and in as many threads as
``pool`` says, and answers with the decision, texts and binaries.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...device.child import answer, questions

__all__: list[str] = []

_NICENESS = 10
"""Added to the child's niceness, because the parent's own work comes first."""
_NICENESS_ON_CPU = 19
"""The same for a CPU device, where the parent computes on the same processors."""


def _serve() -> None:
    os.nice(_NICENESS)
    requests = questions()
    setup = next(requests)
    platform, number = map(int, setup["device"].split(":"))
    warnings.simplefilter("ignore")  # the parent process gives the warnings that concern it

    from ...api.policy import policy
    from ...api.problem import ConvProblem
    from ...device import runtime
    from ...device.cache import artifact_store
    from ...device.opencl.platforms import device_info, platforms
    from ...device.places.stream import place_of_device
    from ...device.programs import proven
    from ...device.programs.ptx_program import for_streams
    from ...selection import dispatch
    from ...selection.plugins.loader import plugins

    device = platforms()[platform].get_devices()[number]
    if device_info(device).type == "cpu":
        os.nice(_NICENESS_ON_CPU - _NICENESS)
    context = runtime.context(device)
    place = place_of_device(device) if setup["for_cuda"] else None

    def plan(problem: ConvProblem) -> Any:
        """Every program of the plan is cached then, in the form that the parent loads."""
        with contextlib.nullcontext() if place is None else for_streams():
            prepared = dispatch.prepare(problem, context)
        if place is not None and prepared.recordable:
            # The parent process gets the same error when it loads the plan, and reports it.
            with contextlib.suppress(Exception), place.current():
                place.assemble(prepared.executable(runtime.queue(device)))
        return prepared

    def serve(request: Mapping[str, Any]) -> None:
        try:
            with artifact_store.gathering(device) as gathered, policy(**request["policy"]):
                problem = ConvProblem.parse(request["problem"])
                # Children that start together all meet the same unchecked engine: one of them checks it.
                with proven.assuming() as assumed:
                    prepared = plan(problem)
                if proven.has_failed(assumed):
                    dispatch.forget()
                    prepared = plan(problem)
        except Exception as error:
            answer({"number": request["number"], "failed": f"{type(error).__name__}: {error}"})
        else:
            _answer(request["number"], prepared, gathered)

    answer({"solvers": sorted(plugins().solvers)})
    threads = ThreadPoolExecutor(setup["threads"])
    epoch = None
    for request in requests:
        if request["epoch"] != epoch:  # records, rules or plugins have changed since the last request
            dispatch.forget()
            epoch = request["epoch"]
        threads.submit(serve, request)


def _answer(number: int, prepared: Any, gathered: Any) -> None:
    programs = gathered.tables["programs"]
    reply = {
        "number": number,
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
        answer({"number": number, "failed": f"a configuration is none that JSON holds: {error}"})
        return
    answer(reply, b"".join(programs.values()))


if __name__ == "__main__":
    _serve()
    os._exit(0)  # end without exit handlers: drivers need not be shut down
