"""Adapts the PTX that NVIDIA's OpenCL compiles from a program to CUDA's launcher.

The text is a program's binary. OpenCL's launcher fills registers that CUDA's does not: ``%envreg0`` to ``2`` with the
group offset and ``3`` to ``5`` with the global offset, which are 0 here, and ``6`` to ``8`` with the numbers of groups,
which CUDA calls ``%nctaid``. A text that uses anything else of OpenCL's launcher raises Unlaunchable with the reason.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from ..places.stream import Unlaunchable

_REGISTER = re.compile(r"%envreg(\d+)\b")
_REGISTER_VALUES = dict.fromkeys(range(6), "0") | {6 + i: f"%nctaid.{axis}" for i, axis in enumerate("xyz")}
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(r"\.param\b(?P<kind>(?:\s+\.\w+(?:\s+\d+)?)*)\s+[\w$]+(?:\s*\[(?P<count>\d+)\])?$")
_TARGET = re.compile(r"\.target\s+sm_(\d+)")
_OVERLAPS_FROM = 90  # the first compute capability (9.0) whose kernels can wait for the preceding kernel themselves
_BODY = re.compile(r"(\.entry\s+[\w$]+\s*(?:\([^)]*\))?[^{};]*\{)")
_TYPE = re.compile(r"\.[usbf](8|16|32|64)\b")
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\];")
_HEADER = re.compile(r"\.address_size[^\n]*\n")
_GRID = re.compile(r"%(n?)ctaid\.([xyz])\b")
_UNSUPPORTED_GRID = re.compile(r"%(?:n?clusterid|cluster_\w+|is_explicit_cluster|n?ctaid)\b|\.\w+percluster\b")
MOST_STATIC_SHARED = 48 << 10
"""The most bytes of statically sized shared memory of a kernel that the driver's linker accepts."""

_MAX_CACHED_TEXTS = 16
"""The number of parsed texts that are cached: a text is parsed when it is built, and when CUDA's driver loads it."""


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    size: int
    """The size of the parameter in bytes."""
    space: str
    """``global``, ``const`` or ``shared`` for a pointer; empty for a number."""


@functools.lru_cache(maxsize=_MAX_CACHED_TEXTS)
def for_cuda(binary: bytes) -> str:
    """A program's binary as text that CUDA's driver loads and launches. Raises Unlaunchable."""
    try:
        text = binary.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise Unlaunchable("the OpenCL driver's binary is no PTX text") from None
    if ".entry" not in text or ".target" not in text:
        raise Unlaunchable("the OpenCL driver's binary is no PTX text with an entry")

    def value(register: re.Match[str]) -> str:
        number = int(register[1])
        if number not in _REGISTER_VALUES:
            raise Unlaunchable(f"its PTX reads %envreg{number}, which only OpenCL's launcher fills")
        return _REGISTER_VALUES[number]

    return _REGISTER.sub(value, text)


def overlapping(text: str) -> str | None:
    """The text with kernels that may be launched before the preceding kernel has ended; None for devices without that.

    Each kernel begins by waiting until its predecessor has ended and its writes are visible, so there is no race; the
    early launch hides the launch's latency. (Launching as soon as the predecessor has started was tried: waiting groups
    took resources from working ones, and ResNet-50 at batch 1 went from 0.53 to 0.78 ms.)
    """
    target = _TARGET.search(text)
    if target is None or int(target[1]) < _OVERLAPS_FROM:
        return None
    return _BODY.sub(r"\1\n\tgriddepcontrol.wait;", text)


def in_one_row(text: str, kernel: str, groups: tuple[int, ...]) -> str:
    """The text with one kernel changed for a launch of ``prod(groups)`` groups along x: each group computes its indices
    in the grid of ``groups`` along x, y and z, because CUDA limits groups along y and z. Groups keep their order.
    Raises Unlaunchable.
    """
    begins = {match[1]: match.start() for match in _ENTRY.finditer(text)}
    begin = begins.get(kernel, len(text))
    end = min((begin_of_next for begin_of_next in begins.values() if begin_of_next > begin), default=len(text))
    entry_text = _GRID.sub(lambda found: f"%{'groups' if found[1] else 'group'}_{found[2]}", text[begin:end])
    unsupported = _UNSUPPORTED_GRID.search(entry_text) or re.search(r"\.func\b", text)
    if unsupported is not None:
        raise Unlaunchable(
            f"{kernel} has {groups} work groups, more than CUDA launches along an axis, and they cannot lie in one "
            f"row: its PTX has {unsupported[0]}"
        )
    wide, high, deep = groups
    prologue = f"""
\t.reg .u32 %group_x, %group_y, %group_z, %groups_x, %groups_y, %groups_z;
\tmov.u32 %groups_x, {wide};
\tmov.u32 %groups_y, {high};
\tmov.u32 %groups_z, {deep};
\tmov.u32 %group_z, %ctaid.x;
\trem.u32 %group_x, %group_z, {wide};
\tdiv.u32 %group_z, %group_z, {wide};
\trem.u32 %group_y, %group_z, {high};
\tdiv.u32 %group_z, %group_z, {high};"""
    return text[:begin] + _BODY.sub(lambda found: found[0] + prologue, entry_text, count=1) + text[end:]


def dynamic_shared(text: str) -> tuple[str, dict[str, int]] | None:
    """For kernels that declare more shared memory than the linker accepts: the text in which the launch sets the size
    of each such kernel's largest array, and these sizes in bytes by kernel; None if there is no such kernel, or if the
    text is not understood. A kernel can have one such array only, because all of them begin at the same address.
    """
    arrays = {match[2]: (int(match[3]), int(match[1])) for match in _SHARED.finditer(text)}
    if sum(size for size, _ in arrays.values()) <= MOST_STATIC_SHARED or ".func" in text or not _HEADER.search(text):
        return None
    without_arrays = _SHARED.sub("", text)
    begins = [(match[1], match.start()) for match in _ENTRY.finditer(without_arrays)]
    ends = [begin for _, begin in begins[1:]] + [len(without_arrays)]
    used: dict[str, set[str]] = {kernel: set() for kernel, _ in begins}
    for name_of_array in arrays:
        pattern = re.compile(re.escape(name_of_array) + r"(?![\w$])")
        for (kernel, begin), end in zip(begins, ends, strict=True):
            if pattern.search(without_arrays, begin, end):
                used[kernel].add(name_of_array)
    moved = {
        max(names, key=lambda name: arrays[name])
        for names in used.values()
        if sum(arrays[name][0] for name in names) > MOST_STATIC_SHARED
    }
    if not moved or any(len(names & moved) > 1 for names in used.values()):
        return None
    declared = "".join(f".extern .shared .align {arrays[name][1]} .b8 {name}[];\n" for name in sorted(moved))
    text = _SHARED.sub(lambda found: "" if found[2] in moved else found[0], text)
    text = _HEADER.sub(lambda found: found[0] + declared, text, count=1)
    return text, {kernel: arrays[name][0] for kernel, names in used.items() for name in names & moved}


@functools.lru_cache(maxsize=_MAX_CACHED_TEXTS)
def entries(text: str) -> Mapping[str, list[Parameter]]:
    """The kernels of a PTX text and their parameters in order. Raises Unlaunchable where one cannot be read."""
    kernels = {}
    for name, parameters in _ENTRY.findall(text):
        pieces = [piece.strip() for piece in parameters.split(",")] if parameters.strip() else []
        kernels[name] = [_parameter(name, piece) for piece in pieces]
    return kernels


def _parameter(kernel: str, text: str) -> Parameter:
    shape = _PARAMETER.match(text)
    size = _TYPE.search(shape["kind"]) if shape else None
    if shape is None or size is None:
        raise Unlaunchable(f"its PTX has a parameter of {kernel} that is not understood: {text!r}")
    space = re.search(r"\.ptr\b(?:\s+\.(\w+))?", shape["kind"])
    kind = "" if space is None else space[1] if space[1] in ("global", "const", "shared", "local") else "global"
    return Parameter(int(size[1]) // 8 * int(shape["count"] or 1), kind)
