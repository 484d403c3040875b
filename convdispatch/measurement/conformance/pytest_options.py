"""Gives pytest the kit's options, wherever convdispatch is installed; ``test_plugin.py`` beside this file uses them.

Options of a ``conftest.py`` would come too late for ``pytest --pyargs``, so this is a pytest plugin (``pytest11``).
Importing it loads neither NumPy nor OpenCL.
"""

from __future__ import annotations

import contextlib
from typing import Any


def pytest_addoption(parser: Any) -> None:
    """``--plugin``, ``--conformance-level``, ``--conformance-device``, ``--conformance-derived``."""
    group = parser.getgroup("convdispatch conformance")
    options = {
        "--plugin": {
            "default": None,
            "metavar": "NAME",
            "help": "plugin to verify with convdispatch.conformance",
        },
        "--conformance-level": {"default": "full", "help": "core, training, full (default) or accuracy"},
        "--conformance-device": {"default": None, "metavar": "NAME", "help": "device, as convdispatch names it"},
        "--conformance-derived": {"action": "store_true", "help": "also the solvers derived from the plugin's"},
    }
    for name, settings in options.items():
        # Another pytest plugin may have an option of this name, whose users must not get an error.
        with contextlib.suppress(ValueError):
            group.addoption(name, **settings)
