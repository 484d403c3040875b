"""Runs an executable on CUDA streams: a call only writes addresses into packed arguments and launches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cuda.modules import function_of
from ..cuda_driver import Cuda
from ..executable import Executable

if TYPE_CHECKING:
    from ..cuda.stream import CudaStream


class StreamPlace(NamedTuple):
    """The streams of a CUDA device."""

    cuda: Cuda

    def bind(self, executable: Executable) -> StreamLaunches | None:
        """Returns None if the plan itself must enqueue at each call, because it is opaque or has OpenCL memory of its
        own. Raises Unlaunchable."""
        for kernel, arguments, _ in executable.launches:
            for argument, dtype in zip(arguments, kernel.dtypes, strict=True):
                if dtype is None and hasattr(argument, "int_ptr"):
                    return None
        return None if executable.opaque else StreamLaunches(executable, self.cuda)


class StreamLaunches:
    """The launches of an executable on CUDA's addresses. Safe from several threads.

    The constructor loads the kernels' programs. Raises Unlaunchable.
    """

    __slots__ = ("__weakref__", "_context", "_launches", "_lock", "_offsets", "_size", "loaded")

    def __init__(self, executable: Executable, cuda: Cuda) -> None:
        self._lock, self._context = threading.Lock(), cuda.context.value
        self.loaded = []
        """The launches: a function, its arguments, and (argument, operand, offset) of those that are a call's
        memory."""
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

    def run(self, stream: CudaStream, addresses: list[int]) -> None:
        """Launch everything on ``addresses`` of the operands; scratch memory comes from the stream."""
        if self._size:
            begin, _owner = stream.scratch(self._size)  # _owner keeps the scratch memory until all kernels are launched
            addresses += [begin + offset for offset in self._offsets]
        handle, early = stream.handle, stream.early
        with self._lock:  # guards the argument buffers, which the driver copies before it returns
            for launch, name in self._launches:
                status = launch(handle, addresses, early)
                if status:
                    stream.fail("cuLaunchKernel", status, name)
                early = True
        stream.early = True
