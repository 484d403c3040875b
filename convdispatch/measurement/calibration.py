"""Measures a device's rates, in which solvers predict: a second or two, once a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..api.rates import DeviceRates
from ..device import runtime
from ..device.opencl.processor import quota
from ..device.programs.kernels import build
from ..device.rates import STREAM_LAUNCH, keep
from .measure import timed
from .peaks import measure_roof

if TYPE_CHECKING:
    import pyopencl as cl

UNSTEADY = 1.5
"""The ratio of slow to quick samples from which the device counts as busy with other work."""

SHARED = 0.7
"""The fraction of a CPU's processors (or of its control group's) that a process has at least if nothing else runs;
samples under steady load are alike. Under a quota a kernel runs at full speed until it is used up, which is what most
samples see."""

SLICED = 1.3
"""The highest ratio of a GPU's sample to its quickest single run: beside another process' work it has slices of time,
in which one kernel of half a millisecond fits and a sample does not. Hot devices lose a tenth of their clock."""

_NOTHING = "kernel void nothing(global int *p) { if (get_global_id(0) == 12345) *p = 1; }"
_CHAIN = 200
"""The number of launches in a sample, each after the previous one."""
_SAMPLES = 9


class Unsteady(Exception):
    """The device had other work, so the measured rates are discarded."""


def calibrate(device: cl.Device, steady: bool = False) -> DeviceRates:
    """Measure and store a device's rates. Raises BuildFailed where no kernel runs, OSError where nothing can be kept,
    and with ``steady`` Unsteady where samples differ too much."""
    roof, info = measure_roof(device, "float32", matrix=False), runtime.device_info(device)
    for name, peak in (("multiply-adds", roof.flops), ("copies", roof.bandwidth)):
        if steady and peak.spread > UNSTEADY:
            raise Unsteady(f"the device had other work: {name} took {peak.spread:.2f} times as long as at other times")
        if steady and info.type == "cpu" and peak.cores < SHARED * min(info.compute_units, quota() or math.inf):
            had = f"{peak.cores:.1f} of its {info.compute_units} processors"
            raise Unsteady(f"the device had other work: {name} had {had}")
        if steady and info.type == "gpu" and peak.single * SLICED < 1:
            most = f"{1 / peak.single:.2f} times as long as one run"
            raise Unsteady(f"the device had other work: {name} took {most}, time after time")
    # An NVIDIA OpenCL queue's launch time is its host's (5 to 8 us), and most launches go to CUDA streams instead.
    launch = STREAM_LAUNCH if info.vendor == "nvidia" else _launch_seconds(device)
    found = DeviceRates(roof.flops.rate, roof.bandwidth.rate, launch, measured=True)
    keep(info, found)
    return found


def _launch_seconds(device: cl.Device) -> float:
    """Seconds a launch in a chain on an in-order queue, each behind the last: the least of several chains."""
    import pyopencl as cl

    queue = cl.CommandQueue(runtime.context(device))
    memory = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    kernel = cl.Kernel(build(queue.context, _NOTHING), "nothing")
    kernel.set_args(memory)

    def chain() -> None:
        for _ in range(_CHAIN):
            cl.enqueue_nd_range_kernel(queue, kernel, (64,), None)
        queue.finish()

    chain()
    sample = timed(chain)
    return min(sample() for _ in range(_SAMPLES)) * 1e-3 / _CHAIN
