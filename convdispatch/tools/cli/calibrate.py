"""``calibrate``: the rates by which solvers predict their times."""

from __future__ import annotations

import click

from .options import DEVICE, stdout


@click.command()
@click.option("--anyway", is_flag=True, help="Keep what is measured on a busy machine, too.")
@DEVICE
def calibrate(anyway: bool, device: str | None) -> None:
    """Measure how fast a device multiplies, moves and launches: some seconds, once a device.

    Solvers predict their times by these rates where nothing is measured; without them they are estimated by the
    device's size. ``convdispatch find`` calibrates a device that is not. Beside other work nothing is kept: rates of a
    busy hour would decide which solvers run from then on.
    """
    from ...device import runtime
    from ...device.rates import rates
    from ...measurement.calibration import Unsteady
    from ...measurement.calibration import calibrate as measure
    from ..benchmark.quiet import load_now, loaded

    chosen = runtime.find_device(device)
    info = runtime.device_info(chosen)
    earlier_rates = rates(info)
    try:
        load = load_now()
        if not anyway and loaded(load, {"type": info.type, "compute_units": info.compute_units}):
            raise Unsteady(f"other work keeps {load:g} of {info.compute_units} processors busy")
        measured = measure(chosen, steady=not anyway)
    except Unsteady as error:
        raise click.ClickException(f"{error}; nothing is kept: wait until it ends, or --anyway") from None
    kind = "measured" if earlier_rates.measured else "estimated"
    console = stdout()
    console.print(f"{info}", markup=False, highlight=False)
    for rate, unit, scale in (("flops", "GFLOP/s", 1e-9), ("bandwidth", "GB/s", 1e-9), ("launch", "us", 1e6)):
        now, then = getattr(measured, rate) * scale, getattr(earlier_rates, rate) * scale
        console.print(f"  {rate:<10}{now:>12,.1f} {unit:<8} {kind} before: {then:,.1f}", markup=False, highlight=False)
