"""The processors that Intel's OpenCL compiler can compile for, of those whose instructions this machine has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ...api.cpu import flags

VARIABLE = "CL_CONFIG_CPU_TARGET_ARCH"
TARGETS = {"corei7": "sse4_2", "corei7-avx": "avx", "core-avx2": "avx2", "skx": "avx512f"}
"""Name to the instructions that its code needs, as Linux names them."""


def runnable() -> list[str]:
    """Those that this machine can run; none where that cannot be told."""
    return [name for name, needs in TARGETS.items() if needs in flags()]


@contextlib.contextmanager
def compiling_for(target: str | None) -> Iterator[None]:
    """Processes begun inside the block compile anew, for ``target``; None: for the machine itself."""
    changed = {"CONVDISPATCH_KERNEL_CACHE": "off", "PYOPENCL_NO_CACHE": "1"} | ({VARIABLE: target} if target else {})
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
