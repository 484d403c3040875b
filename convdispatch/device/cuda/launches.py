"""An executable on CUDA streams: a call only writes addresses into packed arguments and launches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ..cuda_driver import NO_CONTEXT, Cuda, CudaError
from ..executable import Executable
from ..memory.allocator import NoDeviceMemory, out_of_memory
from .modules import function_of


class CudaLaunches:
    """The launches of an executable on CUDA's addresses. Safe from several threads.

    The constructor loads the kernels' programs. Raises Unlaunchable.
    """

    __slots__ = ("__weakref__", "_context", "_launches", "_lock", "_offsets", "_size", "loaded")

    def __init__(self, executable: Executable, cuda: Cuda) -> None:
        self._lock, self._context = threading.Lock(), cuda.context.value
        self.loaded = []
        """The launches: a function, its arguments, and (argument, operand, offset) of each that is a call's memory."""
        for kernel, arguments, memory in executable.launches:
            memory_indices = {index for index, _, _ in memory}
            numbers = [0 if index in memory_indices or each is None else each for index, each in enumerate(arguments)]
            self.loaded.append((function_of(cuda, kernel), numbers, list(memory)))
        self._launches = [(function.ready(numbers, memory), function.name) for function, numbers, memory in self.loaded]
        self._offsets, self._size = executable.offsets, executable.scratch_size

    def program(self, launcher: Any, name: str, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        """The launches for the native call path, which allocates an output of these sizes; None if it refuses them."""
        launches = []
        for function, numbers, memory in self.loaded:
            packed = function.pack.pack(*function.numbers(list(numbers)))
            addresses = [(function.offsets[index], operand, offset) for index, operand, offset in memory]
            extents = (*function.groups, *function.items, function.shared)
            launches.append((function.handle.value, extents, function.overlaps, packed, addresses))
        try:
            return launcher.program(name, self._context, launches, self._offsets, self._size, sizes, strides)
        except ValueError:  # the arguments are longer than the launcher's space for them
            return None

    def run(self, stream: Any, addresses: list[int]) -> bool:
        """Launch everything on ``addresses`` of the operands; scratch memory comes from the stream. Returns False,
        without a launch, if memory or the thread's context is missing."""
        try:
            if self._size:
                begin, _owner = stream.scratch(self._size)  # keeps the scratch memory until all kernels are launched
                addresses += [begin + offset for offset in self._offsets]
            handle, early = stream.handle, stream.early
            with self._lock:  # guards the argument buffers, which the driver copies before it returns
                for launch, name in self._launches:
                    status = launch(handle, addresses, early)
                    if status:
                        stream.fail("cuLaunchKernel", status, name)
                    early = True
        except (CudaError, NoDeviceMemory) as error:
            if not (out_of_memory(error) or getattr(error, "status", 0) == NO_CONTEXT):
                raise
            return False
        stream.early = True
        return True
