"""Kernels that are not convolutions, on PyTorch's current stream and memory: recorded once, then launched.

Nothing waits, and scratch memory comes from PyTorch's caching allocator, so a graph captures a call that was made
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...api.errors import BuildFailed
from ...calls.arrays.known_libraries import library_of
from ...calls.arrays.stream_arrays import ALIGNMENT
from ...calls.framework.fallback import Fallback
from ...device import runtime
from ...device.commands.recording import Recording, Slot
from ...device.executable import Executable
from ...device.places.stream import Unlaunchable
from .planning import LeftToPyTorch
from .stream_tensors import refuse_capture, stream_of


class Launched:
    """Recorded kernels: ``launched(*tensors)`` launches them on the tensors' stream; the tensors have ``sizes``
    bytes."""

    def __init__(
        self, name: str, like: torch.Tensor, sizes: Sequence[int], enqueue: Callable[..., Callable[..., Any]]
    ) -> None:
        """``enqueue(context)`` returns ``give(commands, *memory)``, which only launches kernels and allocates.

        Raises Fallback where the kernels cannot be had.
        """
        self.name, self.number, self.library = name, like.get_device(), library_of(torch.Tensor)
        stream = stream_of(like)
        refuse_capture(stream, name)
        with stream.current():
            recording, slots = Recording(runtime.queue(stream.device)), [Slot(size, persistent=True) for size in sizes]
            try:
                enqueue(stream.context)(recording, *slots)
                executable = Executable.of(recording, slots, [len(slots) - 1])
                launches = executable.bind(stream.place)
            except (BuildFailed, Unlaunchable) as error:
                why = str(error).splitlines()[0]
                raise Fallback(f"{name} cannot run on a {stream.kind.upper()} stream: {why}") from None
        assert launches is not None, "kernels beside convolutions are launches alone"
        self.launches = launches

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch the kernels. Raises Fallback for memory whose address is no multiple of 16 bytes."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        if any(address % ALIGNMENT for address in addresses):
            raise Fallback("a tensor begins at no multiple of 16 bytes", lasting=False)
        stream: Any = self.library.stream(tensors[0], self.number)
        stream.place.recent.append(self.name)
        # PyTorch may report the device's CUDA context as current in this thread before it is.
        if not self.library.is_current(stream) or not self.launches.run(stream, [*addresses]):
            with stream.current():
                if not self.launches.run(stream, addresses):
                    raise Fallback("the device has no memory left for scratch memory", lasting=False)
        stream.check()


def launched(
    name: str, like: torch.Tensor, sizes: Sequence[int], enqueue: Callable[..., Any]
) -> Launched | LeftToPyTorch:
    """Record kernels as ``Launched``; LeftToPyTorch if PyTorch computes each such call. Raises Fallback for this one
    call."""
    try:
        return Launched(name, like, sizes, enqueue)
    except Fallback as left:
        if not left.lasting:
            raise
        return LeftToPyTorch(str(left))
