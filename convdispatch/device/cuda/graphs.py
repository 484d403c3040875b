"""CUDA graphs: commands captured once and launched together; a kernel's launch then takes under 1 us of the device.

Kernels with a number that is computed at each replay cannot be part of a graph: they are launched between graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any

from ..commands.recording import Command
from ..replay.schedule import Schedule

_RELAXED = 2  # CUDA's constant CU_STREAM_CAPTURE_MODE_RELAXED


class CudaGraph:
    """A CUDA graph of the commands that ``give()`` enqueues on ``streams``; it begins and ends on the first stream."""

    def __init__(self, streams: Sequence[Any], give: Callable[[], Any]) -> None:
        """Raises what ``give`` raises, and CudaError if the driver cannot capture its commands."""
        self.place, self._instance = streams[0].place, c_void_p()
        cuda, graph = self.place.cuda, c_void_p()
        with cuda.current():
            origin = c_void_p(streams[0].handle)
            cuda("cuStreamBeginCapture_v2", origin, _RELAXED)
            try:
                give()
            except BaseException:
                cuda.driver.cuStreamEndCapture(origin, byref(graph))
                if graph.value:
                    cuda.driver.cuGraphDestroy(graph)
                raise
            cuda("cuStreamEndCapture", origin, byref(graph))
            try:
                cuda("cuGraphInstantiateWithFlags", byref(self._instance), graph, 0)
            finally:
                cuda("cuGraphDestroy", graph)

    def launch(self, stream: Any) -> None:
        """Launch the graph on a stream of the device."""
        stream.launch_graph(self._instance)

    def __del__(self) -> None:
        if self._instance.value and not sys.is_finalizing():
            with self.place.cuda.current():
                self.place.cuda.driver.cuGraphExecDestroy(self._instance)


class GraphReplay:
    """A recording as CUDA graphs, on the memory that OpenCL's replay has; called with a stream of ``place``.

    Raises Unlaunchable if a program or a plan cannot run on a CUDA stream, ConvDispatchError if only OpenCL can see its
    memory, CudaError if the driver cannot capture a graph of it.
    """

    def __init__(
        self, commands: Sequence[Command], schedule: Schedule, memory: Callable[[Any], Any], place: Any
    ) -> None:
        self._streams = [place.new_stream() for _ in range(schedule.queues)]
        first_stream = self._streams[0]
        with place.cuda.current():
            runs = [command.make(memory, first_stream) for command in commands]
            if schedule.queues > 1:
                graph = CudaGraph(self._streams, lambda: self._branches(schedule, runs))
                self.parts: list[Callable[[Any], Any]] = [graph.launch]
            else:
                self.parts = [*self._in_order(commands, runs)]

    def _in_order(self, commands: Sequence[Command], runs: Sequence[Callable[..., Any]]) -> Any:
        """CUDA graphs of all commands, and between the graphs the commands with late numbers."""
        stream, waiting = self._streams[0], []
        for command, run in zip(commands, runs, strict=True):
            if not command.late:
                waiting.append(run)
                continue
            if waiting:
                yield self._graph(stream, waiting).launch
                waiting = []
            yield run
        if waiting:
            yield self._graph(stream, waiting).launch

    @staticmethod
    def _graph(stream: Any, runs: Sequence[Callable[..., Any]]) -> CudaGraph:
        return CudaGraph([stream], lambda: [run(stream) for run in runs])

    def _branches(self, schedule: Schedule, runs: Sequence[Callable[..., Any]]) -> None:
        """Every step on its stream, after the steps of other streams that it needs."""
        streams, events = self._streams, []
        start, event_of_step = streams[0].mark(), dict[int, Any]()
        events.append(start)
        for step in schedule.steps:
            stream = streams[step.queue]
            for event in [event_of_step[earlier] for earlier in step.after] or ([start] if step.starts else []):
                stream.wait_for(event)
            for index in step.commands:
                runs[index](stream)
            if step.awaited:
                event_of_step[step.key] = stream.mark()
                events.append(event_of_step[step.key])
        for event in events:
            streams[0].place.cuda("cuEventDestroy_v2", event)

    def __call__(self, stream: Any) -> None:
        """Enqueue all commands on a stream, without a wait."""
        with stream.current():
            for part in self.parts:
                part(stream)
