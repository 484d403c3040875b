"""Packages whose names load when first used: their stub (``__init__.pyi``) is the list of names and of their homes.

A stub has lines ``from ..calls.conv import conv as conv``. Both type checkers and this module read it, so that a name
is listed only once.
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
    """For the ``__file__`` of a module: each name of its stub, with its module and its name in that module."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: (module, name_in_module) for module, name_in_module, name in _LINE.findall(stub)}


def lazy_names(namespace: dict[str, Any]) -> tuple[Callable[[str], Any], list[str]]:
    """Returns ``__getattr__`` and ``__all__`` for a module's ``globals()``, in which a name is stored once it was used.

    ``from . import nn as nn`` is the module itself. An unknown name raises AttributeError.
    """
    stub_names, package = homes(namespace["__file__"]), namespace["__package__"]

    def load(name: str) -> Any:
        if name not in stub_names:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        module, name_there = stub_names[name]
        if module.strip("."):
            value = getattr(importlib.import_module(module, package), name_there)
        else:
            value = importlib.import_module(module + name_there, package)
        namespace[name] = value
        return value

    return load, sorted(stub_names)
