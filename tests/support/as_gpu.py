"""Modules that make kernels as for a GPU, on whatever device there is: run item by item, as ``item_by_item`` says."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

import pyopencl as cl
import pytest

from convdispatch.device import runtime
from convdispatch.device.programs import kernels

HINT = "#define kernel __attribute__((vec_type_hint(float16))) kernel\n"
"""Before a kernel's text: work items run one after another on a CPU, and its compiler makes one form, not two."""


def hinted(context: cl.Context, text: str | bytes) -> str | bytes:
    """The text with the hint, where a CPU runs it; a GPU's program may also be PTX."""
    return HINT + text if all(device.type & cl.device_type.CPU for device in context.devices) else text


optimised = False
"""With ``--full``. What a CPU's compiler makes of a GPU's kernel is no GPU's code, and its optimisations take longer
than all the rest of it."""


def hurried(context: cl.Context, options: Sequence[str]) -> Sequence[str]:
    """The options, and where a CPU runs it, none of its compiler's optimisations."""
    cpu = all(device.type & cl.device_type.CPU for device in context.devices)
    return (*options, "-cl-opt-disable") if cpu and not optimised else options


def as_gpu(monkeypatch: pytest.MonkeyPatch, *modules: types.ModuleType, **changes: Any) -> None:
    """Let each module think that the device is a GPU; ``changes`` are to what else is known of it."""
    known = {name: getattr(runtime, name) for name in dir(runtime) if not name.startswith("__")}
    known["device_info"] = lambda device: dataclasses.replace(runtime.device_info(device), type="gpu", **changes)

    def build(context: cl.Context, text: str, options: Sequence[str] = ()) -> cl.Program:
        return kernels.build(context, hinted(context, text), hurried(context, options))

    for module in modules:
        monkeypatch.setattr(module, "runtime", types.SimpleNamespace(**known))
        monkeypatch.setattr(module, "build", build)
