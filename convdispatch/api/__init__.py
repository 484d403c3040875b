"""The header: all that a caller or a plugin may import. Names load when first used.

Callers: ``conv`` and its relatives, ``constant``, ``policy``, ``frozen``, ``explain``, ``ConvProblem``, the errors.
Plugins: ``Solver``, ``Declared``, ``Plan``, ``DeviceInfo``, ``hookimpl``, ``KernelPlan``, ``StepPlan``, and the shared
kernel text and matrix product that plans are made of. ``convdispatch.api.cuda`` has what plugins over CUDA's libraries
need.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..calls.conv import constant, conv, conv_backward_data, conv_backward_weights, conv_transpose
    from ..calls.explaining import explain
    from ..cluster.finding import find_many
    from ..device.gemm import LAUNCH as GEMM_LAUNCH
    from ..device.gemm import PACKED as GEMM_PACKED
    from ..device.gemm import Axis, Epilogue, GemmPlan, GemmSpec, Matrix, packed_layout
    from ..device.gemm import configs as gemm_configs
    from ..device.gemm import product_cost as gemm_cost
    from ..device.gemm import workspace_size as gemm_workspace
    from ..device.plans.steps import Areas, Product, Step, StepPlan
    from ..device.programs.kernels import (
        OPERANDS,
        KernelPlan,
        Launch,
        build,
        config_macros,
        define,
        kernel_text,
    )
    from ..device.programs.proven import proven
    from ..device.rates import rates
    from ..measurement.find import find
    from ..measurement.sampled import sampled_fault
    from ..selection.explanation import Explanation
    from ..selection.planpack import LoadedPack, load_pack
    from .activations import activation_macro
    from .declared import Declared, cpus_only, gpus_only
    from .device import DeviceInfo
    from .dtypes import DTYPES, storage_macros
    from .errors import (
        BuildFailed,
        ConvDispatchError,
        ConvDispatchWarning,
        Frozen,
        InvalidArgument,
        InvalidPolicy,
        InvalidProblem,
        MemoryLimit,
        NoDevice,
        NoSolver,
        PlanFailed,
        PluginError,
    )
    from .geometry import Geometry, Phase, TensorLayout, geometry_of
    from .hookspecs import API_VERSION, hookimpl
    from .policy import Policy, frozen, policy
    from .problem import ConvProblem, epilogue_macros
    from .quantization import Quantization
    from .rates import DeviceRates
    from .results import Result, Results
    from .solver import EPILOGUE, Plan, Solver

_HOME = {
    ".activations": ["activation_macro"],
    "..calls.conv": ["constant", "conv", "conv_backward_data", "conv_backward_weights", "conv_transpose"],
    ".declared": ["Declared", "cpus_only", "gpus_only"],
    ".device": ["DeviceInfo"],
    ".dtypes": ["DTYPES", "storage_macros"],
    ".errors": [
        "BuildFailed",
        "ConvDispatchError",
        "ConvDispatchWarning",
        "Frozen",
        "InvalidArgument",
        "InvalidPolicy",
        "InvalidProblem",
        "MemoryLimit",
        "NoDevice",
        "NoSolver",
        "PlanFailed",
        "PluginError",
    ],
    ".results": ["Result", "Results"],
    "..measurement.find": ["find"],
    "..cluster.finding": ["find_many"],
    ".hookspecs": ["API_VERSION", "hookimpl"],
    ".policy": ["Policy", "frozen", "policy"],
    ".problem": ["ConvProblem", "epilogue_macros"],
    ".quantization": ["Quantization"],
    "..device.programs.proven": ["proven"],
    "..device.rates": ["rates"],
    ".rates": ["DeviceRates"],
    ".solver": ["EPILOGUE", "Plan", "Solver"],
    ".geometry": ["MOST_PHASES", "Phase", "TensorLayout", "Geometry", "geometry_of", "phase_count"],
    "..calls.explaining": ["explain"],
    "..selection.explanation": ["Explanation"],
    "..selection.planpack": ["LoadedPack", "load_pack"],
    "..device.gemm": [
        "Axis",
        "Epilogue",
        "GEMM_LAUNCH",
        "GEMM_PACKED",
        "GemmPlan",
        "GemmSpec",
        "Matrix",
        "gemm_configs",
        "gemm_cost",
        "gemm_workspace",
        "packed_layout",
    ],
    "..device.programs.kernels": [
        "OPERANDS",
        "KernelPlan",
        "Launch",
        "build",
        "config_macros",
        "define",
        "kernel_text",
    ],
    "..measurement.sampled": ["sampled_fault"],
    "..device.plans.steps": ["Areas", "Product", "Step", "StepPlan"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_NAMED_THERE = {
    "GEMM_LAUNCH": "LAUNCH",
    "GEMM_PACKED": "PACKED",
    "gemm_configs": "configs",
    "gemm_cost": "product_cost",
    "gemm_workspace": "workspace_size",
}

__all__ = ["API_VERSION", "Areas", "Axis", "BuildFailed", "ConvDispatchError", "ConvDispatchWarning", "ConvProblem"]
__all__ += ["DTYPES", "Declared", "DeviceInfo", "DeviceRates", "EPILOGUE", "Epilogue", "Explanation", "Frozen"]
__all__ += ["GEMM_LAUNCH", "GEMM_PACKED", "GemmPlan", "GemmSpec", "Geometry", "InvalidArgument", "InvalidPolicy"]
__all__ += ["InvalidProblem", "KernelPlan", "Launch", "LoadedPack", "MOST_PHASES", "Matrix", "MemoryLimit"]
__all__ += ["NoDevice", "NoSolver", "OPERANDS", "Phase", "Plan", "PlanFailed", "PluginError", "Policy", "Product"]
__all__ += ["Quantization", "Result", "Results", "Solver", "Step", "StepPlan", "TensorLayout", "activation_macro"]
__all__ += ["build", "config_macros", "constant", "conv", "conv_backward_data", "conv_backward_weights"]
__all__ += ["conv_transpose", "cpus_only", "define", "epilogue_macros", "explain", "find", "find_many", "frozen"]
__all__ += ["gemm_configs", "gemm_cost", "gemm_workspace", "geometry_of", "gpus_only", "hookimpl", "kernel_text"]
__all__ += ["load_pack", "packed_layout", "phase_count", "policy", "proven", "rates", "sampled_fault"]
__all__ += ["storage_macros"]


class _Header(types.ModuleType):
    """A package whose names load on first use, also those that a submodule shares (``conv``, ``policy``).

    Importing ``convdispatch.calls.conv`` would bind the submodule over the function; that assignment is dropped.
    """

    def __getattr__(self, name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module, __name__), _NAMED_THERE.get(name, name))
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE_OF and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Header
