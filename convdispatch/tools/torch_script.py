"""Makes ready a PyTorch model that a script returns: ``net.py:build``, where ``build()`` answers (model, inputs)."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any

from ..api.errors import InvalidArgument
from ..api.policy import policy

_DTYPES = ("float16", "bfloat16")


def is_script(what: str) -> bool:
    """Whether a command's argument names a Python file, perhaps with a function of it."""
    path, _, _ = what.partition(":")
    return path.endswith(".py")


def _built(script: str) -> tuple[Any, tuple[Any, ...]]:
    path, _, name = script.partition(":")
    if not Path(path).is_file():
        raise InvalidArgument(f"there is no file {path}: name a script as net.py:function, got {script!r}")
    # The script's folder is put on the import path, as ``python net.py`` does.
    sys.path.insert(0, str(Path(path).resolve().parent))
    function = runpy.run_path(path, run_name="convdispatch_pack").get(name or "build")
    if not callable(function):
        raise InvalidArgument(f"{path} has no function {name or 'build'}, which answers (model, inputs)")
    answer = function()
    if not (isinstance(answer, tuple) and len(answer) == 2 and callable(answer[0])):
        raise InvalidArgument(f"{name or 'build'}() of {path} must answer (model, inputs), got {type(answer).__name__}")
    model, inputs = answer
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def make_ready(what: str, training: bool = False, autocast: str | None = None) -> Any:
    """Run the script's model once under ``enable()``, with its backward where it trains; the model, kept alive.

    Raises InvalidArgument for what is no such script.
    """
    import torch

    from .. import torch as door

    model, inputs = _built(what)
    if autocast is not None and autocast not in _DTYPES:
        raise InvalidArgument(f"autocast must be one of {', '.join(_DTYPES)}, got {autocast!r}")
    on = next((x.device.type for x in inputs if isinstance(x, torch.Tensor) and not x.is_cpu), "cpu")
    casting = torch.autocast(on, dtype=getattr(torch, autocast)) if autocast else contextlib.nullcontext()
    with policy(tier="full"), door.enable(), contextlib.nullcontext() if training else torch.inference_mode():
        with casting:
            door.prepare(model, *inputs)
            output = model(*inputs)
        if training:
            sum(each.float().sum() for each in _tensors(output) if each.requires_grad).backward()  # type: ignore
    return model


def _tensors(output: Any) -> list[Any]:
    """The tensors of a model's result, however it is nested."""
    if hasattr(output, "detach"):
        return [output]
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return [each for value in values for each in _tensors(value)]
