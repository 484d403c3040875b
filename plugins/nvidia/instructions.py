"""What a program's kernels call by name: PTX in small functions, or plain C that stands in for it."""

from __future__ import annotations

from dataclasses import dataclass

from convdispatch.api import kernel_text


@dataclass(frozen=True)
class Wgmma:
    """``wgmma``: 64 rows by ``columns``, of matrices in local memory."""

    columns: int
    a_transposed: bool
    """Whether k runs down A's rows, not along them."""
    b_transposed: bool
    row_bytes: int
    """Bytes of a row of A: a swizzle's width."""
    b_row_bytes: int = 0
    """Of a row of B; 0: as many."""

    @property
    def rows(self) -> tuple[int, int]:
        """Bytes of a row of A and of B."""
        return self.row_bytes, self.b_row_bytes or self.row_bytes

    @property
    def sums(self) -> int:
        """Sums of a work item."""
        return self.columns // 2


@dataclass(frozen=True)
class Instructions:
    """Groups of ``ptx.cl.mako``'s functions that a program is rendered with, and the numbers that they work on."""

    type: str
    """PTX's name of what is multiplied: f16, bf16 or tf32; s8 or u8, with s8."""
    groups: tuple[str, ...] = ()
    """Of ``copies``, ``mma``, ``bulk`` and ``parts``; conversions of numbers are always there."""
    wgmma: Wgmma | None = None

    def text(self, emulate: bool = False) -> str:
        """The functions; with ``emulate`` their stand-ins, for devices without tensor cores (tests)."""
        file = "emulated.cl.mako" if emulate else "ptx.cl.mako"
        return kernel_text(__package__, file, type=self.type, groups=self.groups, wgmma=self.wgmma)
