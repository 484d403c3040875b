"""OpenCL's platforms and devices, and their descriptions as DeviceInfo. Nothing happens at import."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pyopencl as cl

from ...api import settings
from ...api.device import DeviceInfo
from ..cache_home import provide_cache
from . import icd

_VENDORS = (
    # Each row is (word in the vendor's name, normalised name). The platform's name is searched before the device's,
    # because PoCL's devices name Intel.
    ("portable computing", "pocl"),
    ("oclgrind", "oclgrind"),
    ("nvidia", "nvidia"),
    ("advanced micro", "amd"),
    ("amd", "amd"),
    ("intel", "intel"),
    ("arm", "arm"),
    ("qualcomm", "qualcomm"),
    ("apple", "apple"),
)


_TARGET_LANES = {"corei7": 4, "corei7-avx": 8, "core-avx2": 8}
"""Float32 lanes of the targets of Intel's compiler that are narrower than AVX-512."""


@functools.lru_cache(maxsize=1)
def platforms() -> list[cl.Platform]:
    """Every OpenCL platform the loader finds, pip-installed ones included; an empty list when there is none."""
    provide_cache()
    icd.announce()
    try:
        return list(cl.get_platforms())
    except cl.LogicError:  # the loader's error where there is no platform is PLATFORM_NOT_FOUND_KHR
        return []


@functools.lru_cache(maxsize=1)
def devices() -> list[cl.Device]:
    """Every device of every platform, in the platforms' order."""
    listed = []
    for platform in platforms():
        try:
            listed += platform.get_devices()
        except cl.Error:  # a platform without devices raises an error
            continue
    return listed


class DescribedDevice:
    """A description that replaces a device that is not present, for plans. Nothing runs on it."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.max_compute_units, self.max_work_group_size = info.compute_units, info.max_work_group_size
        self.local_mem_size, self.name, self.driver_version = info.local_mem_size, info.name, info.driver


@functools.lru_cache(maxsize=64)
def device_info(device: cl.Device) -> DeviceInfo:
    """The DeviceInfo of a device, or the one that a ``DescribedDevice`` was created from."""
    if isinstance(device, DescribedDevice):
        return device.info
    platform = device.platform
    extensions = frozenset(device.extensions.split())
    kind = "gpu" if device.type & cl.device_type.GPU else "cpu" if device.type & cl.device_type.CPU else "accelerator"
    vendor = _vendor(platform.name + " " + platform.vendor, device.vendor)
    simd = _simd_width(device, vendor, kind)
    return DeviceInfo(
        name=device.name.strip(),
        vendor=vendor,
        type=kind,
        arch=_arch(device, vendor, kind, simd, extensions),
        platform=platform.name.strip(),
        driver=device.driver_version,
        compute_units=device.max_compute_units,
        max_work_group_size=device.max_work_group_size,
        max_work_item_sizes=tuple(device.max_work_item_sizes),
        local_mem_size=device.local_mem_size,
        global_mem_size=device.global_mem_size,
        max_alloc_size=device.max_mem_alloc_size,
        simd_width=simd,
        buffer_alignment=max(1, device.mem_base_addr_align // 8),
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions or bool(device.double_fp_config),
        extensions=extensions,
        processor=processor_text() if kind == "cpu" else "",
    )


def _simd_width(device: cl.Device, vendor: str, kind: str) -> int:
    """Float32 lanes of a vector: ``CONVDISPATCH_SIMD_WIDTH`` for CPUs, else the device's, or its compiler target's.

    Intel's runtime reports the processor's width even if it is configured to compile for an older processor.
    """
    native = max(1, device.native_vector_width_float)
    if kind != "cpu":
        return native
    if chosen := settings.SIMD_WIDTH.value():
        return int(chosen)
    target = os.environ.get("CL_CONFIG_CPU_TARGET_ARCH", "") if vendor == "intel" else ""
    return min(native, _TARGET_LANES.get(target, native))


def _vendor(platform: str, vendor: str) -> str:
    for text in (platform.lower(), vendor.lower()):
        for word, name in _VENDORS:
            if word in text:
                return name
    return vendor.strip().lower() or "unknown"


def _arch(device: cl.Device, vendor: str, kind: str, simd: int, extensions: frozenset[str]) -> str:
    if "cl_nv_device_attribute_query" in extensions:
        return f"sm_{device.compute_capability_major_nv}{device.compute_capability_minor_nv}"
    if kind == "cpu":
        return f"simd{simd * 32}"
    return device.name.strip().split(":")[0].lower() if vendor == "amd" else device.name.strip().lower()


def address(device: cl.Device) -> str:
    """The text ``platform:device`` with both numbers, by which ``find_device`` finds the device in another process."""
    return f"{platforms().index(device.platform)}:{device.platform.get_devices().index(device)}"


_FEATURES = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
_CPUINFO, _CACHES = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache")
_GROUPS = Path("/sys/fs/cgroup")
"""The folder of control groups: with cpu.max in version 2, cpu.cfs_quota_us and cpu.cfs_period_us in version 1."""


@functools.lru_cache(maxsize=1)
def processor_text() -> str:
    """This machine's processor, and the target for which its OpenCL compiler was configured; empty if unknown.

    Clouds give one device name to several generations, whose best solvers differ. The text is read from Linux's files;
    on other systems it is empty.
    """
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
