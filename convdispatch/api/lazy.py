"""Packages whose names load when first used: their stub (``__init__.pyi``) is the list of names and of their homes.

A stub has lines ``from ..calls.conv import conv as conv``; type checkers read it in place of the package, which reads
it here, so that a name stands once.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["homes", "lazy_names"]

_LINE = re.compile(r"^from (\.[\w.]*) import (\w+) as (\w+)$", re.MULTILINE)


def homes(file: str) -> dict[str, tuple[str, str]]:
    """For the ``__file__`` of a module: each name of its stub, with the module that has it and its name there."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: (module, there) for module, there, name in _LINE.findall(stub)}


def lazy_names(namespace: dict[str, Any]) -> tuple[Callable[[str], Any], list[str]]:
    """``__getattr__`` and ``__all__`` of a module by its ``globals()``. A name is stored there once it was used.

    ``from . import nn as nn`` is the module itself. An unknown name raises AttributeError.
    """
    found, package = homes(namespace["__file__"]), namespace["__package__"]

    def load(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        module, there = found[name]
        if module.strip("."):
            value = getattr(importlib.import_module(module, package), there)
        else:
            value = importlib.import_module(module + there, package)
        namespace[name] = value
        return value

    return load, sorted(found)
