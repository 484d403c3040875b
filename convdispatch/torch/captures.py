"""Makes the capture of a stream's graph wait for pending compilations, and keeps plans unchanged until it has ended."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..calls.arrays.known_libraries import library_of
from ..calls.framework import autotune, tiers
from ..device.places.stream import StreamPlace, stream_kind


def _streams() -> tuple[type[StreamPlace], Any]:
    """The kind of streams that this build of PyTorch has, and PyTorch's module of them."""
    library: Any = library_of(torch.Tensor)
    kind = stream_kind(library.stream_kind)
    return kind, getattr(torch, kind.torch_type)


def device_type() -> str:
    """The type of PyTorch's devices with streams."""
    return _streams()[0].torch_type


def capturing() -> bool:
    """Whether the current stream is being captured."""
    kind, module = _streams()
    if not (kind.torch_graph and module.is_available() and module.is_initialized()):
        return False
    return bool(module.is_current_stream_capturing())


def watch_captures() -> None:
    """Patch PyTorch's class of captured graphs so that a capture waits for pending work and keeps plans unchanged; once
    per process."""
    kind, module = _streams()
    if not kind.torch_graph:
        return
    graph: Any = getattr(module, kind.torch_graph)
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
