"""convdispatch: one ``conv`` call, many engines, chosen at run time by device and geometry.

The names of ``__all__`` are what callers need; each, modules included, is imported when first used, so that ``import
convdispatch`` is fast and opens no device. What plugins need as well is in ``convdispatch.api``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import api, inference, jax, models, nn, onnx, runtime, torch, train
    from .api import (
        BuildFailed,
        ConvDispatchError,
        ConvDispatchWarning,
        ConvProblem,
        DeviceInfo,
        Explanation,
        Frozen,
        InvalidArgument,
        InvalidPolicy,
        InvalidProblem,
        LoadedPack,
        MemoryLimit,
        NoDevice,
        NoSolver,
        PlanFailed,
        PluginError,
        Quantization,
        Result,
        Results,
        constant,
        conv,
        conv_backward_data,
        conv_backward_weights,
        conv_transpose,
        explain,
        find,
        find_many,
        load_pack,
    )
    from .api.policy import Policy, frozen, policy
    from .tensor import Tensor

__version__ = "0.1.0"
_MODULES = ("api", "inference", "jax", "models", "nn", "onnx", "runtime", "torch", "train")
__all__ = ["conv", "conv_backward_data", "conv_backward_weights", "conv_transpose", "constant", "policy", "frozen"]
__all__ += ["explain", "find", "find_many", "load_pack", "ConvProblem", "DeviceInfo", "Policy", "Quantization"]
__all__ += ["Explanation", "LoadedPack", "Result", "Results", "Tensor", "__version__"]
__all__ += ["BuildFailed", "ConvDispatchError", "ConvDispatchWarning", "Frozen", "InvalidArgument", "InvalidPolicy"]
__all__ += ["InvalidProblem", "MemoryLimit", "NoDevice", "NoSolver", "PlanFailed", "PluginError"]
__all__ += ["api", "inference", "jax", "models", "nn", "onnx", "runtime", "torch", "train"]

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name not in __all__:
            raise AttributeError(f"module 'convdispatch' has no attribute {name!r}; what plugins need is in .api")
        home = importlib.import_module(".tensor" if name == "Tensor" else ".api", __name__)
        value = globals()[name] = getattr(home, name)  # the next use is a plain look-up
        return value


def __dir__() -> list[str]:
    return __all__
