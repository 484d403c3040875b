"""im2col: convolution as a matrix product over a lowered copy of the input; accepts every problem.

    y[oc, (image, place)] = sum over k of w[oc, k] L[k, (image, place)],   k = (channel, tap)

``window`` says what L holds, ``lower`` writes it in chunks, ``product`` multiplies (forward, and the data gradient of
stride 1 with the taps flipped), ``col2im`` is the data gradient in general, ``weights`` the weights' gradient.
"""

from __future__ import annotations

from convdispatch.api import hookimpl

from .solver import Im2col

__all__ = ["Im2col", "convdispatch_solvers"]


@hookimpl
def convdispatch_solvers() -> list[Im2col]:
    """The one solver of this plugin."""
    return [Im2col()]
