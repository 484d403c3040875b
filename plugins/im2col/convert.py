"""Conversion between 16-bit elements and float32, for what is summed over several products."""

from __future__ import annotations

from typing import Any

import numpy as np

from convdispatch.api import OPERANDS, Launch, build, define, kernel_text, storage_macros

NARROW = ("float16", "bfloat16")


def inward(context: Any, dtype: str, cpu: bool, source: str, offset: int, size: int) -> Launch:
    """``size`` elements of operand ``source`` as float32 into the workspace from byte ``offset`` on."""
    return _launch(context, dtype, cpu, 0, False, (source, 0, "workspace", offset // 4), size)


def outward(context: Any, dtype: str, cpu: bool, target: str, offset: int, size: int, add: bool) -> Launch:
    """``size`` float32 from byte ``offset`` of the workspace on into operand ``target``, or added to it."""
    return _launch(context, dtype, cpu, 1, add, ("workspace", offset // 4, target, 0), size)


def _launch(context: Any, dtype: str, cpu: bool, way: int, add: bool, ends: tuple[Any, ...], size: int) -> Launch:
    chunk = 4096 if cpu else 1
    text = storage_macros(dtype) + define(OUTWARD=way, ADD=int(add), CHUNK=chunk)
    program = build(context, text + kernel_text(__package__, "convert.cl"))
    source, source_offset, target, target_offset = ends
    arguments = [source, np.int64(source_offset), target, np.int64(target_offset), np.int64(size)]
    return Launch(program, "convert", (-(-size // chunk),), None, arguments, names=OPERANDS)
