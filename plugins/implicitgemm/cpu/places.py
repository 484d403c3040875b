"""Depthwise layers in NCHW from registers: the vectors of the plane that a tile of pixels reads, and moves of lanes.

A vector of sums is of consecutive pixels of one row, or of as many whole rows as fit a vector. A tap reads *windows*:
vectors of the plane at literal offsets, whose lanes are moved in registers to the pixels that need them. Lanes whose
tap is outside of the plane or the row are 0. Tiles that differ only in their first pixel share one function.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from convdispatch.api import ConvProblem

from .passes import Pass, passes

Lanes = tuple[int | None, ...]
"""For each lane the offset of its element from the tile's first element; None if the lane is 0."""
Read = tuple[tuple[int, int] | None, ...]
"""For each lane (window, lane in that window); None if the lane is 0."""
MAX_TAPS_W = 7
"""Most taps along w: the loop over them is unrolled."""


@dataclasses.dataclass(frozen=True)
class Store:
    """Lanes ``first`` to ``used - 1`` of a vector are stored at offset ``at``; ``whole``: all lanes may be stored."""

    at: int
    first: int
    used: int
    whole: bool


@dataclasses.dataclass(frozen=True)
class Tile:
    """Sums of some vectors: the windows to load, and (operand, the (vector, tap) pairs that multiply by it)."""

    windows: tuple[int, ...]
    reads: tuple[tuple[Read, tuple[tuple[int, int], ...]], ...]
    stores: tuple[Store, ...]


MISFIT = f"NCHW in one pass, planes of a vector or more and {MAX_TAPS_W} taps a row at most only"
"""The reason for which the register kernels are refused a depthwise problem."""


def fits(problem: ConvProblem, lanes: int) -> bool:
    """Whether register kernels can compute a depthwise problem: in NCHW, in one pass, planes of a vector or more."""
    p = passes(problem)[0]
    flat = p.source[0] == p.places[0] == p.kernel[0] == 1 and p.dense and not p.empty
    smallest = min(p.source[1] * p.source[2], p.places[1] * p.places[2])
    return problem.layout == "nchw" and flat and p.taps[2] <= MAX_TAPS_W and smallest >= lanes


def lanes_in(p: Pass, lanes: int) -> int:
    """Number of lanes in the vectors of all planes, including empty lanes."""
    height, width = p.places[1:]
    rows = height if width >= lanes else -(-height // (lanes // width))
    return p.images * p.groups * rows * -(-width // lanes) * lanes


def tiles_of(p: Pass, lanes: int, rows: int, once: bool, taps: range | None = None) -> list[tuple[int, int, Tile]]:
    """Return the tiles of a plane, each as (row, column, Tile), in the plane's order.

    ``rows``: most vectors of a tile; ``once``: no pixel may be stored twice; ``taps``: rows of the kernel.
    """
    taps = range(p.taps[1]) if taps is None else taps
    height, width = p.places[1:]
    depth = 1 if width >= lanes else min(height, lanes // width)
    columns = [0] if width < lanes else [*range(0, width - lanes, lanes), width - lanes]
    groups = [*range(0, height - depth, depth), height - depth]
    tiles: dict[Any, Tile] = {}
    result = []
    for tile_rows in (groups[first_group : first_group + rows] for first_group in range(0, len(groups), rows)):
        # Tiles far from the first and last rows of the plane are equal, so they share one key.
        inside = tile_rows[0] * p.step[1] - p.pad[1] >= lanes
        last_read = (tile_rows[-1] + depth) * p.step[1] + p.taps[1] * p.spread[1] - p.pad[1]
        inside &= last_read + lanes < p.source[1]
        for index, column in enumerate(columns):
            key = column, len(tile_rows), None if inside else tile_rows[0], tile_rows[-1] == groups[-1]
            if key not in tiles:
                other_lanes = columns[index - 1] + lanes - column if index else 0
                if depth > 1 and tile_rows[-1] == groups[-1] and len(groups) > 1:
                    other_lanes = (groups[-2] + depth - groups[-1]) * width
                tiles[key] = _tile_at(_Plane(p, lanes, once, taps), tile_rows, depth, column, other_lanes)
            result.append((tile_rows[0], column, tiles[key]))
    return result


class _Plane(NamedTuple):
    """What all tiles of a plane have in common: the pass, lanes per vector, ``once`` and ``taps`` of ``tiles_of``."""

    p: Pass
    lanes: int
    once: bool
    taps: Iterable[int]


def _tile_at(plane: _Plane, rows: list[int], deep: int, column: int, other_lanes: int) -> Tile:
    """The tile of vectors that begin at each of ``rows`` and hold ``deep`` rows. The first ``before`` lanes of the last
    vector, or of all vectors where each is one row, belong to another tile."""
    p, lanes, once, taps = plane
    (height, width), (source_h, source_w) = p.places[1:], p.source[1:]
    row_lanes = min(width, lanes)
    used, base, target_base = (
        deep * row_lanes,
        rows[0] * p.step[1] * source_w + column * p.step[2],
        rows[0] * width + column,
    )
    pairs_by_offsets: dict[Lanes, list[tuple[int, int]]] = {}
    stores = []
    for vector, row in enumerate(rows):
        for ty, tx in itertools.product(taps, range(p.taps[2])):
            offsets: list[int | None] = [None] * lanes
            for lane in range(used):
                y = (row + lane // row_lanes) * p.step[1] + ty * p.spread[1] - p.pad[1]
                x = (column + lane % row_lanes) * p.step[2] + tx * p.spread[2] - p.pad[2]
                if 0 <= y < source_h and 0 <= x < source_w:
                    offsets[lane] = y * source_w + x - base
            if any(offset is not None for offset in offsets):
                pairs_by_offsets.setdefault(tuple(offsets), []).append((vector, ty * p.taps[2] + tx))
        store_offset, skipped = row * width + column, other_lanes if deep == 1 or row == rows[-1] else 0
        in_plane = store_offset + lanes <= height * width and not once
        stores.append(Store(store_offset - target_base, skipped if once else 0, used, used == lanes or in_plane))
    windows: list[int] = []
    window_range = -base, source_h * source_w - lanes - base
    order = sorted(pairs_by_offsets, key=lambda each: min(offset for offset in each if offset is not None))
    reads = tuple((cover(offsets, windows, *window_range), tuple(pairs_by_offsets[offsets])) for offsets in order)
    return Tile(tuple(windows), reads, tuple(stores))


def cover(offsets: Lanes, windows: list[int], lowest: int, highest: int) -> Read:
    """Return each lane's window and the lane in it; windows that are missing, at ``lowest`` to ``highest``, are
    added."""
    lanes, first_offset = len(offsets), offsets[0]
    if first_offset is not None and offsets == tuple(range(first_offset, first_offset + lanes)):
        if first_offset not in windows:
            windows.append(first_offset)
        return tuple((first_offset, lane) for lane in range(lanes))
    reused, new = (_choose_windows(offsets, existing, lowest, highest) for existing in (windows, []))
    # One vector load costs less than one more move of lanes between registers, so the choice with fewer windows wins.
    chosen = min(reused, new, key=len)
    windows += [window for window in chosen if window not in windows]
    return tuple(
        None if offset is None else next((w, offset - w) for w in chosen if w <= offset < w + lanes)
        for offset in offsets
    )


def _choose_windows(offsets: Lanes, windows: list[int], lowest: int, highest: int) -> list[int]:
    """Windows that hold all offsets; an existing window is used if it holds as many offsets as a new one would."""
    lanes = len(offsets)
    missing = [offset for offset in offsets if offset is not None]
    chosen: list[int] = []
    while missing:
        usable = [w for w in windows if any(w <= offset < w + lanes for offset in missing)]
        best = max(usable, key=lambda w: sum(w <= offset < w + lanes for offset in missing), default=None)
        new = max(lowest, min(highest, min(missing) - (0 if best is not None or chosen else _first_used_lane(offsets))))
        counts = [sum(w <= offset < w + lanes for offset in missing) for w in (new, new if best is None else best)]
        if best is None or counts[0] > counts[1]:
            best = new
        chosen.append(best)
        missing = [offset for offset in missing if not best <= offset < best + lanes]
    return chosen


def _first_used_lane(offsets: Lanes) -> int:
    """The first lane with an element; a window that begins that many elements earlier needs no move of lanes."""
    return next(lane for lane, offset in enumerate(offsets) if offset is not None)


@dataclasses.dataclass
class Run:
    """Calls (function, first column, last column, column step) for rows ``first`` to ``last`` with a step ``apart``."""

    first: int
    last: int
    apart: int
    calls: list[tuple[str, int, int, int]]


def runs_of(calls: Iterable[tuple[int, int, str]]) -> list[Run]:
    """Join calls (row, column, function), which are sorted by row, into loops."""
    runs: list[Run] = []
    for row, row_calls in itertools.groupby(calls, lambda call: call[0]):
        column_runs: list[tuple[str, int, int, int]] = []
        for _, column, function in row_calls:
            last_function, first_column, last_column, column_step = column_runs[-1] if column_runs else ("", 0, 0, 0)
            if last_function == function and column_step in (0, column - last_column):
                column_runs[-1] = function, first_column, column, column - last_column
            else:
                column_runs.append((function, column, column, 0))
        if runs and runs[-1].calls == column_runs and runs[-1].apart in (0, row - runs[-1].last):
            runs[-1].last, runs[-1].apart = row, row - runs[-1].last
        else:
            runs.append(Run(row, row, 0, column_runs))
    return runs


def name(window: int, of: str = "x") -> str:
    """Return the name of a window's variable in OpenCL C."""
    return f"{of}{window}" if window >= 0 else f"{of}_{-window}"


def gather_lanes(read: Read, of: str = "x", to: str = "m") -> tuple[list[str], str]:
    """(OpenCL statements that gather an operand's lanes from windows and zero the others, the operand's expression)."""
    lines, value = [], ""
    for window in dict.fromkeys(source[0] for source in read if source is not None):
        lane_of = {lane: source[1] for lane, source in enumerate(read) if source is not None and source[0] == window}
        if not value and all(lane == source_lane for lane, source_lane in lane_of.items()):
            value = name(window, of)
            continue
        base = value or name(window, of)
        lanes = (f"{name(window, of)}.s{lane_of[i]:x}" if i in lane_of else f"{base}.s{i:x}" for i in range(len(read)))
        lines.append(f"{'' if value == to else 'V '}{to} = (V)({', '.join(lanes)});")
        value = to
    if None in read:
        mask = ", ".join("0" if source is None else "-1" for source in read)
        lines.append(f"{'' if value == to else 'V '}{to} = AS_V(AS_KEPT({value}) & (KEPT)({mask}));")
        value = to
    return lines, value
