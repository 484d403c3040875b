"""im2col: convolution as a matrix product over a lowered copy of the input; accepts every problem.

    y[oc, (image, position)] = sum over k of w[oc, k] L[k, (image, position)],   k = (channel, tap)

A new method is a module with ``configs`` and a class of its configuration, and a row of ``solver._METHODS``.

- ``window``: the sliding window: which source element is where in the lowered matrix L.
- ``lower``: L written in chunks.
- ``product``: the forward product, and the data gradient of stride 1 with the taps flipped.
- ``col2im``: the data gradient in general.
- ``weights``: the weights' gradient.
- ``depthwise``: one channel per group in NCHW, lowered in registers.
- ``convert``: float32 copies of 16-bit tensors.
- ``solver``: the solver, which chooses among the methods.
"""

from __future__ import annotations

from typing import Any

from convdispatch.api import EPILOGUE, FLOATS, Declared, Solver, hookimpl

__all__ = ["Im2col", "convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Solver]:
    """Return the one solver of this plugin."""
    return [Declared(f"{__name__}.solver", "Im2col", name="im2col", fuses=EPILOGUE, dtypes=FLOATS, exact=True,
                     spreads_nonfinite=False, batch_invariant=True)]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "Im2col":
        raise AttributeError(name)
    from .solver import Im2col

    return Im2col
