"""JAX's door: ``lax.conv_general_dilated`` on these engines, under ``jit``, ``grad`` and ``vmap``, over XLA's buffers.

A convolution of a program becomes a foreign call, whose handler takes XLA's buffers in place. A new transformation of
operands goes to ``geometry``. Needs jax, of which private modules are used: ``pip install 'convdispatch[jax]'``.

- ``calls``: the handlers, and the calls that they run.
- ``counting``: counts of calls here, and of those left to XLA.
- ``explaining``: ``explain``.
- ``ffi``: XLA's foreign calls by ctypes.
- ``geometry``: a convolution of jax's as a problem.
- ``lowering``: the step from jax's operator to XLA's.
- ``primitive``: ``conv_general_dilated`` and ``enable``.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
