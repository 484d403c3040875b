"""CUDA graphs: commands captured once and launched as one, for less than a microsecond of the device a kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any

from .stream import CudaPlace, CudaStream

_NON_BLOCKING, _RELAXED = 1, 2


def side_streams(place: CudaPlace, count: int) -> list[CudaStream]:
    """New streams of a device, which wait for no other."""
    with place.cuda.current():
        return [CudaStream(place, place.cuda.make("cuStreamCreate", _NON_BLOCKING).value or 0) for _ in range(count)]


class CudaGraph:
    """A captured CUDA graph of the commands that ``give()`` enqueues on ``streams``; it begins and ends on the first of
    them."""

    def __init__(self, streams: Sequence[CudaStream], give: Callable[[], Any]) -> None:
        """Raises what ``give`` raises, and CudaError where the driver captures no such thing."""
        self.place, self._made = streams[0].place, c_void_p()
        cuda, graph = self.place.cuda, c_void_p()
        with cuda.current():
            first = c_void_p(streams[0].handle)
            cuda("cuStreamBeginCapture_v2", first, _RELAXED)
            try:
                give()
            except BaseException:
                cuda.driver.cuStreamEndCapture(first, byref(graph))
                if graph.value:
                    cuda.driver.cuGraphDestroy(graph)
                raise
            cuda("cuStreamEndCapture", first, byref(graph))
            try:
                cuda("cuGraphInstantiateWithFlags", byref(self._made), graph, 0)
            finally:
                cuda("cuGraphDestroy", graph)

    def launch(self, stream: CudaStream) -> None:
        """Launch the graph on a stream of the device."""
        stream.launch_graph(self._made)

    def __del__(self) -> None:
        if self._made.value and not sys.is_finalizing():
            with self.place.cuda.current():
                self.place.cuda.driver.cuGraphExecDestroy(self._made)
