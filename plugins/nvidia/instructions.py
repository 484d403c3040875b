"""Device functions that kernels call by name: small functions of PTX, or plain C that replaces them in tests.

Hopper's ``wgmma`` needs ``.target sm_90a``, which OpenCL's own compiler does not have. So kernel text holds those
instructions in inline assembly as PTX comments (``//@wgmma...``) with their operands; the driver compiles it for sm_90
and hands out its PTX as the program's binary; ``for_hopper`` strips the marks and rewrites the target;
``clCreateProgramWithBinary`` takes the PTX back and assembles it. Registers are allocated by the last step, so nothing
is lost on the way.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from convdispatch.api import BuildFailed, build, kernel_text
from convdispatch.api.matrix import TileInstruction, WarpTile

LOCAL_LIMIT = 227 * 1024
"""Bytes of local memory that a work group can have on Hopper; static arrays of this size load, whatever the device
reports."""
LOCAL_LIMITS = {
    "sm_90": LOCAL_LIMIT,
    "sm_100": LOCAL_LIMIT,
    "sm_103": LOCAL_LIMIT,
    "sm_80": 163 * 1024,
    "sm_87": 163 * 1024,
}
"""The same by architecture (CUDA C++ programming guide, compute capabilities)."""
LEAST_LOCAL_LIMIT = 99 * 1024
"""Bytes of local memory that a work group can have on each other architecture with these instructions."""
PLAIN_C = "plain_c"
"""The test package whose plain C replaces PTX in kernels of a plan that is made with ``emulate``."""
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
"""``wgmma.m64nNk16``, of whose columns eight are the unit; PTX ISA, "Register Fragments" of wgmma."""


class NvidiaTile(WarpTile):
    """A tile that warps, or groups of four warps of Hopper's engines, cut."""

    engine = "mma"

    @property
    def instruction(self) -> TileInstruction:
        return MMA if self.engine == "mma" else WGMMA


@dataclass(frozen=True)
class Wgmma:
    """Shape of a ``wgmma`` product: 64 rows by ``columns``, of matrices in local memory."""

    columns: int
    a_transposed: bool
    """Whether A is stored transposed, with k down its rows, not along them."""
    b_transposed: bool
    row_bytes: int
    """Bytes of a row of A: a swizzle's width."""
    b_row_bytes: int = 0
    """Bytes of a row of B; 0: as many as of a row of A."""

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
    """Groups of ``ptx.cl.mako``'s functions that a program is rendered with, and the numbers that they work on."""

    type: str
    """PTX's name of the operands' type: f16, bf16 or tf32; e4m3 or e5m2; s8, or u8 (multiplied with s8)."""
    groups: tuple[str, ...] = ()
    """Groups of functions: of ``copies``, ``mma``, ``bulk`` and ``parts``; conversions are always included."""
    wgmma: Wgmma | None = None

    def text(self, emulate: bool = False) -> str:
        """The functions; with ``emulate`` their stand-ins in plain C."""
        package, file = (PLAIN_C, "instructions.cl.mako") if emulate else (__package__, "ptx.cl.mako")
        return kernel_text(package, file, type=self.type, groups=self.groups, wgmma=self.wgmma)

    def build(self, context: Any, text: str, emulate: bool = False) -> Any:
        """Compile a kernel that calls them."""
        return build_for_hopper(context, text) if self.wgmma and not emulate else build(context, text)


def for_hopper(ptx: str) -> str:
    """PTX compiled for sm_90, with its marked instructions uncovered and its target sm_90a.

    Raises BuildFailed when the text has no target line or no mark: then the driver did not keep the comments.
    """
    if MARK not in ptx:
        raise BuildFailed("the driver's PTX lacks the marked instructions: it does not keep comments", ptx[:2000])
    targets = [each.end() for each in _TARGET.finditer(ptx) if _begins_a_line(ptx, each.start())]
    if not targets:
        target = re.search(r"(?m)^\s*\.target.*$", ptx)
        raise BuildFailed(f"expected PTX for sm_90, got {target[0].strip() if target else 'no target'}", ptx[:2000])
    text = "a".join(ptx[begin:end] for begin, end in itertools.pairwise([0, *targets, len(ptx)]))
    return text.replace(MARK, "")


def _begins_a_line(text: str, place: int) -> bool:
    """Whether only blanks come before index ``place`` in its line of text."""
    return not text[text.rfind("\n", 0, place) + 1 : place].strip()


def build_for_hopper(context: Any, text: str) -> Any:
    """Compile kernel text whose marked lines are for sm_90a; once per (context, text).

    Raises BuildFailed with the driver's log.
    """
    import pyopencl as cl

    program = build(context, text)
    binaries = program.get_info(cl.program_info.BINARIES)
    if not binaries:  # no binaries: the kernel text was not compiled, only recorded
        return program
    ptx = binaries[0].decode("latin-1")
    try:
        return build(context, (for_hopper(ptx).rstrip("\0") + "\0").encode("latin-1"))
    except BuildFailed as error:
        raise BuildFailed(f"the PTX for sm_90a was refused: {error}", error.log) from error
