"""A plan's launches on CUDA's streams, decided once: what is left of a call is to put addresses in and launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .modules import Function, function_of
from .recording import Recording, Slot

if TYPE_CHECKING:
    from .stream import CudaStream

__all__ = ["Launches"]


_Launch = tuple[Function, list[Any], list[tuple[int, int, int]]]
"""A kernel, its arguments, and (place, operand, offset) of those that are memory."""


class Launches:
    """The launches of a recording whose slots are ``given`` operands and memory that it asked for meanwhile."""

    __slots__ = ("_launches", "sizes")

    def __init__(
        self, launches: list[tuple[Function, list[Any], list[tuple[int, int, int]]]], sizes: list[int]
    ) -> None:
        self._launches, self.sizes = launches, sizes

    @classmethod
    def of(cls, recording: Recording, given: Sequence[Slot | None], stream: CudaStream) -> Launches | None:
        """None where it holds anything but launches on these slots. Raises Unlaunchable."""
        roots = [slot.root if slot is not None else None for slot in given]
        found: list[_Launch] = []
        for command in recording.commands:
            if command.kernel is None or command.late:
                return None
            places, base = [], list(command.arguments)
            for at, argument in enumerate(base):
                if isinstance(argument, Slot):
                    if argument.root not in roots:
                        roots.append(argument.root)
                    places.append((at, roots.index(argument.root), argument.offset))
                elif argument is None:
                    base[at] = 0
                elif command.kernel.dtypes[at] is None and hasattr(argument, "int_ptr"):
                    return None  # memory of the plan's own
            found.append((function_of(stream.place.cuda, command.kernel), base, places))
        return cls(found, [root.size for root in roots[len(given) :]])

    def give(self, stream: CudaStream, addresses: list[int]) -> None:
        """Launch everything on ``addresses`` of the operands; scratch memory comes from the stream."""
        held = [stream.allocate(size) for size in self.sizes]
        addresses += [memory.address for memory in held]
        for function, base, places in self._launches:
            arguments = base.copy()
            for at, root, offset in places:
                arguments[at] = addresses[root] + offset
            stream.launch_function(function, arguments)
