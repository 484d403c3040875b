"""Checks whether the processor has AVX512-BF16 or AMX, and whether this process may use the AMX registers."""

from __future__ import annotations

from convdispatch.api.cpu import lacking


def missing(vectors: bool = False) -> str | None:
    """Why this process cannot use the matrix registers, or vectors of bfloat16; or None."""
    return lacking("avx512_bf16") if vectors else lacking("amx_tile", "amx_bf16")
