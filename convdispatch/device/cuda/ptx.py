"""The PTX that NVIDIA's OpenCL makes of a program, made fit for CUDA's launcher.

The text is a program's binary. OpenCL's launcher fills registers that CUDA's does not: ``%envreg0`` to ``2`` with the
group offset and ``3`` to ``5`` with the global offset, which are 0 here, and ``6`` to ``8`` with the numbers of groups,
which CUDA calls ``%nctaid``. What a text says beyond that is checked, never guessed: Unlaunchable says what.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from ..places.stream import Unlaunchable

_REGISTER = re.compile(r"%envreg(\d+)\b")
_MEANING = dict.fromkeys(range(6), "0") | {6 + i: f"%nctaid.{axis}" for i, axis in enumerate("xyz")}
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(r"\.param\b(?P<kind>(?:\s+\.\w+(?:\s+\d+)?)*)\s+[\w$]+(?:\s*\[(?P<count>\d+)\])?$")
_TARGET = re.compile(r"\.target\s+sm_(\d+)")
_OVERLAPS_FROM = 90
_BODY = re.compile(r"(\.entry\s+[\w$]+\s*(?:\([^)]*\))?[^{};]*\{)")
_TYPE = re.compile(r"\.[usbf](8|16|32|64)\b")
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\];")
_HEADER = re.compile(r"\.address_size[^\n]*\n")
_GRID = re.compile(r"%(n?)ctaid\.([xyz])\b")
_OTHER_GRID = re.compile(r"%(?:n?clusterid|cluster_\w+|is_explicit_cluster|n?ctaid)\b|\.\w+percluster\b")
MOST_STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may declare with a size, for the driver's linker."""

_LATELY = 16
"""The number of parsed texts that are cached: a program is read when it is built, and again when CUDA's driver loads
it."""


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    size: int
    """The size of the parameter in bytes."""
    space: str
    """``global``, ``const`` or ``shared`` for a pointer; empty for a number."""


@functools.lru_cache(maxsize=_LATELY)
def for_cuda(binary: bytes) -> str:
    """A program's binary as text that CUDA's driver loads and launches. Raises Unlaunchable."""
    try:
        text = binary.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise Unlaunchable("the OpenCL driver's binary is no PTX text") from None
    if ".entry" not in text or ".target" not in text:
        raise Unlaunchable("the OpenCL driver's binary is no PTX text with an entry")

    def meaning(found: re.Match[str]) -> str:
        number = int(found[1])
        if number not in _MEANING:
            raise Unlaunchable(f"its PTX reads %envreg{number}, which only OpenCL's launcher fills")
        return _MEANING[number]

    return _REGISTER.sub(meaning, text)


def overlapping(text: str) -> str | None:
    """The text with kernels that may be launched before the one before has ended; None for devices without that.

    Each kernel begins by waiting until its predecessor has ended and what it wrote is seen, so there is no race. That
    it may be placed meanwhile saves the launch's latency. (To let it be placed as soon as the predecessor has been was
    tried: waiting groups took room from working ones, ResNet-50 at batch 1 went from 0.53 to 0.78 ms.)
    """
    target = _TARGET.search(text)
    if target is None or int(target[1]) < _OVERLAPS_FROM:
        return None
    return _BODY.sub(r"\1\n\tgriddepcontrol.wait;", text)


def in_one_row(text: str, kernel: str, groups: tuple[int, ...]) -> str:
    """The text with one kernel that is launched in a row of ``prod(groups)`` groups, and finds there where it stands in
    the grid of ``groups`` along x, y and z: CUDA launches few along y and z. Groups keep their order. Raises
    Unlaunchable.
    """
    begins = {found[1]: found.start() for found in _ENTRY.finditer(text)}
    begin = begins.get(kernel, len(text))
    end = min((at for at in begins.values() if at > begin), default=len(text))
    own = _GRID.sub(lambda found: f"%{'groups' if found[1] else 'group'}_{found[2]}", text[begin:end])
    other = _OTHER_GRID.search(own) or re.search(r"\.func\b", text)
    if other is not None:
        raise Unlaunchable(
            f"{kernel} has {groups} work groups, more than CUDA launches along an axis, and they cannot lie in one "
            f"row: its PTX has {other[0]}"
        )
    wide, high, deep = groups
    place = f"""
\t.reg .u32 %group_x, %group_y, %group_z, %groups_x, %groups_y, %groups_z;
\tmov.u32 %groups_x, {wide};
\tmov.u32 %groups_y, {high};
\tmov.u32 %groups_z, {deep};
\tmov.u32 %group_z, %ctaid.x;
\trem.u32 %group_x, %group_z, {wide};
\tdiv.u32 %group_z, %group_z, {wide};
\trem.u32 %group_y, %group_z, {high};
\tdiv.u32 %group_z, %group_z, {high};"""
    return text[:begin] + _BODY.sub(lambda found: found[0] + place, own, count=1) + text[end:]


def dynamic_shared(text: str) -> tuple[str, dict[str, int]] | None:
    """The text with the largest area of shared memory of each kernel that declares more than the linker takes sized by
    its launch, and its bytes by kernel; None where no kernel declares as much, or a text is not understood.

    All areas of a kernel without a size begin at the same address, so there is one at most.
    """
    areas = {found[2]: (int(found[3]), int(found[1])) for found in _SHARED.finditer(text)}
    if sum(size for size, _ in areas.values()) <= MOST_STATIC_SHARED or ".func" in text or not _HEADER.search(text):
        return None
    bare = _SHARED.sub("", text)
    begins = [(found[1], found.start()) for found in _ENTRY.finditer(bare)]
    ends = [begin for _, begin in begins[1:]] + [len(bare)]
    used: dict[str, set[str]] = {kernel: set() for kernel, _ in begins}
    for area in areas:
        named = re.compile(re.escape(area) + r"(?![\w$])")
        for (kernel, begin), end in zip(begins, ends, strict=True):
            if named.search(bare, begin, end):
                used[kernel].add(area)
    moved = {
        max(names, key=lambda name: areas[name])
        for names in used.values()
        if sum(areas[name][0] for name in names) > MOST_STATIC_SHARED
    }
    if not moved or any(len(names & moved) > 1 for names in used.values()):
        return None
    declared = "".join(f".extern .shared .align {areas[name][1]} .b8 {name}[];\n" for name in sorted(moved))
    text = _SHARED.sub(lambda found: "" if found[2] in moved else found[0], text)
    text = _HEADER.sub(lambda found: found[0] + declared, text, count=1)
    return text, {kernel: areas[name][0] for kernel, names in used.items() for name in names & moved}


@functools.lru_cache(maxsize=_LATELY)
def entries(text: str) -> Mapping[str, list[Parameter]]:
    """The kernels of a PTX text and their parameters in order. Raises Unlaunchable where one cannot be read."""
    found = {}
    for name, inner in _ENTRY.findall(text):
        pieces = [piece.strip() for piece in inner.split(",")] if inner.strip() else []
        found[name] = [_parameter(name, piece) for piece in pieces]
    return found


def _parameter(kernel: str, text: str) -> Parameter:
    shape = _PARAMETER.match(text)
    size = _TYPE.search(shape["kind"]) if shape else None
    if shape is None or size is None:
        raise Unlaunchable(f"its PTX has a parameter of {kernel} that is not understood: {text!r}")
    space = re.search(r"\.ptr\b(?:\s+\.(\w+))?", shape["kind"])
    kind = "" if space is None else space[1] if space[1] in ("global", "const", "shared", "local") else "global"
    return Parameter(int(size[1]) // 8 * int(shape["count"] or 1), kind)
