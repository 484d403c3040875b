"""convdispatch: one ``conv`` call, many engines, chosen at run time by device and geometry.

Everything public lives in ``convdispatch.api``; its names are here too, imported when first used, so that ``import
convdispatch`` is fast and opens no device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .api import __all__ as _api_names

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .tensor import Tensor as Tensor

__version__ = "0.1.0"
__all__ = sorted([*_api_names, "Tensor", "__version__"])


def __getattr__(name: str) -> Any:
    if name == "Tensor":
        from . import tensor

        value = tensor.Tensor
    elif name in _api_names:
        from . import api

        value = getattr(api, name)
    else:
        raise AttributeError(f"module 'convdispatch' has no attribute {name!r}")
    globals()[name] = value  # the next use is a plain look-up
    return value


def __dir__() -> list[str]:
    return __all__
