"""convdispatch: one ``conv`` call, many engines, chosen at run time by device and geometry.

The names of ``__all__`` are what callers need; each, modules included, is imported when first used, so that ``import
convdispatch`` is fast and opens no device. Zones import downward only, in the order of this list from its end. A new
thing goes into the lowest zone that has what it needs; CONTRIBUTING.md has a table.

- ``api``: the header: all that a caller or a plugin may import, and the environment variables.
- ``device``: where commands run: vendors, queues, programs, memory, CUDA, recordings, the matrix product.
- ``selection``: plugins, ranking, evidence, lock files, explanation, derived solvers.
- ``measurement``: find, timing, the float64 reference, tables and dialects of problems, the conformance kit.
- ``calls``: ``conv`` and its relatives at work: arguments, arrays, the call cache.
- ``elementwise``: tensors, and kernels from formulas.
- ``tensor``: Tensor and Parameter, under the name by which users import them.
- ``runtime``: devices, queues and memory, as users call them.
- ``nn``: layers, their functions and optimisers.
- ``models``: well-known nets.
- ``inference``: nets that are only run: graphs become fused recordings.
- ``onnx``: model files as nets, and ONNX's own interface.
- ``torch``: PyTorch's convolutions and compiled graphs on these engines.
- ``jax``: JAX's convolutions on these engines.
- ``tools``: the command line and what stands behind it.
"""

from __future__ import annotations

import functools
from typing import Any

__version__ = "0.1.0"


@functools.cache
def _names() -> tuple[Any, list[str]]:
    from .api.lazy import lazy_names

    load, names = lazy_names(globals())
    return load, [*names, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _names()[1]
    if name.startswith("__"):  # Python itself looks such names up in every module.
        raise AttributeError(f"module 'convdispatch' has no attribute {name!r}")
    try:
        return _names()[0](name)
    except AttributeError as error:
        if error.name:  # The error was raised inside the module that was being loaded.
            raise
        raise AttributeError(f"{error}; what plugins need is in .api") from None


def __dir__() -> list[str]:
    return sorted(_names()[1])
