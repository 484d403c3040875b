"""Conversion between 16-bit elements and float32, for tensors that several matrix products sum."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from convdispatch.api import OPERANDS, Launch, build, define, kernel_text, storage_macros


class Converter(NamedTuple):
    """Builds launches that convert elements of ``dtype`` from and to float32."""

    context: Any
    dtype: str
    cpu: bool

    def to_float32(self, source: str, offset: int, size: int) -> Launch:
        """Convert ``size`` elements of operand ``source`` to float32, into the workspace from byte ``offset`` on."""
        return self._launch((source, 0, "workspace", offset // 4), size, outward=0, add=False)

    def from_float32(self, target: str, offset: int, size: int, add: bool) -> Launch:
        """Convert ``size`` float32 from byte ``offset`` of the workspace on into operand ``target``, or add to it."""
        return self._launch(("workspace", offset // 4, target, 0), size, outward=1, add=add)

    def _launch(self, operands: tuple[str, int, str, int], size: int, outward: int, add: bool) -> Launch:
        chunk = 4096 if self.cpu else 1
        text = storage_macros(self.dtype) + define(OUTWARD=outward, ADD=int(add), CHUNK=chunk)
        program = build(self.context, text + kernel_text(__package__, "convert.cl"))
        source, source_offset, target, target_offset = operands
        arguments = [source, np.int64(source_offset), target, np.int64(target_offset), np.int64(size)]
        return Launch(program, "convert", (-(-size // chunk),), None, arguments, names=OPERANDS)
