"""Makes a CUDA graph capture wait for pending compilations, and keeps plans unchanged until the capture has ended."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..calls.framework import autotune, tiers


def capturing() -> bool:
    """Whether the current CUDA stream is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def watch_captures() -> None:
    """Patch ``torch.cuda.CUDAGraph`` so that a capture waits for pending work and keeps plans unchanged; once per
    process."""
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
