"""From OpenCL C to a program for sm_90a, which OpenCL's own compiler does not target.

Hopper's ``wgmma`` needs ``.target sm_90a``. How: kernel text holds those instructions in inline assembly as PTX
comments (``//@wgmma...``), with their operands; the driver compiles it for sm_90 and hands out its PTX as the program's
binary; here the marks are stripped and the target rewritten; ``clCreateProgramWithBinary`` takes the PTX back and
assembles it. Registers are allocated by the last step, so nothing is lost on the way.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from convdispatch.api import BuildFailed, build

MARK = "//@"
"""What hides an instruction from the first compilation."""
_TARGET = re.compile(r"\.target\s+sm_90\b")
"""It begins with letters, so that Python looks for those first: a pattern that begins with a line looks at each."""
LOCAL_LIMIT = 227 * 1024
"""Bytes of local memory that a work group can have; static arrays of this size load, whatever the device reports."""


def for_hopper(ptx: str) -> str:
    """PTX compiled for sm_90, with its marked instructions uncovered and its target sm_90a.

    Raises BuildFailed when the text has no target line or no mark: then the driver did not keep the comments.
    """
    if MARK not in ptx:
        raise BuildFailed("the driver's PTX lacks the marked instructions: it does not keep comments", ptx[:2000])
    targets = [each.end() for each in _TARGET.finditer(ptx) if _begins_a_line(ptx, each.start())]
    if not targets:
        target = re.search(r"(?m)^\s*\.target.*$", ptx)
        raise BuildFailed(f"expected PTX for sm_90, got {target[0].strip() if target else 'no target'}", ptx[:2000])
    text = "a".join(ptx[begin:end] for begin, end in itertools.pairwise([0, *targets, len(ptx)]))
    return text.replace(MARK, "")


def _begins_a_line(text: str, place: int) -> bool:
    """Whether there is nothing but blanks before a place in its line."""
    return not text[text.rfind("\n", 0, place) + 1 : place].strip()


def build_for_hopper(context: Any, text: str) -> Any:
    """Compile kernel text whose marked lines are for sm_90a; once per (context, text).

    Raises BuildFailed with the driver's log.
    """
    import pyopencl as cl

    program = build(context, text)
    binaries = program.get_info(cl.program_info.BINARIES)
    if not binaries:  # its text is only read
        return program
    ptx = binaries[0].decode("latin-1")
    try:
        return build(context, (for_hopper(ptx).rstrip("\0") + "\0").encode("latin-1"))
    except BuildFailed as error:
        raise BuildFailed(f"the PTX for sm_90a was refused: {error}", error.log) from error
