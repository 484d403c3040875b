"""Frees what a capture of Dynamo's holds of the model's tensors once it has ended: its fake mode, which describes
them, and its tracing context."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

_captures: list[weakref.ref[Any]] = []
"""The tracing contexts and the modes of fake tensors of the last captures, which began while Dynamo's lock was held."""


def note_capture(parts: Iterable[Any]) -> None:
    """Remember the tracing context and the fake modes of a capture of this thread, which may not have ended yet."""
    _captures.extend(map(weakref.ref, parts))


def forget_originals() -> None:
    """Let all captures that were noted and have ended hold no weak reference to the tensors that they described:
    PyTorch swaps no tensor that has one, and captures are freed by the garbage collector alone. The symbols of their
    sizes stay in caches of PyTorch's, and must not hold the modes there. Waits for captures of other threads."""
    if not _captures:
        return
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        _forget()


def _forget() -> None:
    for reference in _captures:
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
    _captures.clear()
