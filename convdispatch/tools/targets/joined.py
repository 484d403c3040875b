"""Several kernel texts as one: a compiler then starts once, and reads its library of built-in functions once.

Each text's functions and types get a suffix, its macros end where it ends, and so does what its pragmas set. Its
kernels use what they use alone; in one text of a hundred the order of its neighbours changes the number of registers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?!typedef)(?:[A-Za-z_]\w*[ *]+|__attribute__\(\(.*?\)\)\s+)+(?!__attribute__)(\w+)\(", re.MULTILINE
)
_TYPE = re.compile(r"^typedef\b[^;{]*?(?:\{[^}]*\}[^;{]*?)?(\w+);", re.MULTILINE)
_DEFINING = re.compile(r"^#define (\w+)\([^\n]*\\\n\s*inline ", re.MULTILINE)
"""A macro that defines functions: the same in every text that has it, under ``#ifndef``, so that one serves all."""
_ALIGNED = re.compile(r"^\s*local .*aligned\(\d{3,}\)", re.MULTILINE)
"""Local memory by whose alignment NVIDIA's ptxas rounds up the local memory of every kernel of a text."""
_SUFFIX = re.compile(r"(\w+)__of_(\d+)")
_RESET = "#pragma OPENCL EXTENSION cl_khr_fp16 : disable\n#pragma OPENCL FP_CONTRACT ON\n"


def groups(texts: Sequence[str]) -> list[list[str]]:
    """The texts that may be joined, together, and each of the others alone."""
    together = [text for text in texts if not _ALIGNED.search(text)]
    return [*([together] if together else []), *([text] for text in texts if _ALIGNED.search(text))]


def joined(texts: Sequence[str]) -> str:
    """A text with the kernels of all; a single text stays as it is."""
    return texts[0] if len(texts) == 1 else "".join(_part(*numbered) for numbered in enumerate(texts))


def _part(number: int, text: str) -> str:
    macros = set(_MACRO.findall(text)) - set(_DEFINING.findall(text))
    names = dict.fromkeys(name for name in (*_FUNCTION.findall(text), *_TYPE.findall(text)) if name not in macros)
    renamed = "".join(f"#define {name} {name}__of_{number}\n" for name in names)
    ended = "".join(f"#undef {name}\n" for name in (*sorted(macros), *names))
    return f"{_RESET}{renamed}{text}\n{ended}"


def origin(kernel: str) -> tuple[str, int] | None:
    """A kernel's name in its own text, and the number of that text among the joined; None for a name of no text."""
    match = _SUFFIX.fullmatch(kernel)
    return (match[1], int(match[2])) if match else None
