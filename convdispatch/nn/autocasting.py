"""Mixed precision: inside ``autocast`` convolutions and linear maps compute in 16 bits, weights stay float32.

Operands are rounded on the way in, and gradients come back in the dtype of what they are of. What follows (batch
norms, activations, poolings) takes the dtype that reaches it, and sums in float32 (Micikevicius et al. 2018).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..api.dtypes import numpy_dtype
from ..api.errors import InvalidArgument
from ..elementwise import apply
from ..elementwise.tensor import Tensor
from .tape import current_tape, paused

_threads = threading.local()


class autocast:  # noqa: N801 (a context manager, used like a function)
    """Inside the block, in this thread, products are of ``dtype``: "float16", "bfloat16", or "float32" for as it is.

        with autocast("bfloat16"), Tape() as tape:
            loss = cross_entropy(net(x).astype("float32"), labels)
        tape.backward(loss)

    Raises InvalidArgument for another dtype.
    """

    def __init__(self, dtype: Any) -> None:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        if name not in ("float16", "bfloat16", "float32"):
            raise InvalidArgument(f"autocast takes float16, bfloat16 or float32, got {name}")
        self._dtype = None if name == "float32" else numpy_dtype(name)

    def __enter__(self) -> None:
        self._outer = getattr(_threads, "dtype", None)
        _threads.dtype = self._dtype

    def __exit__(self, *error: object) -> None:
        _threads.dtype = self._outer


def cast(*operands: Any) -> Any:
    """The operands in the dtype that is in force, those that are float32 or another 16-bit dtype; None stays None."""
    dtype = getattr(_threads, "dtype", None)
    return operands if dtype is None else tuple(_cast(x, dtype) for x in operands)


def _cast(x: Any, dtype: np.dtype) -> Any:
    if not isinstance(x, Tensor) or x.dtype == dtype or x.dtype.itemsize > 4 or x.dtype.kind in "iub":
        return x
    tape = current_tape()
    with paused():
        y = apply("x", x=x, dtype=dtype)
    if tape is not None and tape.tracks(x):
        original_dtype = x.dtype
        tape.record(y, (x,), lambda dy: (dy if dy.dtype == original_dtype else apply("x", x=dy, dtype=original_dtype),))
    return y
