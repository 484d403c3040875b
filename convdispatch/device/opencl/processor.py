"""Which processor a CPU device is: its family and model, the widest instructions, the sizes of its caches.

A cloud gives one name to several generations, whose choices differ. Linux tells; elsewhere nothing is known.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_FEATURES = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
_CPUINFO, _CACHES = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache")


@functools.lru_cache(maxsize=1)
def here() -> str:
    """This machine's processor, and the target that its compiler was told; nothing where that is not known."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return ""
    sizes = []
    for level in (2, 3):
        for index in sorted(_CACHES.glob("index*")) if _CACHES.is_dir() else ():
            try:
                if int((index / "level").read_text()) == level:
                    sizes.append((index / "size").read_text().strip().lower())
            except (OSError, ValueError):
                continue
    return described(text, sizes, os.environ.get("CL_CONFIG_CPU_TARGET_ARCH", ""))


def described(cpuinfo: str, caches: list[str], target: str = "") -> str:
    """A few words from the text of ``/proc/cpuinfo`` and the caches' sizes, as ``f6m207 amx_tile 2048k 266240k``."""
    values = {}
    for line in cpuinfo.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        values[name.strip()] = value.strip()
    family, model = values.get("cpu family", ""), values.get("model", "")
    if not (family.isdigit() and model.isdigit()):
        return ""
    flags = values.get("flags", "").split()
    widest = [feature for feature in _FEATURES if feature in flags][:1]
    return " ".join([f"f{family}m{model}", *widest, *caches, *target.split()])
