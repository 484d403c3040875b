"""Processors as solvers see them: what a test of choice describes, and lesser ones than the machine's, to run as.

A solver learns of a CPU by its ``DeviceInfo`` and, in ``amx``, by the flags that Linux lists; nothing else of the
machine may decide a test of choice.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyopencl as cl
import pytest

from convdispatch.api import cpu


class Processor(NamedTuple):
    """A kind of processor."""

    lanes: int
    """Of float32 in a vector."""
    flags: frozenset[str]
    """As Linux lists them, those that solvers ask for."""
    target: str
    """Intel's OpenCL compiler's word, "" for the machine itself."""
    isa: str
    """oneDNN's word."""


_AVX512 = frozenset({"avx512f", "avx512_vnni"})
_TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
PROCESSORS = {
    "avx2": Processor(8, frozenset(), "core-avx2", "AVX2"),
    "avx512": Processor(16, _AVX512, "skx", "AVX512_CORE_VNNI"),
    "bf16": Processor(16, _AVX512 | {"avx512_bf16"}, "", "AVX512_CORE_BF16"),
    "amx": Processor(16, _AVX512 | {"avx512_bf16"} | _TILES, "", "DEFAULT"),
}


def device_of(name: str, units: int = 2):
    """The processor under Intel's runtime, as solvers are told of it."""
    from convdispatch.api.device import DeviceInfo

    lanes = PROCESSORS[name].lanes
    more = {"fp64": True, "local_mem_size": 256 << 10, "max_work_group_size": 8192}
    more |= {"global_mem_size": 16 << 30, "max_alloc_size": 8 << 30, "max_work_item_sizes": (8192,) * 3}
    return DeviceInfo(
        f"a CPU with {name}", "intel", "cpu", f"simd{32 * lanes}", simd_width=lanes, compute_units=units, **more
    )


@contextmanager
def described(name: str) -> Iterator:
    """Solvers find this processor, whatever the machine's is; its ``DeviceInfo``. Nothing is run inside."""
    with pytest.MonkeyPatch.context() as patch:
        _describe(patch, PROCESSORS[name].flags)
        yield device_of(name)
    _forget()


def _describe(patch: pytest.MonkeyPatch, flags: frozenset[str]) -> None:
    patch.setattr(platform, "system", lambda: "Linux")
    patch.setattr(platform, "machine", lambda: "x86_64")
    patch.setattr(cpu, "flags", lambda: flags)
    patch.setattr(cpu, "_granted", lambda: None)
    _forget()


def _forget() -> None:
    cpu.lacking.cache_clear()


DESCRIBED = "instructions of a processor that is described, and is not there"
absent: frozenset[str] = frozenset()
"""The flags of these, in a process that ``become`` changed."""
became: str | None = None
"""The name under which it did."""


def become(name: str) -> None:
    """This process, and what it starts, run as on a lesser processor than the machine's.

    Of a greater one they see what can be chosen there; what it alone can run is refused when it is planned, and a test
    that fails by that is skipped.
    """
    from convdispatch_amx import probe as amx_probe
    from convdispatch_int8 import probe as int8_probe

    global absent, became
    became = name
    _, flags, target, isa = PROCESSORS[name]
    if target:  # caches know the device alone, not the target that it compiles for
        os.environ |= {
            "CL_CONFIG_CPU_TARGET_ARCH": target,
            "PYOPENCL_NO_CACHE": "1",
            "CONVDISPATCH_KERNEL_CACHE": "off",
        }
        cl._PYOPENCL_NO_CACHE = True  # which read its variable when it was imported
    os.environ["ONEDNN_MAX_CPU_ISA"] = isa
    absent = lacking = flags - cpu.flags()
    _describe(pytest.MonkeyPatch(), flags)

    def described_only(*_: object, **__: object) -> None:
        from convdispatch.api import PluginError

        raise PluginError(f"{', '.join(sorted(lacking))}: {DESCRIBED}")

    for probe in (amx_probe, int8_probe):
        if lacking:
            probe.require = described_only
