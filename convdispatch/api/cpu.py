"""What plugins' kernels need of CPU devices: vector width, registers, sizes of pages, functions of inline assembly."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .declared import cpus_only
from .device import DeviceInfo
from .dtypes import DTYPES
from .rates import DeviceRates

PAGE = 4096
"""Bytes of a page, to which areas of a workspace are aligned, so that they do not share pages."""
LINE = 64
"""Bytes of a cache line."""
# On Linux a process must request the state of the AMX tile registers, 8 KB per thread, by
# arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): https://docs.kernel.org/arch/x86/xstate.html.
_ARCH_PRCTL = 158  # the number of the system call on x86-64
_REQUEST = 0x1023  # Linux's constant ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # Linux's constant XTILEDATA
_FITTED = DeviceRates(340e9, 28e9, 8.5e-6)
"""Rates of the two cores with AVX-512 on which the cost models of CPU solvers were fitted."""


class Balance(NamedTuple):
    """The cost of a launch and of a byte of memory, in operations at a CPU's peak, relative to the two cores on which
    costs were fitted."""

    launch: float = 1.0
    memory: float = 1.0

    @classmethod
    def of(cls, known: DeviceRates) -> Balance:
        """The balance at a CPU's rates: more cores multiply faster, but do not speed up launches and memory."""
        return cls(
            known.launch * known.flops / (_FITTED.launch * _FITTED.flops),
            known.flops / known.bandwidth / (_FITTED.flops / _FITTED.bandwidth),
        )


FITTED = Balance()
"""The balance of the two cores on which cost models were fitted: 1 and 1."""


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(size: int, unit: int) -> int:
    """The least multiple of ``unit`` that is not below ``size``."""
    return cdiv(size, unit) * unit


def lanes(device: DeviceInfo, dtype: str = "float32") -> int:
    """The number of elements in one vector of sums."""
    return max(4, min(16, device.simd_width)) * 4 // DTYPES[dtype].accumulator_size


def transposed(lanes: int) -> str:
    """OpenCL statements that transpose ``lanes`` vectors V of as many lanes in registers, from ``t0_<i>`` to
    ``t<log2 lanes>_<i>``: each stage joins the even, then the odd elements of neighbours."""
    half, lines = lanes // 2, []
    for stage in range(1, lanes.bit_length()):
        for i in range(half):
            a, b = (f"t{stage - 1}_{2 * i + k}" for k in (0, 1))
            lines.append(
                f"const V t{stage}_{i} = (V)({a}.even, {b}.even), t{stage}_{i + half} = (V)({a}.odd, {b}.odd);"
            )
    return "\n".join(lines)


def uneven(jobs: int, device: DeviceInfo) -> float:
    """How many times longer ``jobs`` equal work groups take than evenly shared work: 2 for one work group on two
    cores."""
    rounds = -(-jobs // device.compute_units)
    return rounds * device.compute_units / jobs


def registers(device: DeviceInfo) -> int:
    """The number of vector registers: 32 with AVX-512, 16 otherwise."""
    return 32 if device.simd_width >= 16 else 16


@functools.cache
def lacking(*needed: str) -> str | None:
    """The reason why this process cannot use these instructions (by Linux' names): the processor lacks some, or the
    system grants no AMX registers; None if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"x86-64 under Linux only, got {platform.machine()} under {platform.system()}"
    absent = [flag for flag in needed if flag not in flags()]
    if absent:
        return f"processors with {' and '.join(needed)} only, got one without {absent[0]}"
    return _granted() if "amx_tile" in needed else None


def flags() -> frozenset[str]:
    """The instructions of this machine's processor, by Linux' names; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def _granted() -> str | None:
    status = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)
    return None if status == 0 else f"the system grants no matrix registers (errno {ctypes.get_errno()})"


def unserved(needed: tuple[str, ...], device: DeviceInfo) -> str | None:
    """Why a device does not run kernels with ``needed`` instructions in inline assembly, or None."""
    reason = cpus_only(device)
    if reason is None and (device.vendor != "intel" or device.simd_width < 16):
        reason = f"Intel's runtime with vectors of 16 floats only, got {device.vendor} with {device.simd_width}"
    return reason or lacking(*needed)


TILE_MACROS = """
// Eight tiles of 16 rows of 64 bytes; the first four hold sums.
constant ulong TILES[8] = {1, 0, 0x0040004000400040ul, 0x0040004000400040ul, 0, 0, 0x1010101010101010ul, 0};
#define TILES_BEGIN() __asm__ volatile("ldtilecfg (%0)" ::"r"(TILES) : "memory")
#define TILES_END() __asm__ volatile("tilerelease" ::: "memory")
"""
"""OpenCL text that configures and releases the AMX tiles of a work item."""


def assembly(
    name: str,
    parameters: str,
    lines: Iterable[str],
    changed: Iterable[str],
    read: Mapping[str, str],
    temporaries: Iterable[str] = (),
) -> str:
    """OpenCL function ``name(parameters)`` whose body is inline assembly over 64-bit operands ``%[operand]``.

    ``changed`` are parameters that the block changes, ``read`` maps what it only reads to OpenCL expressions, and
    ``temporaries`` are registers of its own. The compiler is not told which tiles and vector registers change: the
    function holds nothing else, and is not inlined.
    """
    outputs = [f'[{each}] "+r"({each})' for each in changed] + [f'[{each}] "=&r"({each})' for each in temporaries]
    inputs = [f'[{each}] "r"({value})' for each, value in read.items()]
    declared = "  long {};\n".format(", ".join(temporaries)) if temporaries else ""
    body = "\\n".join(lines)
    return f"""
__attribute__((noinline))
void {name}({parameters}) {{
{declared}  __asm__ volatile("{body}"
                   : {", ".join(outputs)}
                   : {", ".join(inputs)}
                   : "memory");
}}
"""
