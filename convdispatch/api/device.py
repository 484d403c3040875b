"""DeviceInfo: the properties of a device that a solver may use, in one spelling for every vendor."""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import DTYPES


@dataclass(frozen=True)
class DeviceInfo:
    """A device's normalised name, limits and features; holds no OpenCL object, so it can be stored and compared.

    ``vendor`` is one of ``nvidia amd intel arm qualcomm apple pocl oclgrind`` or the device's own word in lower
    case. A CPU runtime is named by its platform, because PoCL and Intel report the same vendor id.
    """

    name: str
    vendor: str
    type: str
    """``cpu``, ``gpu`` or ``accelerator``."""
    arch: str
    """``sm_90`` for NVIDIA, ``gfx90a`` for AMD, ``simd512`` (bits of a native float vector) for a CPU."""
    platform: str = ""
    driver: str = ""
    compute_units: int = 1
    max_work_group_size: int = 1
    max_work_item_sizes: tuple[int, ...] = (1, 1, 1)
    local_mem_size: int = 0
    """Bytes of local memory that the device reports for one work group."""
    global_mem_size: int = 0
    max_alloc_size: int = 0
    simd_width: int = 1
    """Native float32 vector width: 16 for AVX-512, 8 for AVX2, 1 for most GPUs."""
    buffer_alignment: int = 128
    """Bytes to which a sub-buffer's origin must be aligned."""
    fp16: bool = False
    fp64: bool = False
    extensions: frozenset[str] = frozenset()
    processor: str = ""
    """The family and model, instructions and caches of a CPU as text; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.platform}: {self.name}" if self.platform else self.name

    def supports(self, dtype: str) -> str | None:
        """The reason why the device cannot store and sum ``dtype``; None if it can."""
        needed = DTYPES[dtype].extension if dtype in DTYPES else ""
        has = self.fp64 if needed == "cl_khr_fp64" else not needed or needed in self.extensions
        return None if has else f"{dtype} needs {needed}, which {self.name} lacks"
