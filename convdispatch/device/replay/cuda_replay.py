"""A program on a CUDA stream: its commands as CUDA graphs, its memory that which OpenCL's replay has.

Numbers that are asked for anew at each replay are no part of a graph: the kernels that take one stand between graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..commands.recording import Command
from ..cuda.graphs import CudaGraph, side_streams
from ..cuda.stream import CudaPlace, CudaStream
from .schedule import Schedule


class Replay:
    """``give(stream)`` gives all commands to a stream of ``place``.

    Raises Unlaunchable where a program or a plan cannot run on a CUDA stream, ConvDispatchError where its memory is
    OpenCL's alone, CudaError where the driver captures no graph of it.
    """

    def __init__(
        self, commands: Sequence[Command], schedule: Schedule, memory: Callable[[Any], Any], place: CudaPlace
    ) -> None:
        self._streams = side_streams(place, schedule.queues)
        first = self._streams[0]
        with place.cuda.current():
            runs = [command.make(memory, first) for command in commands]
            if schedule.queues > 1:
                graph = CudaGraph(self._streams, lambda: self._branches(schedule, runs))
                self.parts: list[Callable[[CudaStream], Any]] = [graph.launch]
            else:
                self.parts = [*self._in_order(commands, runs)]

    def _in_order(self, commands: Sequence[Command], runs: Sequence[Callable[..., Any]]) -> Any:
        """CUDA graphs of all commands, and between the graphs the commands with late numbers."""
        first, waiting = self._streams[0], []
        for command, run in zip(commands, runs, strict=True):
            if not command.late:
                waiting.append(run)
                continue
            if waiting:
                yield self._graph(first, waiting).launch
                waiting = []
            yield run
        if waiting:
            yield self._graph(first, waiting).launch

    @staticmethod
    def _graph(stream: CudaStream, runs: Sequence[Callable[..., Any]]) -> CudaGraph:
        return CudaGraph([stream], lambda: [run(stream) for run in runs])

    def _branches(self, schedule: Schedule, runs: Sequence[Callable[..., Any]]) -> None:
        """Every step on its stream, after the steps of other streams that it needs."""
        streams, events = self._streams, []
        start, done = streams[0].mark(), {}
        events.append(start)
        for step in schedule.steps:
            stream = streams[step.queue]
            for event in [done[other] for other in step.after] or ([start] if step.starts else []):
                stream.wait_for(event)
            for place in step.commands:
                runs[place](stream)
            if step.awaited:
                done[step.key] = stream.mark()
                events.append(done[step.key])
        for event in events:
            streams[0].place.cuda("cuEventDestroy_v2", event)

    def give(self, stream: CudaStream) -> None:
        """Give everything to a stream; never waits."""
        with stream.current():
            for part in self.parts:
                part(stream)
