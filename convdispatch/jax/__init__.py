"""``lax.conv_general_dilated`` of JAX on these engines, under ``jit``, ``grad`` and ``vmap``, on XLA's buffers.

A convolution of a program becomes a foreign call, whose handler reads and writes XLA's buffers in place. A new
transformation of operands goes to ``geometry``. Needs jax, including private modules: ``pip install
'convdispatch[jax]'``.

- ``calls``: the handlers, and the calls that they run.
- ``ffi``: XLA's foreign calls by ctypes.
- ``geometry``: turns a convolution of jax into a problem.
- ``lowering``: lowers a convolution of jax to a foreign call, or to XLA's operator.
- ``primitive``: ``conv_general_dilated`` and ``enable``.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
