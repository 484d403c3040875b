"""convdispatch: one ``conv`` call, many engines, chosen at run time by device and geometry.

The names of ``__all__`` are what callers need; each, modules included, is imported when first used, so that ``import
convdispatch`` is fast and opens no device. What plugins need as well is in ``convdispatch.api``.
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
    if name.startswith("__"):  # what Python itself asks of any module
        raise AttributeError(f"module 'convdispatch' has no attribute {name!r}")
    try:
        return _names()[0](name)
    except AttributeError as error:
        if error.name:  # of a module that is loaded
            raise
        raise AttributeError(f"{error}; what plugins need is in .api") from None


def __dir__() -> list[str]:
    return sorted(_names()[1])
