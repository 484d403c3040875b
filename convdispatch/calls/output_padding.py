"""Appends zeros to an array, which a transposed convolution needs if its result extends beyond the last tap."""

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
    """Returns a new array of x's kind and queue: ``x`` with ``rows`` zeros appended at the end of each spatial axis."""
    first_axis = 2 if layout == "nchw" else 1
    appended = [0] * len(x.shape)
    appended[first_axis : first_axis + len(rows)] = rows
    if isinstance(x, np.ndarray):
        return np.pad(x, [(0, extra) for extra in appended])
    shape, dtype = tuple(size + extra for size, extra in zip(x.shape, appended, strict=True)), x.dtype
    strides = contiguous_strides(shape, dtype.itemsize)
    queue = x.queue if queue is None else queue
    result = maker_of(type(x), shape, strides, dtype)(queue, x)
    if math.prod(x.shape):
        operands = Operands(queue, queue.context)
        source = operands.read(x, contiguous_strides(tuple(x.shape), dtype.itemsize))
        axes = [CopyAxis(*each) for each in zip(shape, contiguous(shape), contiguous(x.shape), x.shape, strict=True)]
        copy = Copy("x", "x", (*(CopyAxis(1, 0, 0, 1) for _ in range(6 - len(axes))), *axes))
        launch = copy.launch(queue.context, SimpleNamespace(itemsize=dtype.itemsize))  # type: ignore[arg-type]
        event = operands.finish(launch(queue, (result.base_data, source), operands.events or None))
        if hasattr(result, "events"):
            result.events[:] = (event,)
    return result
