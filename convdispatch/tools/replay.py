"""Replays a trace on this machine and compares both machines: which solvers ran, and how long they took.

The calls that the trace layer wrote down elsewhere run here in their order, on random data, with the same layer on; so
both sides are in the same words, and what is written here can be replayed in turn.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyopencl as cl

from ..api import settings
from ..api.errors import ConvDispatchError, InvalidArgument, InvalidProblem
from ..api.problem import ConvProblem
from ..device import plainfile, runtime
from ..measurement.grammar.own import TRACE
from ..measurement.search.trialdata import random_operands
from ..selection import dispatch
from ..selection.plugins import loader

_LINE = re.compile(
    re.escape(TRACE)
    + r"(?P<problem>(?:\([^()]*\)|[^,()])*),(?P<solver>[^,]+),(?P<device>.*),(?P<workspace>[0-9]+)"
    + r",(?P<host_us>[0-9]+\.[0-9]+)(?:,(?P<done_us>[0-9]+\.[0-9]+))?"
)


@dataclass(frozen=True)
class TraceLine:
    """One line of a trace: microseconds in enqueue, and until the result was there, where the trace waited for it."""

    problem: str
    solver: str
    device: str
    workspace: int
    host_us: float
    done_us: float | None = None


def read_trace(path: Path) -> list[TraceLine]:
    """The calls of a trace; other lines, as of a log, are passed over. Raises InvalidArgument."""
    try:
        text = plainfile.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from error
    calls = [_call(match.groupdict()) for line in text.splitlines() if (match := _LINE.fullmatch(line.strip()))]
    if not calls:
        raise InvalidArgument(f"{path} holds no line of a trace: CONVDISPATCH_LAYERS=trace writes {TRACE}<problem>,...")
    return calls


def _call(fields: dict[str, Any]) -> TraceLine:
    done_us = None if fields["done_us"] is None else float(fields["done_us"])
    try:
        problem = str(ConvProblem.parse(fields["problem"]))
    except InvalidProblem as error:
        raise InvalidArgument(f"a trace names a problem that cannot be read: {error}") from error
    return TraceLine(
        problem, fields["solver"], fields["device"], int(fields["workspace"]), float(fields["host_us"]), done_us
    )


def replay(
    calls: Iterable[TraceLine],
    target: Path,
    device: Any = None,
    *,
    most: int = 20,
    say: Callable[[str, int], None] = lambda words, advance: None,
) -> tuple[list[TraceLine], dict[str, str]]:
    """Run the calls' problems here, each at most ``most`` times, and append what the trace layer says to ``target``.

    Answers the calls as they went here, and by problem why one could not run.
    """
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.problem] = counts.get(call.problem, 0) + 1
    failures: dict[str, str] = {}
    lines_before = len(_lines_of(target))
    with _traced(target):
        queue = cl.CommandQueue(runtime.context(runtime.find_device(device)))
        for text, count in counts.items():
            say(text, 0)
            try:
                run = _runner(ConvProblem.parse(text), queue)
                with settings.changed({settings.TRACE.name: os.devnull}):
                    run()  # The first call compiles the kernels, loads the plugins and warms up the device.
                for _ in range(min(count, most)):
                    run()
            except (ConvDispatchError, MemoryError, cl.Error) as error:
                failures[text] = str(error)
            say("", 1)
    return _lines_of(target)[lines_before:], failures


def _lines_of(path: Path) -> list[TraceLine]:
    return read_trace(path) if path.exists() and path.stat().st_size else []


def _runner(problem: ConvProblem, queue: Any) -> Callable[[], None]:
    """A function that makes the call once and waits for its result."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    host = random_operands(problem, 0)
    buffers = {name: cl.Buffer(queue.context, flags, hostbuf=a) for name, a in host.items() if name != "initial"}
    size = math.prod(problem.out_shape) * problem.out_itemsize
    buffers[problem.written] = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size)
    cl.enqueue_fill_buffer(queue, buffers[problem.written], b"\0", 0, size)
    prepared = dispatch.prepare(problem, queue.context)
    weights = buffers["w"]
    if prepared.packed_size:
        weights = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, prepared.packed_size)
        prepared.plan.pack(queue, buffers["w"], weights).wait()

    def run() -> None:
        prepared.enqueue(
            queue, buffers["x"], weights, buffers["y"], buffers.get("bias"), buffers.get("residual")
        ).wait()

    return run


@contextmanager
def _traced(target: Path) -> Iterator[None]:
    """Inside the block every call is waited for, and the trace layer writes its line to ``target``."""
    traced = {settings.LAYERS.name: "trace", settings.TRACE_WAIT.name: "1", settings.TRACE.name: str(target)}
    try:
        with settings.changed(traced):
            loader.reload()
            dispatch.forget()
            yield
    finally:
        loader.reload()
        dispatch.forget()


@dataclass(frozen=True)
class Side:
    """One problem's calls on one machine: medians in microseconds."""

    calls: int
    solver: str
    workspace: int
    host_us: float
    done_us: float | None


@dataclass(frozen=True)
class Compared:
    """The calls of two machines: for each problem both sides, None where one machine has not run it."""

    devices: tuple[str, str]
    problems: dict[str, tuple[Side | None, Side | None]]
    failures: dict[str, str] = field(default_factory=dict)

    def ratio(self, problem: str) -> float | None:
        """Time there over time here until the result is ready, so above 1 if this machine is faster, or None."""
        there, here = self.problems[problem]
        return there.done_us / here.done_us if there and here and there.done_us and here.done_us else None

    @property
    def whole(self) -> tuple[float, float] | None:
        """Microseconds there and here of all calls of the problems that both ran, weighed by the calls there."""
        both = [sides for problem, sides in self.problems.items() if self.ratio(problem)]
        if not both:
            return None
        sums = [sum(there.calls * (there, here)[at].done_us for there, here in both) for at in (0, 1)]  # type: ignore
        return sums[0], sums[1]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return asdict(self) | {"whole_us": self.whole}


def compare(there: list[TraceLine], here: list[TraceLine], failures: dict[str, str] | None = None) -> Compared:
    """Summarise both machines' calls by problem, in the order of the first machine's."""
    problems = dict.fromkeys(call.problem for call in [*there, *here])
    sides = {problem: (_summary(there, problem), _summary(here, problem)) for problem in problems}
    names = tuple(", ".join(dict.fromkeys(call.device for call in calls)) for calls in (there, here))
    return Compared(names, sides, failures or {})  # type: ignore[arg-type]


def _summary(calls: list[TraceLine], problem: str) -> Side | None:
    traced = [call for call in calls if call.problem == problem]
    if not traced:
        return None
    waited_us = [call.done_us for call in traced if call.done_us is not None]
    solvers = ", ".join(dict.fromkeys(call.solver for call in traced))
    host = statistics.median(call.host_us for call in traced)
    return Side(len(traced), solvers, traced[-1].workspace, host, statistics.median(waited_us) if waited_us else None)
