"""The compiled module of the native call path, or the reason why there is none.

``pip install`` builds it if a C++ compiler and PyTorch's headers are there; ``python -m
convdispatch.device.native.build`` builds it in place. It uses PyTorch's stable C interface and Python's limited one, so
that one build serves PyTorch from 2.11 on. Without it everything works, and a call costs some microseconds more.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from ...api import settings
from ...api.policy import ask_policy

DRIVER = "libcuda.so.1"
_MIN_TORCH = (2, 11)


@functools.lru_cache(maxsize=1)
def _loaded() -> tuple[Any, str | None]:
    torch = sys.modules.get("torch")
    if torch is None:
        return None, "PyTorch is not imported"
    if not settings.NATIVE.value():
        return None, "CONVDISPATCH_NATIVE=0 turns it off"
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _MIN_TORCH:
        return None, f"needs PyTorch {'.'.join(map(str, _MIN_TORCH))} or later, got {torch.__version__}"
    try:
        module = importlib.import_module(f"{__package__}._launcher")
    except ImportError as error:
        if error.name == f"{__package__}._launcher" or "No module named" in str(error):
            return None, "it is not built: python -m convdispatch.device.native.build says why, or builds it"
        return None, f"it does not load: {str(error).splitlines()[0]}"
    from .build import sources  # imported only here; PyTorch has already imported the modules that it needs

    if module.__doc__ != sources():  # the module was built from other sources, as in a checkout that was updated since
        return None, "it is built from other sources: python -m convdispatch.device.native.build builds it anew"
    return module, None


def module() -> Any:
    """The compiled module, with or without CUDA; None if there is none."""
    return _loaded()[0]


def launcher() -> Any:
    """The compiled module with CUDA's driver open; None if there is none: ``unavailable`` returns the reason."""
    return None if unavailable() else _loaded()[0]


def host_launcher() -> Any:
    """The compiled module for a CPU, without CUDA; None if there is none."""
    return None if _opened("") else _loaded()[0]


def unavailable() -> str | None:
    """The reason why calls on CUDA go through Python; None if the native path runs."""
    return _opened(DRIVER)


def last() -> list[str]:
    """The solvers whose launches the native path made last, the latest first."""
    return _loaded()[0].launches() if _loaded.cache_info().currsize and _loaded()[0] is not None else []


@functools.lru_cache(maxsize=4)
def _opened(driver: str) -> str | None:
    module, reason = _loaded()
    if module is None:
        return reason
    try:
        module.open(driver, ask_policy, *_handles(sys.modules["torch"]))
    except (AttributeError, RuntimeError) as error:
        return str(error)
    return None


def _handles(torch: Any) -> tuple[Any, Any]:
    """Returns two functions: a tensor from its handle, which stays valid, and a new handle of a tensor. Raises
    RuntimeError."""
    handles, probe = torch._C._aoti, torch.empty(0)
    capsule = handles.unsafe_alloc_void_ptr_from_tensor(probe)
    use_count = probe._use_count()
    handles.alloc_tensor_by_stealing_from_void_ptr(capsule)
    # `stealing` in the function's name says that it takes the handle over, which a later PyTorch may really do.
    if probe._use_count() != use_count:
        raise RuntimeError("this PyTorch takes handles over where it left them before")
    handles.alloc_tensors_by_stealing_from_void_ptrs([capsule])
    return handles.alloc_tensor_by_stealing_from_void_ptr, handles.unsafe_alloc_void_ptr_from_tensor
