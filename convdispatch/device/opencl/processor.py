"""Describes a CPU device's processor: its family and model, its widest instructions, the sizes of its caches.

Clouds give one device name to several generations, whose best solvers differ. The description is read from Linux's
files; on other systems it is empty.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

_FEATURES = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
_CPUINFO, _CACHES = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache")
_GROUPS = Path("/sys/fs/cgroup")
"""The folder of control groups: with cpu.max in version 2, cpu.cfs_quota_us and cpu.cfs_period_us in version 1."""


@functools.lru_cache(maxsize=1)
def here() -> str:
    """This machine's processor, and the target for which its OpenCL compiler was configured; empty if unknown."""
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
    """The description from the text of ``/proc/cpuinfo`` and the caches' sizes: ``f6m207 amx_tile 2048k 266240k``."""
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
    """The number of processors that this process's control group and its parents may use; None without a limit."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    limits = []
    for _, names, path in (line for line in lines if len(line) == 3):
        root = groups if not names else groups / names
        if names and "cpu" not in names.split(","):
            continue
        own_group = root / path.strip("/")
        # A container may not see the path of its process's own control group, only those above.
        for folder in (own_group, *own_group.parents):
            if folder == root.parent:
                break
            limit = _limit(folder)
            if limit is not None:
                limits.append(limit)
    return min(limits, default=None)


def _limit(group: Path) -> float | None:
    """The quota of one control group alone, in processors."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            time, period = " ".join((group / name).read_text(encoding="utf-8") for name in names).split()
            if time.isdigit() and int(time) and int(period):
                return int(time) / int(period)
        except (OSError, ValueError):
            continue
    return None
