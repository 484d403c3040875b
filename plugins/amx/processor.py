"""Whether this machine's processor has the instructions, and a process leave to use matrix registers."""

from __future__ import annotations

from convdispatch.api.cpu import lacking


def missing(vectors: bool = False) -> str | None:
    """Why this process cannot use the matrix registers, or vectors of bfloat16; or None."""
    return lacking("avx512_bf16") if vectors else lacking("amx_tile", "amx_bf16")
