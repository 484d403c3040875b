"""Records of a device that is not there, for the tests of where they are kept and what they decide."""

from __future__ import annotations

from convdispatch.api.device import DeviceInfo
from convdispatch.api.problem import ConvProblem
from convdispatch.selection.records.record import Record

DEVICE = DeviceInfo("Toy (R) GPU @ 1GHz", "toy", "gpu", "toy_9", driver="1.0", compute_units=4)
KEY = "toy-toy-9-toy-r-gpu-1ghz-4cu"
PROBLEM = ConvProblem(mb=1, ic=3, ih=8, iw=8, oc=4, kh=3, kw=3)


def record(solver="im2col.gemm", ms=2.0, problem=PROBLEM, created="2026-01-01", **more) -> Record:
    values = {"config": {}, "device": KEY, "problem": str(problem), "solver": solver, "created": created} | more
    return Record(median_ms=ms, ci_ms=(ms * 0.9, ms * 1.1), p20_ms=ms * 0.95, p80_ms=ms * 1.05, count=25, **values)


def solvers(records):
    return [r.solver for r in records]
