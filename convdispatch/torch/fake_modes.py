"""Frees what a capture of Dynamo's holds of the model's tensors once it has ended: its fake mode, which describes
them, and its tracing context."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary


class _Thread(threading.local):
    def __init__(self) -> None:
        self.captures: list[weakref.ref[Any]] = []
        """The tracing contexts and the modes of fake tensors of the last captures in this thread."""


_thread = _Thread()


def note_capture(parts: Iterable[Any]) -> None:
    """Remember the tracing context and the fake modes of a capture of this thread, which may not have ended yet."""
    _thread.captures += map(weakref.ref, parts)


def forget_originals() -> None:
    """Let this thread's captures, which have ended, hold no weak reference to the tensors that they described: PyTorch
    swaps no tensor that has one, and captures are freed by the garbage collector alone. The symbols of their sizes
    stay in caches of PyTorch's, and must not hold the modes there."""
    for reference in _thread.captures:
        capture = reference()
        tracked = getattr(getattr(capture, "shape_env", None), "tracked_fakes", None)
        if tracked is not None:
            tracked.clear()
        converter = getattr(capture, "fake_tensor_converter", None)
        describer = getattr(getattr(converter, "meta_converter", None), "describer", None)
        for owner, name in (
            (describer, "lookup_tensor"),
            (describer, "lookup_storage"),
            (capture, "tensor_to_context"),
        ):
            if hasattr(owner, name):
                setattr(owner, name, WeakIdKeyDictionary())
    _thread.captures.clear()
