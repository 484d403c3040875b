"""Measures a device's rates, on which solvers base predictions; this takes a second or two, once for each device."""

from __future__ import annotations

import math

import pyopencl as cl

from ..api.device import DeviceInfo
from ..api.rates import DeviceRates
from ..device import runtime
from ..device.opencl.platforms import quota
from ..device.programs.kernels import build
from ..device.rates import STREAM_LAUNCH, keep
from .measure import timed
from .peaks import Peak, glance, measure_roof

MAX_SPREAD = 1.5
"""The ratio of slow to quick samples from which the device counts as busy with other work."""

LEAST_SHARE = 0.7
"""The least fraction of a CPU's processors (or of its control group's quota) that the process must have had. Equal
samples do not prove an idle device, because a steady load slows all of them."""

MAX_SLICE = 1.3
"""The highest ratio of a GPU's time per run in a sample to its quickest single run. A GPU that other processes use is
shared in time slices, into which a single kernel of half a millisecond fits and a sample does not."""

_EMPTY_KERNEL = "kernel void nothing(global int *p) { if (get_global_id(0) == 12345) *p = 1; }"
_CHAIN_LAUNCHES = 200
"""The number of launches in a sample, each after the previous one."""
_SAMPLES = 9


class Unsteady(Exception):
    """The device had other work, so the measured rates are discarded."""


def calibrate(device: cl.Device, steady: bool = False) -> DeviceRates:
    """Measure and store a device's rates. Raises BuildFailed if no kernel runs, OSError if the rates cannot be stored,
    and with ``steady`` Unsteady if samples differ too much."""
    info = runtime.device_info(device)
    if steady and info.type == "gpu":
        _check_steady(info, "multiply-adds", glance(device))
    roof = measure_roof(device, "float32", matrix=False)
    if steady:
        _check_steady(info, "multiply-adds", roof.flops)
        _check_steady(info, "copies", roof.bandwidth)
    # An NVIDIA OpenCL queue's launch time is its host's (5 to 8 us), and most launches go to CUDA streams instead.
    launch = STREAM_LAUNCH if info.vendor == "nvidia" else _launch_seconds(device)
    device_rates = DeviceRates(roof.flops.rate, roof.bandwidth.rate, launch, measured=True)
    keep(info, device_rates)
    return device_rates


def _check_steady(info: DeviceInfo, what: str, peak: Peak | None) -> None:
    """Raises Unsteady where a measurement shows that the device had other work."""
    if peak is None:
        return
    if peak.spread > MAX_SPREAD:
        raise Unsteady(f"the device had other work: {what} took {peak.spread:.2f} times as long as at other times")
    if info.type == "cpu" and peak.cores < LEAST_SHARE * min(info.compute_units, quota() or math.inf):
        share = f"{peak.cores:.1f} of its {info.compute_units} processors"
        raise Unsteady(f"the device had other work: {what} had {share}")
    if info.type == "gpu" and peak.single * MAX_SLICE < 1:
        ratio = f"{1 / peak.single:.2f} times as long as one run"
        raise Unsteady(f"the device had other work: {what} took {ratio}, time after time")


def _launch_seconds(device: cl.Device) -> float:
    """Seconds per launch in a chain of launches on an in-order queue; the least of several chains."""
    queue = cl.CommandQueue(runtime.context(device))
    memory = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    kernel = cl.Kernel(build(queue.context, _EMPTY_KERNEL), "nothing")
    kernel.set_args(memory)

    def chain() -> None:
        for _ in range(_CHAIN_LAUNCHES):
            cl.enqueue_nd_range_kernel(queue, kernel, (64,), None)
        queue.finish()

    chain()
    sample = timed(chain)
    return min(sample() for _ in range(_SAMPLES)) * 1e-3 / _CHAIN_LAUNCHES
