"""convdispatch calibrate: measures the rates in which solvers predict their costs."""

from __future__ import annotations

import click

from .options import DEVICE, stdout


@click.command()
@DEVICE
def calibrate(device: str | None) -> None:
    """Measure how fast a device multiplies, moves and launches: some seconds, once a device.

    Solvers predict their times by these rates where nothing is measured; without them they are estimated by the
    device's size. ``convdispatch find`` calibrates a device that is not.
    """
    from ...device import runtime
    from ...device.rates import rates
    from ...measurement.calibration import calibrate as measure

    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    before, found = rates(info), measure(chosen)
    kind = "measured" if before.measured else "estimated"
    console = stdout()
    console.print(f"{info}", markup=False, highlight=False)
    for what, unit, scale in (("flops", "GFLOP/s", 1e-9), ("bandwidth", "GB/s", 1e-9), ("launch", "us", 1e6)):
        now, then = getattr(found, what) * scale, getattr(before, what) * scale
        console.print(f"  {what:<10}{now:>12,.1f} {unit:<8} {kind} before: {then:,.1f}", markup=False, highlight=False)
