"""The solvers amd.mfma and amd.wmma: which device has which instruction, its peak rate, and what it does to numbers."""

from __future__ import annotations

from convdispatch.api import DeviceInfo
from convdispatch.api.matrix import FORMATS, MatrixSolver

from .instructions import AmdTile


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
