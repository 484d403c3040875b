"""Whether this machine's processor has the instructions, and a process leave to use matrix registers."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from convdispatch.api import DeviceInfo, cpus_only

__all__ = ["serves_tiles", "serves_vectors"]

# Linux gives a process the registers' 8 KB of state a thread on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA),
# https://docs.kernel.org/arch/x86/xstate.html.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


def serves_vectors(device: DeviceInfo) -> str | None:
    """Why a device has no AVX512-VNNI from OpenCL, or None."""
    return _intels(device) or _missing(("avx512f", "avx512_vnni"))


def serves_tiles(device: DeviceInfo) -> str | None:
    """Why a device has no matrix registers for bytes from OpenCL, or None."""
    return _intels(device) or _missing(("amx_tile", "amx_int8"))


def _intels(device: DeviceInfo) -> str | None:
    other = cpus_only(device)
    if other is None and (device.vendor != "intel" or device.simd_width < 16):
        return f"Intel's runtime with vectors of 16 floats only, got {device.vendor} with {device.simd_width}"
    return other


@functools.cache
def _missing(needed: tuple[str, ...]) -> str | None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"x86-64 under Linux only, got {platform.machine()} under {platform.system()}"
    lacking = [flag for flag in needed if flag not in _flags()]
    if lacking:
        return f"processors with {' and '.join(needed)} only, got one without {lacking[0]}"
    return _granted() if "amx_tile" in needed else None


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
