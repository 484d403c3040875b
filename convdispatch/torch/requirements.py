"""What this package requires of PyTorch: its version, and private names. Checked once, at import."""

from __future__ import annotations

import functools
import importlib
from typing import Any

TESTED = "2.11 to 2.13"
"""The PyTorch versions with which this package was tested."""
_CORE = {
    "torch.library.get_kernel": "an operator's kernel before it is overridden cannot be kept",
    "torch.library.register_autograd": "operators cannot have gradients",
    "torch._C._is_tracing": "torch.jit.trace would record results as constants",
    "torch._C._select_conv_backend": "the layout of a convolution's result cannot be known",
    "torch._C._conv_determine_backend_memory_format": "the layout of a convolution's result cannot be known",
    "torch._C._dynamo.eval_frame.get_eval_frame_callback": "Dynamo would capture the code of our operators",
    **{
        f"torch._C.{name}": "PyTorch's switches cannot be read"
        for name in (
            "_get_cudnn_allow_tf32",
            "_get_cudnn_benchmark",
            "_get_cudnn_deterministic",
            "_get_deterministic_algorithms",
            "_get_float32_matmul_precision",
        )
    },
}


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        parts = path.split(".")
        value: Any = importlib.import_module(parts[0])
        for part in parts[1:]:
            value = getattr(value, part, None)
        return value


def lacking(names: dict[str, str], version: str | None = None) -> str | None:
    """A message about the first of PyTorch's ``names`` that this PyTorch lacks, and what that prevents; None if it has
    all."""
    if version is None:
        version = importlib.import_module("torch").__version__
    for path, consequence in names.items():
        if _found(path) is None:
            return (
                f"PyTorch {version} has no {path}, so {consequence}; convdispatch.torch was tested with PyTorch "
                f"{TESTED}: pip install 'convdispatch[torch]'"
            )
    return None


@functools.lru_cache(maxsize=1)
def require() -> None:
    """Raises ImportError, with a message, if PyTorch is missing or lacks what this package needs."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(f"convdispatch.torch needs PyTorch: pip install 'convdispatch[torch]' ({error})") from error
    sentence = lacking(_CORE)
    if sentence:
        raise ImportError(sentence)
