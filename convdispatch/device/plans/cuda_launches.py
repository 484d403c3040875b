"""A plan's launches on CUDA's streams, decided once: what is left of a call is to put addresses in and launch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..commands.recording import Recording, Slot
from ..cuda.modules import Function, function_of

if TYPE_CHECKING:
    from ..cuda.stream import CudaStream


_ALIGN = 256
"""Bytes to which each area of the scratch memory is rounded."""


class Launches:
    """The launches of a recording whose slots are ``given`` operands and memory that it asked for meanwhile.

    Safe from several threads.
    """

    __slots__ = ("_launches", "_lock", "_offsets", "_size", "given")

    def __init__(self, given: list[tuple[Function, list[Any], list[tuple[int, int, int]]]], sizes: list[int]) -> None:
        """``given`` has kernels, their arguments, and (place, operand, offset) of those that are memory."""
        self.given, self._lock = given, threading.Lock()
        self._launches = [(function.ready(arguments, places), function.name) for function, arguments, places in given]
        rounded = [-(-size // _ALIGN) * _ALIGN for size in sizes]
        self._offsets, self._size = list(accumulate(rounded, initial=0))[:-1], sum(rounded)

    @classmethod
    def of(cls, recording: Recording, given: Sequence[Slot | None], stream: CudaStream) -> Launches | None:
        """None where it holds anything but launches on these slots. Raises Unlaunchable."""
        roots = [slot.root if slot is not None else None for slot in given]
        found: list[tuple[Function, list[Any], list[tuple[int, int, int]]]] = []
        for command in recording.commands:
            if command.kernel is None or command.late:
                return None
            places, base = [], list(command.arguments)
            for at, argument in enumerate(base):
                if isinstance(argument, Slot):
                    if argument.root not in roots:
                        roots.append(argument.root)
                    places.append((at, roots.index(argument.root), argument.offset))
                    base[at] = 0
                elif argument is None:
                    base[at] = 0
                elif command.kernel.dtypes[at] is None and hasattr(argument, "int_ptr"):
                    return None  # memory of the plan's own
            found.append((function_of(stream.place.cuda, command.kernel), base, places))
        return cls(found, [root.size for root in roots[len(given) :]])

    def program(self, launcher: Any, name: str, context: int, sizes: Sequence[int], strides: Sequence[int]) -> Any:
        """The same for the native call path, writing a tensor of these sizes; None for what that does not take."""
        launches = []
        for function, arguments, places in self.given:
            packed = function.pack.pack(*function.numbers(list(arguments)))
            addresses = [(function.offsets[at], operand, offset) for at, operand, offset in places]
            extents = (*function.groups, *function.items, function.shared)
            launches.append((function.handle.value, extents, function.overlaps, packed, addresses))
        try:
            return launcher.program(name, context, launches, self._offsets, self._size, sizes, strides)
        except ValueError:  # longer arguments than it has room for
            return None

    def give(self, stream: CudaStream, addresses: list[int]) -> None:
        """Launch everything on ``addresses`` of the operands; scratch memory comes from the stream."""
        if self._size:
            begin, _owner = stream.scratch(self._size)  # lives until the launches are given
            addresses += [begin + offset for offset in self._offsets]
        handle, early = stream.handle, stream.early
        with self._lock:  # the driver copies arguments before it returns
            for launch, name in self._launches:
                status = launch(handle, addresses, early)
                if status:
                    stream.fail("cuLaunchKernel", status, name)
                early = True
        stream.early = True
