"""Where the project and what tests share lie."""

from __future__ import annotations

import sys
from pathlib import Path

SUPPORT = Path(__file__).parent
"""The folder of what several tests use: stand-ins, plugins with faults, kernels, tables."""
ROOT = SUPPORT.parent.parent
"""The folder of the project."""
if str(ROOT) not in sys.path:  # scripts of this folder find bench, whose nets and calls tests use, too
    sys.path.append(str(ROOT))
