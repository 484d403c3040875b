"""Whether this machine's processor has the instructions, and a process leave to use matrix registers."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

__all__ = ["missing"]

_NEEDED = {False: ("amx_tile", "amx_bf16"), True: ("avx512_bf16",)}
"""By whether vectors are meant."""
# Linux gives a process the registers' 8 KB of state a thread on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA),
# https://docs.kernel.org/arch/x86/xstate.html.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def missing(vectors: bool = False) -> str | None:
    """Why this process cannot use the matrix registers, for which it asks the system once, or vectors; or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"x86-64 under Linux only, got {platform.machine()} under {platform.system()}"
    needed = _NEEDED[vectors]
    lacking = [flag for flag in needed if flag not in _flags()]
    if lacking:
        return f"processors with {' and '.join(needed)} only, got one without {lacking[0]}"
    if vectors:
        return None
    return _granted()


def _granted() -> str | None:
    status = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)
    return None if status == 0 else f"the system grants no matrix registers (errno {ctypes.get_errno()})"


def _flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
