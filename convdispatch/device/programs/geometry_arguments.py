"""The numbers of a geometry in a kernel text: literals of a specialised program, or arguments of a general one.

A kernel text names its numbers in capitals and ends its kernels' parameters with ``NUMBERS``. It divides by a number
with ``DIVIDED(n, NAME)``, in which ``n`` is a variable. ``numbers_as_literals`` puts macros before the text;
``numbers_as_arguments`` makes parameters of the numbers that the text uses, so that one program serves every geometry
with the same text. Kernels of a program may take different numbers: then each kernel's text goes through it alone.

A division by a literal is a multiplication by its reciprocal and a shift (Granlund and Montgomery, "Division by
Invariant Integers using Multiplication", 1994); for an argument the launch passes both (``divide.cl``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .kernels import kernel_text

MAX_DIVIDEND = 2**31 - 1
"""The largest number that the macro ``DIVIDED`` divides correctly."""
_WORD = re.compile(r"[A-Z][A-Z0-9_]*")
_DIVISOR = re.compile(r"DIVIDED\(\w+, (\w+)\)")
_TYPES = {np.int32: "int", np.int64: "long", np.uint64: "ulong"}


def divided_by(*sizes: int) -> list[np.uint32]:
    """The arguments of ``DIVISOR`` for each size, 1 to MAX_DIVIDEND."""
    arguments: list[np.uint32] = []
    for size in sizes:
        shift = (size - 1).bit_length()
        arguments += map(np.uint32, (size, (((1 << shift) - size) << 32) // size + 1, shift))
    return arguments


def numbers_as_literals(text: str, numbers: Mapping[str, Any]) -> str:
    """The program in which the text's numbers are literals."""
    suffix = {np.int32: "", np.int64: "L", np.uint64: "UL"}
    lines = [f"#define {name} ({numbers[name]}{suffix[type(numbers[name])]})\n" for name, _ in _used(text, *numbers)]
    return "#define NUMBERS\n#define DIVIDED(n, d) ((n) / (d))\n" + "".join(lines) + text


def numbers_as_arguments(text: str, numbers: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The program whose parameters are the numbers, and their arguments. Numbers are NumPy's int32, int64 or
    uint64; divisors and what they divide are at most MAX_DIVIDEND."""
    arguments: list[Any] = []
    parameters = ""
    for name, divides in _used(text, *numbers):
        arguments += divided_by(int(numbers[name])) if divides else [numbers[name]]
        parameters += f", DIVISOR({name})" if divides else f", const {_TYPES[type(numbers[name])]} {name}"
    defined = f"#undef NUMBERS\n#define NUMBERS {parameters}\n"
    return kernel_text("convdispatch.api", "divide.cl") + defined + text, arguments


@functools.lru_cache(maxsize=256)
def _used(text: str, *names: str) -> list[tuple[str, bool]]:
    """The names that occur in the text, in the order of ``names``, and whether the text divides by each."""
    words, divisors = set(_WORD.findall(text)), set(_DIVISOR.findall(text))
    return [(name, name in divisors) for name in names if name in words]
