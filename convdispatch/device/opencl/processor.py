"""Which processor a CPU device is: its family and model, the widest instructions, the sizes of its caches.

A cloud gives one name to several generations, whose choices differ. Linux tells; elsewhere nothing is known.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_FEATURES = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
_CPUINFO, _CACHES = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache")
_GROUPS = Path("/sys/fs/cgroup")
"""Control groups: cpu.max of version 2, cpu.cfs_quota_us and cpu.cfs_period_us of version 1."""


@functools.lru_cache(maxsize=1)
def here() -> str:
    """This machine's processor, and the target for which its compiler was configured; empty where they are not
    known."""
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


def quota(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors' time a second that this process's control group, and those around it, may use; None: all of it."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    found = []
    for _, names, path in (line for line in lines if len(line) == 3):
        root = groups if not names else groups / names
        if names and "cpu" not in names.split(","):
            continue
        inner = root / path.strip("/")
        # A container may not see the path of its process's own control group, only those above.
        for folder in (inner, *inner.parents):
            if folder == root.parent:
                break
            limit = _limit(folder)
            if limit is not None:
                found.append(limit)
    return min(found, default=None)


def _limit(group: Path) -> float | None:
    """The quota of one control group alone, in processors."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            given, period = " ".join((group / name).read_text(encoding="utf-8") for name in names).split()
            if given.isdigit() and int(given) and int(period):
                return int(given) / int(period)
        except (OSError, ValueError):
            continue
    return None
