"""JAX's door: ``lax.conv_general_dilated`` on these engines, under ``jit``, ``grad`` and ``vmap``, over XLA's buffers.

A convolution is read as one of this package's problems (``geometry``) when a program is lowered (``lowering``), and
becomes a foreign call whose handler is Python over XLA's C API (``ffi``, ``calls``): kernels take the buffers where
they lie (``host_call``, ``cuda_call``). ``primitive`` has the function of jax's signature, and ``enable``, by which
jax's own operator is lowered so; ``counting`` and ``explaining`` tell. Needs jax, of which private modules are used:
``pip install 'convdispatch[jax]'``.
"""

from __future__ import annotations

from ..api.lazy import lazy_names

__getattr__, __all__ = lazy_names(globals())
