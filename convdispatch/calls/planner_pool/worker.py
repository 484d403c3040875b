"""A child that plans problems: ``python -m convdispatch.calls.planner_pool.worker PLATFORM DEVICE``; see ``pool``.

It chooses, renders and compiles as a first call would, at a lower priority than its parent, and answers with the
decision and with what was made for it. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from typing import Any

__all__: list[str] = []

_PRIORITY, _PRIORITY_ON_CPU = 10, 19
"""Added to the niceness: the parent's own work comes first, above all where it computes on the same processors."""


def _serve(platform: int, number: int) -> None:
    _step_back(_PRIORITY)
    # Drivers and plugins print as they please: answers go where standard output went.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # the parent warns of what concerns it

    from ...api.policy import policy
    from ...api.problem import ConvProblem
    from ...device.cache import artifact_store
    from ...device.opencl.platforms import device_info, platforms
    from ...device.programs.child_process import receive, send
    from ...selection import dispatch
    from ...selection.plugins.loader import plugins

    device = platforms()[platform].get_devices()[number]
    if device_info(device).type == "cpu":
        _step_back(_PRIORITY_ON_CPU - _PRIORITY)
    rehearse = _rehearsal(device)
    send(answers, {"solvers": sorted(plugins().solvers)}, b"")
    epoch = None
    while True:
        try:
            request, _ = receive(sys.stdin.buffer)
        except EOFError:
            return
        if request["epoch"] != epoch:  # what was recorded, installed or set aside since
            dispatch.forget()
            epoch = request["epoch"]
        try:
            with artifact_store.gathering(device) as made, policy(**request["policy"]):
                prepared = rehearse(ConvProblem.parse(request["problem"]), request["for_cuda"])
        except Exception as error:
            send(answers, {"failed": f"{type(error).__name__}: {error}"}, b"")
            continue
        _answer(answers, send, prepared, made)


def _step_back(steps: int) -> None:
    with contextlib.suppress(OSError):
        os.nice(steps)


def _rehearsal(device: Any) -> Any:
    """``plan(problem, for_cuda)``: its plan, every program loaded once, so that drivers keep what they make of it."""
    from ...device import runtime
    from ...device.cuda.stream import CudaStream, place_of
    from ...device.cuda_driver import cuda_of, number_of
    from ...device.programs.ptx_program import for_streams
    from ...selection import dispatch
    from ..cuda_call import rehearse

    context = runtime.context(device)

    def plan(problem: Any, for_cuda: bool) -> Any:
        on_streams = for_cuda and cuda_of(device) is not None
        with for_streams() if on_streams else contextlib.nullcontext():
            prepared = dispatch.prepare(problem, context)
        if on_streams:
            with contextlib.suppress(Exception):  # the parent meets it, and says so
                stream = CudaStream(place_of(number_of(device)), 0)
                with stream.current():
                    rehearse(prepared, stream)
        return prepared

    return plan


def _answer(answers: Any, send: Any, prepared: Any, made: Any) -> None:
    programs = made.tables["programs"]
    said = {
        "solver": prepared.solver.name,
        "config": dict(prepared.config),
        "source": prepared.source,
        "math": prepared.math,
        "texts": made.tables["texts"],
        "programs": [[key, len(binary)] for key, binary in programs.items()],
    }
    try:
        json.dumps(said)
    except (TypeError, ValueError) as error:
        send(answers, {"failed": f"a configuration is none that JSON holds: {error}"}, b"")
        return
    send(answers, said, b"".join(programs.values()))


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # drivers need not be taken down
