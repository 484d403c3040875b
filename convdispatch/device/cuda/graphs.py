"""CUDA graphs: commands captured once and launched together; a kernel's launch then takes under 1 us of the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from typing import Any

from ..cuda_driver import NON_BLOCKING
from .stream import CudaPlace, CudaStream

_RELAXED = 2  # CUDA's constant CU_STREAM_CAPTURE_MODE_RELAXED


def side_streams(place: CudaPlace, count: int) -> list[CudaStream]:
    """New streams of a device, which do not wait for its default stream."""
    with place.cuda.current():
        return [CudaStream(place, place.cuda.make("cuStreamCreate", NON_BLOCKING).value or 0) for _ in range(count)]


class CudaGraph:
    """A CUDA graph of the commands that ``give()`` enqueues on ``streams``; it begins and ends on the first stream."""

    def __init__(self, streams: Sequence[CudaStream], give: Callable[[], Any]) -> None:
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

    def launch(self, stream: CudaStream) -> None:
        """Launch the graph on a stream of the device."""
        stream.launch_graph(self._instance)

    def __del__(self) -> None:
        if self._instance.value and not sys.is_finalizing():
            with self.place.cuda.current():
                self.place.cuda.driver.cuGraphExecDestroy(self._instance)
