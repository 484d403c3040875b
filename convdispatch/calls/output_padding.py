"""Appends zeros to arrays, which a transposed convolution reads where its result extends beyond the last tap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..selection.derivation.copying import Copy, CopyAxis, contiguous
from .arrays.operands import Operands, contiguous_strides
from .arrays.results import maker_of


def extended(x: Any, rows: Sequence[int], layout: str, queue: Any = None) -> Any:
    """Returns a new array of x's kind and queue: ``x`` with zeros appended at the far end of each spatial axis."""
    first = 2 if layout == "nchw" else 1
    more = [0] * len(x.shape)
    more[first : first + len(rows)] = rows
    if isinstance(x, np.ndarray):
        return np.pad(x, [(0, extra) for extra in more])
    shape, dtype = tuple(size + extra for size, extra in zip(x.shape, more, strict=True)), x.dtype
    strides = contiguous_strides(shape, dtype.itemsize)
    queue = x.queue if queue is None else queue
    made = maker_of(type(x), shape, strides, dtype)(queue, x)
    if math.prod(x.shape):
        brought = Operands(queue, queue.context)
        source = brought.read(x, contiguous_strides(x.shape, dtype.itemsize))
        axes = [CopyAxis(*each) for each in zip(shape, contiguous(shape), contiguous(x.shape), x.shape, strict=True)]
        copy = Copy("x", "x", (*(CopyAxis(1, 0, 0, 1) for _ in range(6 - len(axes))), *axes))
        launch = copy.launch(queue.context, SimpleNamespace(itemsize=dtype.itemsize))  # type: ignore[arg-type]
        event = brought.finish(launch(queue, (made.base_data, source), brought.events or None))
        if hasattr(made, "events"):
            made.events[:] = (event,)
    return made
