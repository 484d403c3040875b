"""Makes the capture of a stream's graph wait for pending compilations, keeps plans unchanged until it has ended, and
then warns of what it left to PyTorch."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from typing import Any

import torch

from ..api.errors import ConvDispatchWarning
from ..calls.arrays.known_libraries import library_of
from ..calls.framework import autotune, tiers
from ..device.places.stream import StreamPlace, stream_kind

PURPOSE = "a capture waits for kernels"
"""What the progress line says of a capture's wait."""
MAX_NAMED = 3
"""The most problems that one warning names."""
_lock = threading.Lock()
_left: dict[str, str] = {}
"""What the captures under way left to PyTorch, and why."""
_graphs: weakref.WeakSet[Any] = weakref.WeakSet()
"""The graphs that are being captured."""
_exclusive: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those of ``_graphs`` during whose capture no thread may load a program."""


def _streams() -> tuple[type[StreamPlace], Any]:
    """The kind of streams that this build of PyTorch has, and PyTorch's module of them."""
    library: Any = library_of(torch.Tensor)
    kind = stream_kind(library.stream_kind)
    return kind, getattr(torch, kind.torch_type)


def device_type() -> str:
    """The type of PyTorch's devices with streams."""
    return _streams()[0].torch_type


def captured() -> bool:
    """Whether the current stream is being captured."""
    kind, module = _streams()
    if not (kind.torch_graph and module.is_initialized()):  # only an available device is; is_available() takes longer
        return False
    return bool(module.is_current_stream_capturing())


def capturing() -> bool:
    """Whether the current stream is captured, or another thread's capture forbids to load a program in this one."""
    return bool(_exclusive) or captured()


def note_left(what: Any, why: str) -> None:
    """Note that a graph keeps PyTorch's own kernel for a problem or another kernel, because it could not be had during
    the capture. One warning says so when the capture ends; at once where PyTorch's classes do not capture."""
    if captured():
        with _lock:
            _left.setdefault(str(what), why)
        if not _graphs:
            _warn_of_left()


def _warn_of_left() -> None:
    with _lock:
        left = [f"{what} ({why})" for what, why in _left.items()]
        _left.clear()
    if left:
        further = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
        warnings.warn(
            f"a graph keeps PyTorch's own kernels for {'; '.join(left[:MAX_NAMED])}{further}. Before a capture, run "
            "the model once as it will be captured (sizes, dtypes, autocast and TF32 switches), then call "
            "convdispatch.torch.ready()",
            ConvDispatchWarning,
            stacklevel=4,
        )


def watch_captures() -> None:
    """Patch PyTorch's classes of captured graphs so that a capture waits for pending work and keeps plans unchanged;
    once per process."""
    kind, module = _streams()
    if not kind.torch_graph:
        return
    accelerator = getattr(torch, "accelerator", None)
    for graph in (getattr(module, kind.torch_graph), getattr(accelerator, "Graph", None)):
        if graph is not None and not hasattr(graph.capture_begin, "waits_for_kernels"):
            _watch(graph)
    context: Any = getattr(module, "graph", None)
    if context is not None and not hasattr(context.__enter__, "waits_for_kernels"):
        enter = context.__enter__

        # This context makes its own stream the current one before ``capture_begin``, so an interrupt there would leave
        # that stream current.
        @functools.wraps(enter)
        def waiting_enter(self: Any) -> Any:
            tiers.drain(tiers.WAIT_S, PURPOSE)
            return enter(self)

        waiting_enter.waits_for_kernels = True  # type: ignore[attr-defined]
        context.__enter__ = waiting_enter


def _watch(graph: Any) -> None:
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **named: Any) -> Any:
        tiers.drain(tiers.WAIT_S, PURPOSE)
        autotune.capture_begins()
        mode = named.get("capture_error_mode") or (*arguments, None, None)[1] or getattr(self, "capture_error_mode", "")
        _graphs.add(self)
        try:
            if mode not in ("thread_local", "relaxed"):
                _exclusive.add(self)
            tiers.wait_for_builds()
            return begin(self, *arguments, **named)
        except BaseException:
            ended(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return end(self, *arguments, **named)
        finally:
            ended(self)
            _warn_of_left()

    def ended(self: Any) -> None:
        _graphs.discard(self)
        _exclusive.discard(self)
        autotune.capture_ends()

    capture_begin.waits_for_kernels = True  # type: ignore[attr-defined]
    graph.capture_begin, graph.capture_end = capture_begin, capture_end
