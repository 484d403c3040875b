"""Device functions that kernels call by name: small functions of PTX, or plain C that replaces them in tests.

Hopper's ``wgmma`` needs ``.target sm_90a``, which the OpenCL compiler does not offer. So kernel text contains these
instructions in inline assembly as PTX comments (``//@wgmma...``) with their operands; the driver compiles it for sm_90
and returns PTX as the program's binary; ``for_hopper`` removes the marks and rewrites the target; and
``clCreateProgramWithBinary`` assembles the PTX. Registers are allocated in the last step, so nothing is lost.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from convdispatch.api import BuildFailed, build, kernel_text
from convdispatch.api.matrix import TileInstruction, WarpTile

LOCAL_LIMIT = 227 * 1024
"""Bytes of local memory that a work group can have on Hopper; kernels with static arrays of this size load, although
the device reports less."""
LOCAL_LIMITS = {
    "sm_90": LOCAL_LIMIT,
    "sm_100": LOCAL_LIMIT,
    "sm_103": LOCAL_LIMIT,
    "sm_80": 163 * 1024,
    "sm_87": 163 * 1024,
}
"""Bytes of local memory of a work group, by architecture (CUDA C++ programming guide, compute capabilities)."""
LEAST_LOCAL_LIMIT = 99 * 1024
"""Bytes of local memory that a work group can have on each other architecture with these instructions."""
PLAIN_C = "plain_c"
"""Name of the test package whose plain C replaces PTX in the kernels of plans with ``emulate``."""
MARK = "//@"
"""Prefix of a PTX comment that hides a ``wgmma`` instruction from the first compilation, for sm_90."""
_TARGET = re.compile(r"\.target\s+sm_90\b")
"""The target of PTX for sm_90. The pattern begins with literal text, which Python searches for faster than ``^``."""


MMA = TileInstruction(
    m=16, n=8, k=16, lanes=32, row="lane / 4", column="lane % 4 * 2", rows=(0, 8), width=2,
    loaded_columns=16, local_limit=LOCAL_LIMIT,
)  # fmt: skip
"""``mma.sync.m16n8k16``; PTX ISA, "Matrix Fragments for mma.m16n8k16". ``ldmatrix`` loads its operands."""
WGMMA = TileInstruction(
    m=64, n=8, k=16, lanes=32, row="warp % 4 * 16 + lane / 4", column="lane % 4 * 2", rows=(0, 8), width=2,
    warps=4, local_limit=LOCAL_LIMIT,
)  # fmt: skip
"""``wgmma.m64nNk16``, whose number of columns N is a multiple of eight; PTX ISA, "Register Fragments" of wgmma."""


class NvidiaTile(WarpTile):
    """A tile that is divided among warps, or among Hopper's groups of four warps."""

    engine = "mma"

    @property
    def instruction(self) -> TileInstruction:
        return MMA if self.engine == "mma" else WGMMA


@dataclass(frozen=True)
class Wgmma:
    """Shape of a ``wgmma`` product: 64 rows by ``columns``, of matrices in local memory."""

    columns: int
    a_transposed: bool
    """Whether A is stored transposed: its rows are k."""
    b_transposed: bool
    row_bytes: int
    """Bytes of a row of A, which is the width of the swizzle."""
    b_row_bytes: int = 0
    """Bytes of a row of B; 0 if it has as many as a row of A."""

    @property
    def rows(self) -> tuple[int, int]:
        """Bytes of a row of A and of B."""
        return self.row_bytes, self.b_row_bytes or self.row_bytes

    @property
    def sums(self) -> int:
        """float32 sums that a work item holds."""
        return self.columns // 2


@dataclass(frozen=True)
class Instructions:
    """The groups of functions of ``ptx.cl.mako`` that a program uses, and the type of their operands."""

    type: str
    """PTX's name of the operands' type: f16, bf16, tf32, e4m3, e5m2, s8, or u8 (multiplied by s8)."""
    groups: tuple[str, ...] = ()
    """Some of ``copies``, ``mma``, ``bulk`` and ``parts``; conversions are always included."""
    wgmma: Wgmma | None = None

    def text(self, emulate: bool = False) -> str:
        """The text of the functions; with ``emulate`` in plain C."""
        package, file = (PLAIN_C, "instructions.cl.mako") if emulate else (__package__, "ptx.cl.mako")
        return kernel_text(package, file, type=self.type, groups=self.groups, wgmma=self.wgmma)

    def build(self, context: Any, text: str, emulate: bool = False) -> Any:
        """Compile the text of a program that calls these functions."""
        return build_for_hopper(context, text) if self.wgmma and not emulate else build(context, text)


def for_hopper(ptx: str) -> str:
    """The PTX with its marked instructions uncommented and its target sm_90 replaced by sm_90a.

    Raises BuildFailed if the text has no target line or no mark, because the driver did not keep the comments.
    """
    if MARK not in ptx:
        raise BuildFailed("the driver's PTX lacks the marked instructions: it does not keep comments", ptx[:2000])
    targets = [match.end() for match in _TARGET.finditer(ptx) if _begins_a_line(ptx, match.start())]
    if not targets:
        target = re.search(r"(?m)^\s*\.target.*$", ptx)
        raise BuildFailed(f"expected PTX for sm_90, got {target[0].strip() if target else 'no target'}", ptx[:2000])
    text = "a".join(ptx[begin:end] for begin, end in itertools.pairwise([0, *targets, len(ptx)]))
    return text.replace(MARK, "")


def _begins_a_line(text: str, index: int) -> bool:
    """Whether only blanks come before index ``place`` in its line of text."""
    return not text[text.rfind("\n", 0, index) + 1 : index].strip()


def build_for_hopper(context: Any, text: str) -> Any:
    """Compile kernel text whose marked instructions are for sm_90a, once per (context, text).

    Raises BuildFailed with the driver's log.
    """
    program = build(context, text)
    binaries = program.get_info(cl.program_info.BINARIES)
    if not binaries:  # no binaries: the kernel text was not compiled, only recorded
        return program
    ptx = binaries[0].decode("latin-1")
    try:
        return build(context, (for_hopper(ptx).rstrip("\0") + "\0").encode("latin-1"))
    except BuildFailed as error:
        raise BuildFailed(f"the PTX for sm_90a was refused: {error}", error.log) from error
