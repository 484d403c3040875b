"""Finds plugins and layers and loads each in a guard of its own, as the OpenCL ICD loader loads vendors.

Sources, in order: entry points of the group ``convdispatch``, sorted by name; then the drop-in folder
(``CONVDISPATCH_PLUGIN_DIR``, else ``plugins`` in the user's configuration folder), where a ``.py`` file or a package
is a plugin. ``CONVDISPATCH_PLUGINS`` allows only the plugins that it names; ``CONVDISPATCH_BLOCK`` and the registry's
``block`` exclude plugins. Any error of one plugin is recorded, and the next one loads. Last come vendors' shared
libraries (``selection.vendors``). What did not come with this package is loaded in a child process first.

A plugin that is a package may hold a ``registry.yaml``: rules that prefer solvers of its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pluggy

from ...api import hookspecs, settings
from ...api.errors import ConvDispatchWarning, InvalidPolicy, PluginError
from ...api.fault_text import words
from ...api.solver import Solver
from ...device.background import Threads
from ...device.cache_home import user_folder
from ...device.child import SURVIVED
from ...device.startup_profile import phase
from ..vendors.discovery import content_of, name_of, vendor_files
from . import contract, errata, verdicts
from .contract import LoadedAs, register, solvers_of, traits_of
from .registry import FILE_NAME, Registry, parse, read_text, registry, unmatched

LAYER_GROUP = "convdispatch.layers"


@dataclass(frozen=True)
class Loaded:
    """The outcome of loading one plugin or layer."""

    name: str
    source: str
    status: str
    """The plugin's status: ``loaded``, ``blocked``, ``failed`` or ``duplicate``."""
    reason: str = ""
    mend: str = ""
    version: str = ""
    solvers: tuple[str, ...] = ()


@dataclass
class Plugins:
    """The loaded plugins: the hooks, the solvers by name, the layers, and a report of each plugin that was found."""

    manager: pluggy.PluginManager
    solvers: dict[str, Solver] = field(default_factory=dict)
    plugin_of: dict[str, str] = field(default_factory=dict)
    """The name of each solver's plugin, by the solver's name."""
    rules: dict[str, Registry] = field(default_factory=dict)
    """The rules that a plugin ships as ``registry.yaml``, by the plugin's name."""
    errata: dict[str, tuple[errata.Erratum, ...]] = field(default_factory=dict)
    """The errata that a plugin ships as ``errata.yaml``, by the plugin's name."""
    loaded_as: dict[int, LoadedAs] = field(default_factory=dict)
    """A solver's name and attributes as they were when it was loaded, by the solver's ``id``."""
    banned: dict[str, str] = field(default_factory=dict)
    """Plugins that are set aside for the rest of the process, and why."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """The version and source hash of each plugin, by its name."""
    own: set[str] = field(default_factory=set)
    """The plugins that come with this package."""
    layers: list[str] = field(default_factory=list)
    report: list[Loaded] = field(default_factory=list)

    def provider(self, solver: str) -> str:
        """The plugin of ``solver``; of a derived one (``name+rewriting``) the plugin of its root solver."""
        return self.plugin_of.get(solver) or self.plugin_of.get(solver.partition("+")[0], "?")

    def unavailable(self, plugin: str) -> str | None:
        """What a plugin lacks on this machine, by ``unavailable()`` of its module; None if it lacks nothing."""
        try:
            return self._text_from(plugin, "unavailable")
        except ValueError as error:
            return str(error)

    def library_version(self, solver: str) -> str:
        """The version of the library that a solver calls, by ``library_version()`` of its plugin's module, or empty."""
        try:
            return self._text_from(self.provider(solver), "library_version") or ""
        except ValueError:
            return ""

    def _text_from(self, plugin: str, function: str) -> str | None:
        """The text that a function of a plugin's module returns. Raises ValueError if it raises or returns no text."""
        module_function = getattr(self.manager.get_plugin(plugin), function, None)
        try:
            text = module_function() if callable(module_function) else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ValueError(f"its {function}() raised {words(error)}") from None
        if text is not None and not isinstance(text, str):
            raise ValueError(f"its {function}() answered a {type(text).__name__}, where a text or None was expected")
        return text or None

    def fingerprint(self, solver: str) -> str:
        """Return a text that identifies the version of the plugin to which ``solver`` belongs."""
        return self.fingerprints.get(self.provider(solver), "")

    def proven(self, solver: str) -> bool:
        """Whether the solver's plugin comes with this package, or was verified on this machine."""
        plugin = self.provider(solver)
        return plugin in self.own or verdicts.trusted(plugin, self.fingerprint(solver))

    def never_run(self, plugin: str) -> str | None:
        """Why the plugin's solvers are chosen by name alone; None for other plugins. Such a plugin states by
        ``NEVER_RUN`` that no hardware has run it, and was not verified on this machine."""
        basis = getattr(self.manager.get_plugin(plugin), "NEVER_RUN", None)
        if basis is None or verdicts.trusted(plugin, self.fingerprints.get(plugin, "")):
            return None
        return (
            f"never run on such hardware ({basis}): chosen once `convdispatch verify {plugin}` has passed here, "
            f"or by policy(solver='{plugin}.*')"
        )

    def version(self, solver: str) -> str:
        """Version of the distribution that provides ``solver``; empty for a drop-in."""
        plugin = self.provider(solver)
        return next((entry.version for entry in self.report if entry.name == plugin and entry.solvers), "")


@dataclass(frozen=True)
class _PluginSource:
    name: str
    source: str
    version: str
    load: Callable[[], Any]
    places: Callable[[], list[Path]] = list
    """Returns the plugin's files and folders without importing anything."""
    own: bool = False
    """Whether the plugin comes with this package, and was tested with it."""
    native: bool = False
    """Whether the plugin is a shared library."""

    @property
    def fingerprint(self) -> str:
        """Return a text that identifies this version of the plugin."""
        return self.version if self.own else verdicts.fingerprint(self.version, self.places())


@functools.lru_cache(maxsize=1)
def plugins() -> Plugins:
    """The loaded plugins; the first call loads them. No error of a plugin is raised."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    loaded = Plugins(manager)
    with phase("plugins"):
        for candidate in _candidates():
            loaded.report.append(_load_plugin(loaded, candidate))
        _load_layers(loaded)
    for entry in loaded.report:
        if entry.status in ("failed", "duplicate"):
            warnings.warn(f"plugin {entry.name} was set aside: {entry.reason}", ConvDispatchWarning, stacklevel=2)
    # An invalid registry raises its error where a problem is dispatched, not here.
    with contextlib.suppress(InvalidPolicy):
        own_errata = errata.own_file()
        entries = [(erratum.solver, erratum.where) for erratum in (errata.read(str(own_errata)) if own_errata else ())]
        for sentence in [*registry().unmatched(loaded.solvers), *unmatched(entries, loaded.solvers)]:
            warnings.warn(sentence, ConvDispatchWarning, stacklevel=2)
    return loaded


def reload() -> Plugins:
    """Load all plugins again, for instance after an installation or a change of environment."""
    plugins.cache_clear()
    return plugins()


def _entry_points(group: str) -> Iterator[_PluginSource]:
    # A distribution parses its metadata again for its name and again for its version, so both are cached.
    name_and_version: dict[int, tuple[str, str]] = {}
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda e: (e.name, e.value)):
        name, version = "?", ""
        if entry.dist is not None:
            if id(entry.dist) not in name_and_version:
                metadata = entry.dist.metadata
                name_and_version[id(entry.dist)] = metadata["Name"], metadata["Version"]
            name, version = name_and_version[id(entry.dist)]
        places = functools.partial(_folders_of, entry.value.partition(":")[0].partition(".")[0])
        source = f"{name} {version}".strip()
        yield _PluginSource(entry.name, source, version, entry.load, places, name == "convdispatch")


def dropin_folder() -> Path:
    """The folder whose files and packages are plugins."""
    return settings.PLUGIN_DIR.value() or user_folder("config") / "plugins"


def _dropins() -> Iterator[_PluginSource]:
    folder = dropin_folder()
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        file = path / "__init__.py" if path.is_dir() else path
        if file.suffix == ".py" and file.is_file() and not path.name.startswith((".", "_")):
            load = functools.partial(_import_file, path.stem, file)
            yield _PluginSource(path.stem, str(path), "", load, functools.partial(list, [path]))


def _libraries() -> Iterator[_PluginSource]:
    for file in vendor_files():
        load = functools.partial(_load_library, file)
        yield _PluginSource(name_of(file), str(file), "", load, functools.partial(content_of, file), native=True)


def _load_library(file: Path) -> Any:
    from ..vendors.library import Library  # a process without vendors' libraries reads no header

    return Library(file)


def _folders_of(module: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(module)  # ``find_spec`` of a top-level module name imports nothing.
    except (ImportError, ValueError):
        return []
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return [Path(folder) for folder in folders or ([spec.origin] if spec and spec.origin else [])]


def _candidates() -> list[_PluginSource]:
    return [*_entry_points(hookspecs.PROJECT), *_dropins(), *_libraries()]


def try_each(again: bool = False, *, strangers: bool = False) -> bool:
    """Import each plugin in a child process of its own, several in parallel, and store which plugins end the process.

    Plugins with a stored result are left out, unless ``again``. With ``strangers`` only plugins are tried that neither
    came with this package nor were verified here. Returns whether a stored result changed.
    """
    candidates = [
        (candidate.name, candidate.fingerprint)
        for candidate in _candidates()
        if not _block_reason(candidate.name) and not (strangers and candidate.own)
    ]
    if strangers:
        candidates = [(name, version) for name, version in candidates if not verdicts.trusted(name, version)]
    before = {name: verdicts.how_import_ended(name, version) for name, version in candidates}
    if again:
        verdicts.lift()
    threads = Threads(max(2, min(8, os.cpu_count() or 1)), "convdispatch-imports")
    untried = [(name, version) for name, version in candidates if again or before[name] is None]
    futures = [threads.submit(functools.partial(verdicts.try_import, *arguments)) for arguments in untried]
    faults = [future.result() for future in futures]
    return any((before[name] or None) != (fault or None) for (name, _), fault in zip(untried, faults))


def load_alone(name: str) -> None:
    """In a child process: load one plugin, query what it provides, report that the process survived, and end it."""
    for candidate in _candidates():
        if candidate.name == name:
            # The loader itself handles a plugin's exceptions; this trial import is about crashes.
            with contract.one_process(), contextlib.suppress(BaseException):
                module = candidate.load()
                getattr(module, "convdispatch_solvers", list)()
                getattr(module, "unavailable", str)()
    os.write(1, SURVIVED)
    os._exit(0)


def _import_file(name: str, file: Path) -> Any:
    module_name = f"convdispatch_dropin_{name}"
    locations = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(module_name, file, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _block_reason(name: str) -> str | None:
    allowed = settings.PLUGINS.value()
    if allowed and name not in allowed:
        return f"not named in CONVDISPATCH_PLUGINS={','.join(allowed)}"
    if name in settings.BLOCK.value():
        return "named in CONVDISPATCH_BLOCK"
    try:
        rules = registry()
    except InvalidPolicy:
        return None  # An invalid registry is the caller's error, which is raised where a problem is dispatched.
    return f"blocked by {rules.source}" if name in rules.block else None


def _load_plugin(loaded: Plugins, candidate: _PluginSource) -> Loaded:
    def refuse(status: str, reason: str, mend: str = "") -> Loaded:
        return Loaded(candidate.name, candidate.source, status, reason, mend, candidate.version)

    blocked = _block_reason(candidate.name)
    if blocked:
        return refuse("blocked", blocked)
    if loaded.manager.has_plugin(candidate.name):
        return refuse("duplicate", f"another plugin named {candidate.name!r} is loaded", "rename or remove one of them")
    version = loaded.fingerprints[candidate.name] = candidate.fingerprint
    if candidate.own:
        loaded.own.add(candidate.name)
    fault = None if candidate.own else verdicts.import_fault(candidate.name, version)
    if fault:
        again = "convdispatch doctor --again tries it anew"
        return refuse("failed", f"{fault}; skipped", f"shut it out by CONVDISPATCH_BLOCK={candidate.name}; {again}")
    try:
        forks_before = contract.fork_count()
        with contract.one_process():
            module = candidate.load()
        if contract.fork_count() > forks_before:
            return refuse("failed", "it forks as it is imported: two processes would go on", "ask its author")
        wanted = getattr(module, "api_version", hookspecs.API_VERSION)
    except KeyboardInterrupt:
        raise
    except PluginError as error:
        return refuse("failed", str(error), "correct the file, or remove it")
    except BaseException as error:
        return refuse("failed", f"import raised {words(error)}", "reinstall or remove the plugin")
    if wanted != hookspecs.API_VERSION:
        return refuse(
            "failed",
            f"written for API version {wanted}, this is {hookspecs.API_VERSION}",
            "install a version of the plugin for this convdispatch",
        )
    mistake = register(loaded.manager, module, candidate.name)
    if mistake:
        return refuse("failed", mistake, "ask the plugin's author")
    try:
        with contract.one_process():
            solvers = solvers_of(loaded.manager, module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        loaded.manager.unregister(module)
        return refuse("failed", f"convdispatch_solvers raised {words(error)}", "ask its author")
    clashing = [solver.name for solver in solvers if solver.name in loaded.solvers]
    if clashing:
        loaded.manager.unregister(module)
        owner = loaded.plugin_of[clashing[0]]
        return refuse(
            "duplicate", f"solver {clashing[0]!r} is already provided by plugin {owner!r}", "remove one of them"
        )
    for solver in solvers:
        loaded.solvers[solver.name] = solver
        loaded.plugin_of[solver.name] = candidate.name
        loaded.loaded_as[id(solver)] = LoadedAs(candidate.name, solver.name, traits_of(solver), candidate.own)
    names = tuple(solver.name for solver in solvers)
    note = _take_shipped(loaded, candidate.name, module, names)
    version_text = module.__version__ if candidate.native else candidate.version
    return Loaded(candidate.name, candidate.source, "loaded", note, version=version_text, solvers=names)


def _take_shipped(loaded: Plugins, name: str, module: Any, solvers: tuple[str, ...]) -> str:
    """Store the rules and errata that a plugin's package ships; return their faults as text. A file with a fault is not
    used."""
    notes = []

    def shipped(file_name: str, read: Callable[[Path], Any], what: str) -> Any:
        files = (Path(folder) / file_name for folder in getattr(module, "__path__", ()))
        file = next((file for file in files if file.is_file()), None)
        try:
            return read(file) if file else None
        except InvalidPolicy as error:
            notes.append(f"its {what} are passed over: {error}")

    rules = shipped(FILE_NAME, lambda file: parse(read_text(file), str(file), frozenset({"version", "rules"})), "rules")
    if rules is not None:
        loaded.rules[name] = rules
        notes += rules.unmatched(solvers)
    loaded.errata[name] = shipped(errata.FILE_NAME, lambda file: errata.read(str(file)), "errata") or ()
    if notes:
        warnings.warn(f"plugin {name}: {'; '.join(notes)}", ConvDispatchWarning, stacklevel=4)
    return "; ".join(notes)


def _load_layers(loaded: Plugins) -> None:
    layer_names = settings.LAYERS.value()
    if not layer_names:
        return
    available = {candidate.name: candidate for candidate in _entry_points(LAYER_GROUP)}
    for name in layer_names:
        candidate = available.get(name)
        if candidate is None:
            reason = f"no layer is named {name!r}; there are {', '.join(sorted(available)) or 'none'}"
            loaded.report.append(Loaded(name, "CONVDISPATCH_LAYERS", "failed", reason, "correct CONVDISPATCH_LAYERS"))
            continue
        try:
            module = candidate.load()
            mistake = register(loaded.manager, module, f"layer {name}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            mistake = f"import raised {words(error)}"
        if mistake is None:
            loaded.layers.append(name)
        status = "loaded" if mistake is None else "failed"
        loaded.report.append(Loaded(f"layer {name}", candidate.source, status, mistake or "", "", candidate.version))


_reported: set[tuple[str, str]] = set()


def warn_once(solver: str, kind: str, message: str, *, stacklevel: int) -> None:
    """Warn of a solver's fault, unless this process has warned of that kind of fault of its plugin."""
    key = plugins().provider(solver), kind
    if key in _reported:
        return
    _reported.add(key)
    warnings.warn(message, ConvDispatchWarning, stacklevel=stacklevel + 1)


def forget_reported() -> None:
    """Forget which faults were reported, so that they are reported again."""
    _reported.clear()
