"""A program of PTX, which OpenCL's driver assembles only if an OpenCL queue launches it.

NVIDIA's OpenCL assembles machine code of every binary that it builds, in 50 to 400 ms if its own cache is empty. A
program for CUDA's streams does not need that: CUDA's driver takes the text, or cached machine code.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyopencl as cl

from ..places.stream import Unlaunchable


class _Thread(threading.local):
    for_streams = False


_thread = _Thread()


@contextlib.contextmanager
def for_streams(launched_there: bool = True) -> Iterator[None]:
    """Inside the block this thread builds programs that are expected to be launched on CUDA streams only; with
    ``launched_there=False``, in a block of such a block, programs that OpenCL queues launch."""
    outer_value, _thread.for_streams = _thread.for_streams, launched_there
    try:
        yield
    finally:
        _thread.for_streams = outer_value


class PtxProgram:
    """Takes the place of a ``cl.Program``: it answers the same queries, and builds the ``cl.Program`` when an OpenCL
    kernel is created."""

    def __init__(self, binary: bytes, names: list[str], build: Callable[[], cl.Program]) -> None:
        self._binary, self._names, self._build = binary, names, build
        self._lock = threading.Lock()
        self._program: cl.Program | None = None

    def get_info(self, what: int) -> Any:
        """The kernels' names, the binary or its size, in the form that ``cl.Program`` returns."""
        if what == cl.program_info.KERNEL_NAMES:
            return ";".join(self._names)
        if what == cl.program_info.BINARIES:
            return [self._binary]
        if what == cl.program_info.BINARY_SIZES:
            return [len(self._binary)]
        return self.opencl.get_info(what)

    @property
    def opencl(self) -> cl.Program:
        """OpenCL's program, built at the first access. Raises BuildFailed."""
        with self._lock:
            if self._program is None:
                self._program = self._build()
            return self._program


def ptx_program(device: cl.Device, binary: bytes, build: Callable[[], cl.Program]) -> PtxProgram | None:
    """The PtxProgram of a binary inside ``for_streams``; None elsewhere, and for a binary that CUDA does not launch.

    ``build()`` builds OpenCL's program.
    """
    if not _thread.for_streams or not device.platform.name.startswith("NVIDIA"):
        return None
    from ..cuda.ptx import entries, for_cuda

    try:
        return PtxProgram(binary, list(entries(for_cuda(binary))), build)
    except Unlaunchable:
        return None
