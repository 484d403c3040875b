"""``lax.conv_general_dilated`` of JAX on these engines, under ``jit``, ``grad`` and ``vmap``, on XLA's buffers.

A convolution of a program becomes a foreign call, whose handler reads and writes XLA's buffers in place. A new
transformation of operands goes to ``geometry``. Needs jax, including private modules: ``pip install
'convdispatch[jax]'``.

- ``calls``: the handlers, and the calls that they run.
- ``ffi``: XLA's foreign calls by ctypes.
- ``geometry``: turns a convolution of jax into a problem.
- ``primitive``: ``conv_general_dilated`` and ``enable``, lowered to foreign calls or to XLA's operator.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
