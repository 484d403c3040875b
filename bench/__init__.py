"""What measures: ``python -m bench`` lists the cases, ``python -m bench NAME`` runs one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["again"]


def again(case: str) -> list[str]:
    """The command that runs a case in a child process, whose first folder of imports is this project's."""
    root = str(Path(__file__).parents[1])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, *paths]))
    return [sys.executable, "-m", "bench", case]
