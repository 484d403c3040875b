"""The programs of ``examples/`` as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from paths import ROOT


def example(name: str) -> ModuleType:
    """The module of ``examples/NAME.py``."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
