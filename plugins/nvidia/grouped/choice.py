"""Which tiles nvidia.grouped tries, and in which order."""

from __future__ import annotations

import functools
import math

from convdispatch.api import ConvProblem

from ..pace import COPY
from .job import GroupedJob, GroupedTile

__all__ = ["choices", "seconds"]

_CLOCK = 1.7e9
_ISSUED = 2.4  # instructions a cycle that four schedulers reach together
_READ = 8.0  # cycles of a load of a warp's pixels: as many lines of the cache
_PRODUCT = 1.8  # cycles of a product of tensor cores
_MEMORY = 0.85  # of a copy's bandwidth
_RESIDENT = 24  # warps of a multiprocessor that hide what each waits for
_LAUNCH, _FILL = 5.5e-6, 2.5e-6  # seconds: of a launch, and from a tile's first read to its last write
_TILES = [(m, warps, turns) for m in (1, 2, 4) for warps in (4, 8) for turns in (1, 2, 4, 8)]


def seconds(job: GroupedJob, units: int, copy: float = COPY) -> float:
    """Predicted seconds on a device of ``units`` multiprocessors."""
    t, walk = job.tile, job.walk
    loads, products = 2 * t.frag_m, t.frag_m * len(job.pairs)
    cycles = issued = 0.0
    for phase in walk.phases:
        tiles = -(-walk.images * phase.places // (16 * t.frag_m)) * job.targets
        taps = phase.volume * job.sources
        tap = loads * 6 + products + len(job.pairs)
        filled = phase.volume * job.sources * len(job.pairs) / t.warps * 40 / t.turns
        issued += tiles * (taps * tap + loads * 40 + filled)
        cycles += tiles * taps * math.hypot(loads * _READ, products * _PRODUCT)
    warps = job.work_groups * t.warps
    busy = min(1.0, warps / (units * _RESIDENT))
    work = math.hypot(issued / _ISSUED, cycles) / (units * _CLOCK * busy)
    return math.hypot(work, job.problem.bytes / (_MEMORY * copy)) + _LAUNCH + _FILL


@functools.lru_cache(maxsize=256)
def choices(problem: ConvProblem, units: int) -> tuple[GroupedTile, ...]:
    """Tiles, the fastest by prediction first."""
    jobs = [GroupedJob(problem, GroupedTile(*numbers)) for numbers in _TILES]
    useful = [job for job in jobs if job.misfit is None and (job.tile.turns == 1 or job.work_groups >= units)]
    return tuple(job.tile for job in sorted(useful, key=lambda job: seconds(job, units)))
