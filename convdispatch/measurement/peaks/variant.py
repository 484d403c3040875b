"""One way to reach a ceiling: a kernel and the work it does, launched and waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl as cl


@dataclass(frozen=True)
class Variant:
    """A kernel that does ``work`` units (operations or bytes) a run."""

    how: str
    work: float
    run: Callable[[], None]


def launcher(
    queue: cl.CommandQueue, kernel: Any, items: int, local: tuple[int, ...] | None, *memory: cl.Buffer
) -> Callable[[], None]:
    """A function that runs ``kernel`` over ``items`` once and waits; keeps ``memory`` alive as long as itself."""
    import pyopencl as cl

    def run(_held: tuple[cl.Buffer, ...] = memory) -> None:  # a kernel's arguments do not keep their memory alive
        cl.enqueue_nd_range_kernel(queue, kernel, (items,), local)
        queue.finish()

    return run
