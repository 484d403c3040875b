"""``calibrate``: the rates by which solvers predict their times; ``fit-cost``: a solver's predictions beside its
measured times, and a cost that fits them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from ...api.errors import InvalidArgument, InvalidProblem
from ...selection.text_table import Column, Table, columns
from .options import AS_JSON, DEVICE, stdout
from .output import echo


@click.command("fit-cost")
@click.argument("solver")
@DEVICE
@AS_JSON
def fit_cost(solver: str, device: str | None, as_json: bool) -> None:
    """Set SOLVER's predicted times beside its measured ones, and print a cost() that fits them.

    Fits what `convdispatch find` benchmarked of the solver's first configurations on this device, by least squares:
    direct sums, bytes that must move, launches, each over the rates that `convdispatch calibrate` measures.
    """
    from ...device import runtime
    from ...device.rates import rates
    from ...measurement.fitting import fit

    info = runtime.device_info(runtime.find_device(device))
    samples = _samples(solver, info)
    fitted = fit(samples, rates(info))
    if as_json:
        rows = [
            {"problem": str(s.problem), "measured_ms": s.measured_ms, "predicted_ms": s.predicted_ms, "fitted_ms": ms}
            for s, ms in zip(samples, fitted.fitted_ms, strict=True)
        ]
        echo(json.dumps({**asdict(fitted), "code": fitted.code(), "problems": rows}, indent=1))
        return
    numbers = columns("number", "measured ms", "predicted ms", "over measured", "fitted ms", "over measured")
    table = Table(Column("problem", "name"), *numbers)
    for sample, ms in zip(samples, fitted.fitted_ms, strict=True):
        now = sample.predicted_ms
        today = ["-", "-"] if now is None else [f"{now:.4g}", f"{now / sample.measured_ms:.2f}"]
        table.add_row(
            str(sample.problem), f"{sample.measured_ms:.4g}", *today, f"{ms:.4g}", f"{ms / sample.measured_ms:.2f}"
        )
    console = stdout()
    console.print(table)
    today = "predicts nothing" if fitted.off_today is None else f"is off by a factor of {fitted.off_today:.2f}"
    console.print(
        f"{len(samples)} problems; today's cost {today}, the fitted one by {fitted.off:.2f} (geometric means)"
    )
    if not rates(info).measured:
        console.print("the rates are estimates: run convdispatch calibrate first, and fit again")
    console.print(fitted.code())


def _samples(name: str, device: Any) -> list[Any]:
    from ...api.problem import ConvProblem
    from ...measurement.fitting import Sample
    from ...selection.plugins.loader import plugins
    from ...selection.records.perfdb import perfdb
    from ...selection.visible_problem import visible_problem

    solver = plugins().solvers.get(name)
    if solver is None:
        raise InvalidArgument(f"no solver is named {name!r}; convdispatch info lists them")
    samples = []
    for record in perfdb().all(device):
        if record.solver != name or not (record.default and record.sure):
            continue
        try:
            visible = visible_problem(solver, ConvProblem.parse(record.problem))
        except InvalidProblem:
            # A record of another version of this package may have a kind of problem unknown to this one.
            continue
        cost = solver.cost(visible, device, record.config)
        samples.append(Sample(visible, record.median_ms, None if cost is None else 1e3 * cost))
    return samples


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
