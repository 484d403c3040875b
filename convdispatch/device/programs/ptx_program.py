"""A program known by its PTX, which OpenCL's driver assembles only where a queue of OpenCL's launches it.

NVIDIA's OpenCL makes machine code of every binary that it builds, 50 to 400 ms each where its own cache is empty. A
program for CUDA's streams needs nothing of that: CUDA's driver takes the text, or machine code that is kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..places.stream import Unlaunchable

if TYPE_CHECKING:
    import pyopencl as cl


class _Thread(threading.local):
    for_streams = False


_thread = _Thread()


@contextlib.contextmanager
def for_streams() -> Iterator[None]:
    """Inside the block this thread builds programs that are expected to be launched on CUDA streams only."""
    before, _thread.for_streams = _thread.for_streams, True
    try:
        yield
    finally:
        _thread.for_streams = before


class PtxProgram:
    """Takes the place of a ``cl.Program``: it answers the same queries, and becomes one when an OpenCL kernel is
    made."""

    def __init__(self, binary: bytes, names: list[str], build: Callable[[], cl.Program]) -> None:
        self._binary, self._names, self._build = binary, names, build
        self._lock = threading.Lock()
        self._program: cl.Program | None = None

    def get_info(self, what: int) -> Any:
        """Its kernels' names, its binary or that one's size, as ``cl.Program`` answers them."""
        import pyopencl as cl

        if what == cl.program_info.KERNEL_NAMES:
            return ";".join(self._names)
        if what == cl.program_info.BINARIES:
            return [self._binary]
        if what == cl.program_info.BINARY_SIZES:
            return [len(self._binary)]
        return self.opencl.get_info(what)

    @property
    def opencl(self) -> cl.Program:
        """OpenCL's program, built when first asked for. Raises BuildFailed."""
        with self._lock:
            if self._program is None:
                self._program = self._build()
            return self._program


def ptx_program(device: cl.Device, binary: bytes, build: Callable[[], cl.Program]) -> PtxProgram | None:
    """The binary as such a program, inside ``for_streams``; None elsewhere, and for what is no PTX that CUDA launches.

    ``build()`` makes OpenCL's program of it.
    """
    if not _thread.for_streams or not device.platform.name.startswith("NVIDIA"):
        return None
    from ..cuda.ptx import entries, for_cuda

    try:
        return PtxProgram(binary, list(entries(for_cuda(binary))), build)
    except Unlaunchable:
        return None
