"""Replays a program on a CUDA stream: its commands as CUDA graphs, on the same memory as OpenCL's replay.

Arguments that differ at each replay cannot be part of a graph: kernels that take one are launched between graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..commands.recording import Command
from ..cuda.graphs import CudaGraph, side_streams
from ..cuda.stream import CudaPlace, CudaStream
from .schedule import Schedule


class Replay:
    """``give(stream)`` enqueues all commands on a stream of ``place``.

    Raises Unlaunchable if a program or a plan cannot run on a CUDA stream, ConvDispatchError if only OpenCL sees its
    memory, CudaError if the driver cannot capture it.
    """

    def __init__(
        self, commands: Sequence[Command], schedule: Schedule, memory: Callable[[Any], Any], place: CudaPlace
    ) -> None:
        self._streams = side_streams(place, schedule.queues)
        main_stream = self._streams[0]
        with place.cuda.current():
            runs = [command.make(memory, main_stream) for command in commands]
            if schedule.queues > 1:
                graph = CudaGraph(self._streams, lambda: self._branches(schedule, runs))
                self.parts: list[Callable[[CudaStream], Any]] = [graph.launch]
            else:
                self.parts = [*self._in_order(commands, runs)]

    def _in_order(self, commands: Sequence[Command], runs: Sequence[Callable[..., Any]]) -> Any:
        """CUDA graphs of all commands, and between the graphs the commands with late numbers."""
        main_stream, ungraphed = self._streams[0], []
        for command, run in zip(commands, runs, strict=True):
            if not command.late:
                ungraphed.append(run)
                continue
            if ungraphed:
                yield self._graph(main_stream, ungraphed).launch
                ungraphed = []
            yield run
        if ungraphed:
            yield self._graph(main_stream, ungraphed).launch

    @staticmethod
    def _graph(stream: CudaStream, runs: Sequence[Callable[..., Any]]) -> CudaGraph:
        return CudaGraph([stream], lambda: [run(stream) for run in runs])

    def _branches(self, schedule: Schedule, runs: Sequence[Callable[..., Any]]) -> None:
        """Enqueue every step on its stream, after the steps of other streams that it depends on."""
        streams, events = self._streams, []
        start, done = streams[0].mark(), {}
        events.append(start)
        for step in schedule.steps:
            stream = streams[step.queue]
            for event in [done[key] for key in step.after] or ([start] if step.starts else []):
                stream.wait_for(event)
            for index in step.commands:
                runs[index](stream)
            if step.awaited:
                done[step.key] = stream.mark()
                events.append(done[step.key])
        for event in events:
            streams[0].place.cuda("cuEventDestroy_v2", event)

    def give(self, stream: CudaStream) -> None:
        """Enqueue everything on a stream; never waits."""
        with stream.current():
            for part in self.parts:
                part(stream)
