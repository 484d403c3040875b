"""The processors that Intel's OpenCL compiler can compile for, of those whose instructions this machine has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from paths import SUPPORT

from convdispatch.api import settings
from convdispatch.api.cpu import flags

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
    with settings.changed(changed), finding_this():
        yield


@contextlib.contextmanager
def finding_this() -> Iterator[None]:
    """Processes begun inside the block find this package."""
    paths = [str(SUPPORT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    with settings.changed({"PYTHONPATH": os.pathsep.join(paths)}):
        yield
