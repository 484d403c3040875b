"""The state of this installation: what was found, what loaded, what did not, why, and how to fix it: vendors, devices,
plugins, layers, policy."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..api import settings
from ..api.errors import ConvDispatchError
from ..device import cuda_driver, runtime
from ..device.cache import store
from ..device.native import loading
from ..device.opencl import icd
from ..device.programs.kernels import NEW_SHARE, cache_limit
from ..device.rates import rates, switched_off
from ..measurement.run_reports import versions
from ..selection.choice.set_aside import listed_errata, not_here, seen_errata
from ..selection.plugins.errata import Erratum
from ..selection.plugins.loader import dropin_folder, plugins, try_each
from ..selection.plugins.registry import registry, registry_path
from ..selection.vendors.discovery import sources
from .folders import folders

PACKAGES = ("convdispatch", "pyopencl", "numpy", "pluggy", "intel-opencl-rt", "pocl-binary-distribution")
_PROBE = "import sys; from convdispatch import runtime; print(runtime.probe(runtime.devices()[int(sys.argv[1])]) or '')"
_PROBE_SECONDS = 120


@dataclass
class Report:
    """Everything ``convdispatch doctor`` shows; ``healthy`` when a device works and no plugin failed."""

    python: str
    versions: dict[str, str]
    vendors: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    default_device: str | None
    default_problem: str | None
    plugins: list[dict[str, Any]]
    registry: str | None
    registry_problem: str | None
    registry_note: str
    errata: list[dict[str, str]]
    """What is set aside, where the entry stands, why, and where it holds on this machine."""
    errata_problem: str | None
    native: str
    cache_limit: str
    dropin_folder: str
    vendor_sources: list[str]
    """The folders and files that name vendors' shared libraries, in order."""
    folders: dict[str, str]
    """The folders that convdispatch writes on this machine, by name; ``convdispatch cache list`` shows their sizes."""
    environment: dict[str, str] = field(default_factory=dict)
    """The environment variables of convdispatch that are set, with their text."""
    unreadable: list[str] = field(default_factory=list)
    """The environment variables whose values are invalid; the report describes their defaults."""
    advice: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether a device works, registry, errata and variables can be read, and each plugin loaded or is blocked."""
        broken = [entry for entry in self.plugins if entry["status"] not in ("loaded", "blocked")]
        unreadable = self.registry_problem or self.errata_problem or self.unreadable
        return self.default_device is not None and not (unreadable or broken)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"healthy": self.healthy}


def examine(*, probe: bool = True, again: bool = False) -> Report:
    """Look at everything once. Each device is probed, and each plugin imported, in a process of its own first: some
    compilers abort on failure, and a plugin may crash, exit or hang. ``again`` forgets what was seen of them before.
    """
    environment, faults = settings.texts(), settings.faults()
    # Variables that cannot be read are reported, and replaced by their defaults while everything else is examined.
    with settings.changed(dict.fromkeys(faults)):
        report = _examined(probe, again)
    report.environment, report.advice = environment, [*faults.values(), *report.advice]
    report.unreadable = [name for name in faults if name in settings.SETTINGS]
    return report


def _examined(probe: bool, forget_trials: bool) -> Report:
    if forget_trials:
        icd.how_it_ends.cache_clear()
        store.TRIALS.clear()
    if try_each(forget_trials):
        plugins.cache_clear()  # Clearing the cache makes ``_plugins`` load the plugins again, without warnings.
    vendors = [asdict(vendor) for vendor in icd.vendors()]
    devices = [_device(number, device, probe) for number, device in enumerate(runtime.devices())]
    default, default_problem = _default()
    source, problem, note = _registry()
    loaded = [asdict(entry) for entry in _plugins()]
    errata, errata_problem = _errata()
    report = Report(
        python=f"{sys.version.split()[0]} ({sys.executable})",
        versions=versions(PACKAGES),
        vendors=vendors,
        devices=devices,
        default_device=default,
        default_problem=default_problem,
        plugins=loaded,
        registry=source,
        registry_problem=problem,
        registry_note=note,
        errata=errata,
        errata_problem=errata_problem,
        native=_native(),
        cache_limit=_cache_limit(),
        dropin_folder=str(dropin_folder()),
        vendor_sources=[str(source) for source in sources()],
        folders={"store": str(store.folder() or "off"), **{folder.name: str(folder.path) for folder in folders()}},
    )
    report.advice = _advice(report)
    return report


def _cache_limit() -> str:
    limit = cache_limit()
    return f"{limit >> 20} MiB, of which further sizes of layers take {min(limit, NEW_SHARE) >> 20}"


def _native() -> str:
    """A sentence: whether calls on PyTorch's CUDA tensors take the compiled call path, or why they do not."""
    missing = cuda_driver.unavailable()
    if missing is None and importlib.util.find_spec("torch") is None:
        missing = "PyTorch is not installed"
    if missing is not None:
        return f"no: {missing}"
    try:
        importlib.import_module("torch")
    except Exception as error:
        return f"no: PyTorch does not load: {str(error).splitlines()[0]}"
    why = loading.unavailable()
    return "runs, below Python" if why is None else f"no, calls go by Python: {why}"


def _device(number: int, device: Any, probe: bool) -> dict[str, Any]:
    info = runtime.device_info(device)
    problem = _probe(number) if probe else None
    return {
        "platform": info.platform,
        "name": info.name,
        "vendor": info.vendor,
        "type": info.type,
        "arch": info.arch,
        "driver": info.driver,
        "compute_units": info.compute_units,
        "local_mem_size": info.local_mem_size,
        "fp16": info.fp16,
        "fp64": info.fp64,
        "rates": _rates(info),
        "problem": problem,
        "mend": _repair_hint(info.vendor, problem),
    }


def _rates(info: Any) -> str:
    """The rates by which solvers predict their times, as text, and whether they were measured."""
    known = rates(info)
    how = "measured" if known.measured else "estimated, CONVDISPATCH_RATES=off" if switched_off() else "estimated"
    numbers = f"{known.flops * 1e-9:,.0f} GFLOP/s, {known.bandwidth * 1e-9:,.0f} GB/s"
    return f"{numbers}, {known.launch * 1e6:.3g} us a launch ({how})"


def _probe(number: int) -> str | None:
    try:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROBE, str(number)],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"a trivial kernel did not finish in {_PROBE_SECONDS} s"
    if child.returncode:
        last_line = child.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"a trivial kernel ended the process (exit {child.returncode}): {last_line[0]}"
    return child.stdout.strip() or None


def _repair_hint(vendor: str, problem: str | None) -> str | None:
    if problem is None:
        return None
    if vendor == "pocl":
        return f"PoCL links with the system's compiler: apt-get install gcc libc6-dev; or {runtime.INSTALL}"
    return "update or reinstall the device's driver"


def _default() -> tuple[str | None, str | None]:
    try:
        return str(runtime.device_info(runtime.default_device())), None
    except ConvDispatchError as error:
        return None, str(error)


def _registry() -> tuple[str | None, str | None, str]:
    """The registry file in force, what is wrong with it, and a note that is worth knowing."""
    path: Path | None = registry_path()
    try:
        rules = registry()
    except ConvDispatchError as error:
        return str(path), str(error), ""
    replaces = "it replaces the packaged rules; a line `include: packaged` in it keeps them behind its own"
    return (str(path) if path else None), None, replaces if rules.own is None else ""


def _errata() -> tuple[list[dict[str, str]], str | None]:
    """The errata of all files and of this machine, and what is wrong with the files."""
    devices = [runtime.device_info(device) for device in runtime.devices()]
    try:
        entries = [(erratum, devices) for erratum in listed_errata()]
    except ConvDispatchError as error:
        entries, problem = [], str(error)
    else:
        problem = None
    entries += [(erratum, [device]) for device in devices for erratum in seen_errata(device)]
    return [_erratum(erratum, its_devices) for erratum, its_devices in entries], problem


def _erratum(erratum: Erratum, devices: list[Any]) -> dict[str, str]:
    """An erratum as text, and on which devices it holds, or why on none."""
    missed = {str(device): not_here(erratum, device) for device in devices}
    holds = [device for device, why in missed.items() if why is None]
    state = f"holds on {', '.join(holds)}" if holds else "; ".join(dict.fromkeys(filter(None, missed.values())))
    return {"solver": " ".join((erratum.solver, *erratum.kernel)), "reason": str(erratum), "state": state}


def _plugins() -> list[Any]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The report contains the same texts as the warnings, with advice.
        loaded = plugins()
        return [_with_own_reasons(loaded, entry) for entry in loaded.report]


def _with_own_reasons(loaded: Any, entry: Any) -> Any:
    """A plugin may say by ``unavailable()`` that it can do nothing on this machine, and by ``NEVER_RUN`` that no
    hardware has run it."""
    if entry.status != "loaded":
        return entry
    reasons = (loaded.unavailable(entry.name), loaded.never_run(entry.name), entry.reason)
    return replace(entry, reason="; ".join(filter(None, reasons)))


def _advice(report: Report) -> list[str]:
    advice = [f"{vendor['library']}: {vendor['mend']}" for vendor in report.vendors if vendor["mend"]]
    advice += [f"{device['name']}: {device['mend']}" for device in report.devices if device["mend"]]
    advice += [f"{entry['name']}: {entry['mend']}" for entry in report.plugins if entry["mend"]]
    if report.default_device is None:
        advice.append(f"no device works: {runtime.INSTALL}")
    if not any(entry["status"] == "loaded" and entry["solvers"] for entry in report.plugins):
        advice.append("no plugin provides a solver: reinstall convdispatch, or see CONVDISPATCH_PLUGINS above")
    return advice
