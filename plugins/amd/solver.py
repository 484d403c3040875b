"""The solvers amd.mfma and amd.wmma, and AMD's instructions that multiply matrix tiles, as ``convdispatch.api.matrix``
describes them.

Sources: AMD's Instruction Set Architecture reference guides of CDNA2 (MI200), CDNA3 (MI300), RDNA3 and RDNA4, the
chapters on matrix arithmetic; the layouts are those of AMD's Matrix Instruction Calculator (``--register-layout``).
"""

from __future__ import annotations

from dataclasses import dataclass

from convdispatch.api import DeviceInfo
from convdispatch.api.matrix import FORMATS, Fragment, MatrixSolver, TileInstruction, VendorTile

WAVE64_SUMS = 200
"""float32 sums that a work item of a wave of 64 may hold: CDNA has 512 registers, of which 256 accumulate."""
WAVE32_SUMS = 144
"""float32 sums that a work item of a wave of 32 may hold, of RDNA's 256 registers."""


def _mfma(size: int, k: int) -> TileInstruction:
    """V_MFMA_F32_32X32X8 or V_MFMA_F32_16X16X16: a lane holds four k's of a row of a and of a column of b."""
    operand = Fragment(f"lane % {size}", f"lane / {size} * 4", ((0, 0),), 4)
    blocks = size * size // 256  # blocks of four rows of sums per lane; a block's rows of all lanes precede the next's
    rows = tuple(block * 256 // size + row for block in range(blocks) for row in range(4))
    return TileInstruction(m=size, n=size, k=k, lanes=64, row=f"lane / {size} * 4", column=f"lane % {size}", rows=rows,
                           a=operand, b=operand, max_sums=WAVE64_SUMS)  # fmt: skip


_WHOLE_LINE = Fragment("lane % 16", "0", ((0, 0), (0, 8)), 8)
_HALF_LINE = Fragment("lane % 16", "lane / 16 * 4", ((0, 0), (0, 8)), 4)
INSTRUCTIONS = {
    "mfma32": _mfma(32, 8),
    "mfma16": _mfma(16, 16),
    # Both halves of a wave hold the same whole rows of a and columns of b; the halves' rows of sums alternate.
    "wmma_gfx11": TileInstruction(
        m=16, n=16, k=16, lanes=32, row="lane / 16", column="lane % 16", rows=tuple(range(0, 16, 2)),
        a=_WHOLE_LINE, b=_WHOLE_LINE, max_sums=WAVE32_SUMS,
    ),
    # Each half of a wave holds half of a row of a and of a column of b, in two runs, and half of the rows of sums.
    "wmma_gfx12": TileInstruction(
        m=16, n=16, k=16, lanes=32, row="lane / 16 * 8", column="lane % 16", rows=tuple(range(8)),
        a=_HALF_LINE, b=_HALF_LINE, max_sums=WAVE32_SUMS,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class AmdTile(VendorTile):
    """A tile that MFMA or WMMA instructions multiply."""

    PACKAGE = __package__
    INSTRUCTIONS = INSTRUCTIONS


class Mfma(MatrixSolver):
    """CDNA's matrix cores, which multiply tiles of 32x32 and of 16x16."""

    kind = AmdTile

    def engines(self, device: DeviceInfo) -> tuple[str, ...]:
        return ("mfma32", "mfma16")

    def peak(self, device: DeviceInfo) -> float:
        """MI250X: 383 of 47.9 TFLOP/s; MI300X: 1307 of 163, half of which ``rates`` counts (no packed float32)."""
        return 16.0 if device.arch.startswith("gfx94") else 8.0

    def withheld(self, name: str, device: DeviceInfo) -> str | None:
        """CDNA2's products count subnormal numbers as zero, float16's too: ROCm's page on MIOpen and MI200 says so."""
        flushed = device.arch == "gfx90a" and not FORMATS[name].bfloat
        return "gfx90a multiplies subnormal float16 numbers as zeros: bfloat16 and float32 only" if flushed else None


class Wmma(MatrixSolver):
    """RDNA's matrix instructions, in waves of 32."""

    kind = AmdTile

    def engines(self, device: DeviceInfo) -> tuple[str, ...]:
        return ("wmma_gfx12",) if device.arch.startswith("gfx12") else ("wmma_gfx11",)

    def peak(self, device: DeviceInfo) -> float:
        """RX 7900 XTX: 123 of 30.7 TFLOP/s, without dual issue; RX 9070 XT: 195 of 24.3."""
        return 8.0 if device.arch.startswith("gfx12") else 4.0
