"""CUDA graphs: commands captured once and launched together; a kernel's launch then takes under 1 us of the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any

from ..commands.recording import Command

_RELAXED = 2  # CUDA's constant CU_STREAM_CAPTURE_MODE_RELAXED


class CudaGraph:
    """A CUDA graph of the commands that ``give()`` enqueues on a stream."""

    def __init__(self, stream: Any, give: Callable[[], Any]) -> None:
        """Raises what ``give`` raises, and CudaError if the driver cannot capture its commands."""
        self.place, self._instance = stream.place, c_void_p()
        cuda, graph = self.place.cuda, c_void_p()
        with cuda.current():
            origin = c_void_p(stream.handle)
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
    """A recording as a CUDA graph, on the memory that OpenCL's replay has; called with a stream of ``place``.

    Raises Unlaunchable if a program or a plan cannot run on a CUDA stream, ConvDispatchError if only OpenCL can see its
    memory, CudaError if the driver cannot capture a graph of it.
    """

    def __init__(self, commands: Sequence[Command], memory: Callable[[Any], Any], place: Any) -> None:
        self._stream = place.new_stream()
        with place.cuda.current():
            runs = [command.make(memory, self._stream) for command in commands]
            self._graph = CudaGraph(self._stream, lambda: [run(self._stream) for run in runs])

    def __call__(self, stream: Any) -> None:
        """Enqueue all commands on a stream, without a wait."""
        with stream.current():
            self._graph.launch(stream)
