"""``info``, ``doctor``, ``explain``: what is there, what is wrong with it, what would run and why."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from ...selection.text_table import Column, Table, columns
from ..problems import read_entries
from .options import AS_JSON, CONFIGURE, DEVICE, configure, stdout
from .output import echo


@click.command()
@AS_JSON
def info(as_json: bool) -> None:
    """List the devices and the solvers."""
    from ...device import runtime
    from ...selection.plugins.loader import plugins

    devices = [runtime.device_info(device) for device in runtime.devices()]
    solvers = plugins()
    if as_json:
        listing = {
            "devices": [{"platform": d.platform, "name": d.name, "vendor": d.vendor, "type": d.type} for d in devices],
            "solvers": solvers.plugin_of,
        }
        echo(json.dumps(listing, indent=2))
        return
    for device in devices:
        echo(f"device  {device} ({device.vendor}, {device.type}, {device.arch})")
    for name, plugin in sorted(solvers.plugin_of.items()):
        echo(f"solver  {name} (plugin {plugin} {solvers.version(name)})")


@click.command()
@AS_JSON
@click.option("--probe/--no-probe", default=True, help="Build and run a trivial kernel on each device.")
@click.option("--again", is_flag=True, help="Try anew what was seen to crash, exit or hang, or to compute wrong.")
def doctor(as_json: bool, probe: bool, again: bool) -> None:
    """Show every vendor library, device and plugin: what loaded, what did not, why, and how to mend it."""
    from ..doctor import examine

    report = examine(probe=probe, again=again)
    if as_json:
        echo(json.dumps(report.to_dict(), indent=2))
    else:
        _show(report)
    sys.exit(0 if report.healthy else 1)


def _show(report: Any) -> None:
    console = stdout()
    console.print(f"python {report.python}; " + ", ".join(f"{n} {v}" for n, v in report.versions.items()))
    for name, value in report.environment.items():
        console.print(f"{name}={value}")
    vendors = Table(*columns("sentence", "vendor library", "named by", "state"), title="OpenCL vendors (ICDs)")
    for vendor in report.vendors:
        vendors.add_row(vendor["library"], vendor["source"], vendor["problem"] or "loads")
    devices = Table(
        *columns("name", "platform", "device", "vendor", "type", "arch"), Column("state", "sentence"), title="Devices"
    )
    for device in report.devices:
        row = [device[key] for key in ("platform", "name", "vendor", "type", "arch")]
        devices.add_row(*row, device["problem"] or "works")
    loaded = Table(
        *columns("name", "name", "from", "state"), Column("solvers or reason", "sentence"), title="Plugins and layers"
    )
    for entry in report.plugins:
        solvers_or_reason = "; ".join(filter(None, (", ".join(entry["solvers"]), entry["reason"])))
        loaded.add_row(entry["name"], entry["source"], entry["status"], solvers_or_reason)
    for table in (vendors, devices, loaded):
        console.print(table)
    for device in report.devices:
        console.print(f"{device['name']} ({device['platform']}): {device['rates']}", markup=False)
    console.print(f"drop-in folder: {report.dropin_folder}")
    console.print(f"vendors' libraries: {', '.join(report.vendor_sources)}", markup=False)
    for name in ("records", "rates", "store"):
        if name in report.folders:
            console.print(f"{name}: {report.folders[name]}")
    console.print("all folders, and their sizes: convdispatch cache list")
    console.print(f"registry: {report.registry or 'none'} {report.registry_problem or ''}")
    if report.registry_note:
        console.print(f"  {report.registry_note}")
    for erratum in report.errata:
        console.print(f"erratum: {erratum['solver']}: {erratum['reason']}; {erratum['state']}", markup=False)
    if report.errata_problem:
        console.print(f"errata: {report.errata_problem}", markup=False)
    console.print(f"native call path for PyTorch on CUDA: {report.native}")
    console.print(f"memory for programs, plans, calls and forms: {report.cache_limit}")
    console.print(f"default device: {report.default_device or report.default_problem}")
    for line in report.advice:
        console.print(f"to mend: {line}")


@click.command()
@click.argument("names", metavar="NET|PROBLEM...", nargs=-1, required=True)
@CONFIGURE
@click.option("--verbose", "-v", is_flag=True, help="A line for each solver that refuses; for a net, all of it.")
@click.option("--workspace", is_flag=True, help="What runs under each ceiling of the workspace, and in what time.")
@DEVICE
@AS_JSON
def explain(names: tuple[str, ...], verbose: bool, device: str | None, as_json: bool, **changes: Any) -> None:
    """Say which solver runs PROBLEM (such as mb1ic64ih56oc64kh3ph1), and why each other one does not.

    Of a NET or a model file, a sentence for each layer; a net's layers stand there in both layouts without --layout.
    """
    from ...selection.explanation import explain as explain_problem

    by_ceiling = changes.pop("workspace")
    entries = configure(read_entries(names, (), changes.get("batch"), changes.get("layout")), **changes)
    if by_ceiling:
        _show_by_workspace([entry.problem for entry in entries], device, as_json)
        return
    every = [(entry.name, explain_problem(entry.problem, device)) for entry in entries]
    if as_json:
        listed = [explanation.to_dict() for _, explanation in every]
        echo(json.dumps(listed if len(listed) > 1 else listed[0], indent=2))
        return
    width = stdout().width
    for name, explanation in every:
        if len(every) == 1 or verbose:
            echo(explanation.text(width, verbose))
        else:
            title = " ".join(dict.fromkeys((name, str(explanation.problem))))
            stdout().print(f"{title}: {explanation.why}", highlight=False)


def _show_by_workspace(problems: list[Any], device: str | None, as_json: bool) -> None:
    """Show which solver runs under each ceiling of the workspace, for each problem."""
    from ...device import runtime
    from ...selection.explanation import by_workspace, ceilings_text

    info = runtime.device_info(runtime.find_device(device))
    every = {problem: by_workspace(problem, info) for problem in problems}
    if as_json:
        listed = [{"problem": str(p), "device": str(info), "ceilings": [*map(asdict, every[p])]} for p in every]
        echo(json.dumps(listed if len(listed) > 1 else listed[0], indent=2))
        return
    for problem, ceilings in every.items():
        echo(ceilings_text(problem, info, ceilings, stdout().width))
