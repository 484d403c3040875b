"""Threads that begin at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(work: Callable[[Any], Any], arguments: int | Iterable[Any]) -> list[Any]:
    """``work`` of each argument (or of 0, 1, …) in a thread of its own: the results; raises what any of them raised."""
    values = list(range(arguments) if isinstance(arguments, int) else arguments)
    barrier = threading.Barrier(len(values))

    def begin(value: Any) -> Any:
        barrier.wait()
        return work(value)

    with ThreadPoolExecutor(len(values)) as pool:
        return [future.result() for future in [pool.submit(begin, value) for value in values]]
