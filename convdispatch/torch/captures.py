"""A CUDA graph's capture begins once everything pending is there, and sees no change of plans until it has ended."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..calls.framework import autotune, tiers


def capturing() -> bool:
    """Whether commands of the current stream are being captured."""
    return torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def watch_captures() -> None:
    """From now on captures begin so; nothing where they do already."""
    graph: Any = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end
    if getattr(begin, "keeps_plans_out", False):
        return

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **named: Any) -> Any:
        autotune.capture_begins()
        try:
            tiers.drain()
            return begin(self, *arguments, **named)
        except BaseException:
            autotune.capture_ends()
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return end(self, *arguments, **named)
        finally:
            autotune.capture_ends()

    capture_begin.keeps_plans_out = True  # type: ignore[attr-defined]
    graph.capture_begin, graph.capture_end = capture_begin, capture_end
