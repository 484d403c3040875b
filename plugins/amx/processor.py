"""Whether this machine's processor has matrix registers, and leave to use them."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

__all__ = ["missing"]

_NEEDED = ("amx_tile", "amx_bf16")
# Linux gives a process the registers' 8 KB of state a thread on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA),
# https://docs.kernel.org/arch/x86/xstate.html.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def missing() -> str | None:
    """Why this process cannot use the matrix registers, or None; asks the system for them, once."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"x86-64 under Linux only, got {platform.machine()} under {platform.system()}"
    lacking = [flag for flag in _NEEDED if flag not in _flags()]
    if lacking:
        return f"processors with {' and '.join(_NEEDED)} only, got one without {lacking[0]}"
    status = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)
    return None if status == 0 else f"the system grants no matrix registers (errno {ctypes.get_errno()})"


def _flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
