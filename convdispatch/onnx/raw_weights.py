"""Reads a model file with its large weights apart: each goes from the file to where it stays, and is copied no more.

The format is protocol buffers': a message is fields, each a number with a wire type, then its content. Weights lie in
ModelProto.graph (7) .initializer (5) .raw_data (9).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

_PATH = (7, 5, 9)
"""The numbers of the fields on the way from a model to a weight's bytes."""
_LEAST_BYTES = 4096
"""Shorter weights stay in their message."""
ALIGNED = 128
"""The bytes to a multiple of which weights begin, so that devices use them where they are."""
_LENGTHS = {1: 8, 5: 4}
"""The bytes of a content of fixed size, by wire type."""
_DELIMITED = 2
"""The wire type of a content that begins with its length."""


def without_weights(file: BinaryIO, size: int) -> tuple[bytes, dict[int, np.ndarray]]:
    """``(message, bytes of weights)`` of a model of ``size`` bytes: the message lacks the bytes of large initialisers,
    which are given by the initialiser's index.

    Raises ValueError for what is no message. Memory is taken for lengths that fit into the file alone.
    """
    weights: dict[int, np.ndarray] = {}
    # One block for all weights has larger pages than an array for each, so that the system hands out fewer.
    block, used = np.empty(size, np.uint8), 0
    seen = [-1]  # the index of the latest initialiser; a graph may come in several fields

    def rest(end: int, depth: int) -> bytes:
        nonlocal used
        parts = []
        for number, start, begin, stop in _fields(file, end):
            if number != _PATH[depth] or begin == start or (depth == 2 and stop - begin < _LEAST_BYTES):
                file.seek(start)
                parts.append(file.read(stop - start))
            elif depth < 2:
                seen[0] += depth == 1
                content = rest(stop, depth + 1)
                parts += [_varint_of(number << 3 | _DELIMITED), _varint_of(len(content)), content]
            else:
                used += -(block.ctypes.data + used) % ALIGNED
                values = (
                    block[used : used + stop - begin]
                    if used + stop - begin <= size
                    else np.empty(stop - begin, np.uint8)
                )
                weights[seen[0]], used = values, used + stop - begin
                if file.readinto(values.data) != stop - begin:  # type: ignore[attr-defined]
                    raise ValueError("the file ends within a field")
        return b"".join(parts)

    return rest(size, 0), weights


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int, int, int]]:
    """``(number, start, start of the content, end)`` of the fields up to ``end``; where the content
    has no length of its own it starts where the field does."""
    start = file.tell()
    while start < end:
        key = _varint(file)
        begin = start
        if key & 7 == _DELIMITED:
            length = _varint(file)
            begin = file.tell()
            stop = begin + length
        elif key & 7 == 0:
            _varint(file)
            stop = file.tell()
        elif key & 7 in _LENGTHS:
            stop = file.tell() + _LENGTHS[key & 7]
        else:
            raise ValueError(f"wire type {key & 7} is not read here")
        if stop > end:
            raise ValueError("a field is longer than what holds it")
        yield key >> 3, start, begin, stop
        file.seek(stop)
        start = stop


def _varint(file: BinaryIO) -> int:
    """A number in groups of seven bits, the least significant first."""
    number = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        number |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return number
    raise ValueError("a number does not end")


def _varint_of(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
