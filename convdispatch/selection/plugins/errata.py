"""errata.yaml to errata: kernels of drivers and libraries that compute wrongly, where they do, and until which version.

The entries of the user's file (``$CONVDISPATCH_ERRATA``, else ``errata.yaml`` in the user's configuration folder), of
the files that plugins ship, and of the packaged file hold together. An invalid file is an InvalidPolicy that names file
and line.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from ...api import settings
from ...api.device import DeviceInfo
from ...api.errors import ConvDispatchError, InvalidPolicy
from ...api.problem import ConvProblem
from .conditions import Condition, ordered
from .registry import Parser, compose, own_path, packaged_path, read_text

FILE_NAME = "errata.yaml"
_KEYS = frozenset({"solver", "kernel", "when", "driver", "plugin", "library", "remedy", "problems", "reason", "source"})
_VERSIONS = ("driver", "plugin", "library")


@dataclass(frozen=True)
class Versions:
    """The versions from ``since`` (empty: from the first) up to but without ``until`` (empty: without end)."""

    since: str = ""
    until: str = ""

    def hold(self, version: str) -> bool:
        """Whether a version is in the range; an unknown (empty) version is."""
        number = ordered(version)
        return not number or (
            (not self.since or number >= ordered(self.since)) and (not self.until or number < ordered(self.until))
        )

    def __str__(self) -> str:
        parts = (f"from {self.since}" if self.since else "", f"until {self.until}" if self.until else "")
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class Erratum:
    """A solver, or some kernels of its library, that must not run if every condition holds, and the reason."""

    solver: str
    """The name of the solver, or a glob of names."""
    reason: str
    where: str
    """The file and line where the entry was read, such as ``errata.yaml:12``."""
    kernel: tuple[str, ...] = ()
    """Names or globs of a library's kernels. If empty, the whole solver is set aside."""
    when: tuple[Condition, ...] = ()
    versions: Mapping[str, Versions] = field(default_factory=dict)
    """The versions of ``driver``, ``plugin`` and ``library`` for which the entry holds."""
    remedy: str = ""
    """The word by which the solver knows what to do instead of setting the kernel aside."""
    problems: tuple[ConvProblem, ...] = ()
    """Problems that show the fault."""
    source: str = ""

    def names(self, solver: str) -> bool:
        """Whether the entry is about a solver."""
        return fnmatch.fnmatchcase(solver, self.solver)

    def has(self, problem: ConvProblem) -> bool:
        """Whether the entry's conditions on the problem hold; its conditions on the device are ignored."""
        return all(condition.matches(problem, _NO_DEVICE) for condition in self.when if not condition.is_of_device)

    def misses(self, device: DeviceInfo | None, version: Callable[[str], str]) -> str | None:
        """Why the entry does not hold on a device; None if it holds. ``version`` returns that of ``plugin`` or
        ``library``.

        ``device`` is None for a library that computes the same on every device.
        """
        for condition in self.when if device is not None else ():
            if condition.is_of_device and not condition.matches(_NO_PROBLEM, device):
                return f"it is for {condition}, here it is {getattr(device, condition.key)}"
        for name, versions in self.versions.items():
            installed = version(name) if name != "driver" else device.driver if device else ""
            if not versions.hold(installed):
                return f"it holds {versions} of the {name}, here it is {installed}"
        return None

    def __str__(self) -> str:
        until = "".join(f", until {name} {range_.until}" for name, range_ in self.versions.items() if range_.until)
        return f"{self.reason} (erratum, {self.where}{until})"


_NO_PROBLEM = ConvProblem()
_NO_DEVICE = DeviceInfo("", "", "", "")


def parse(text: str, source: str = FILE_NAME) -> tuple[Erratum, ...]:
    """The entries of one file's text. Raises InvalidPolicy naming ``source`` and the line."""
    root = compose(text, source)
    if root is None:
        return ()
    parser = Parser(source)
    items = parser.mapping(root, "the file", frozenset({"version", "errata"}))
    parser.must_be_version_1(items.get("version"))
    return tuple(_erratum(parser, node) for node in parser.sequence(items.get("errata"), "errata"))


def _erratum(parser: Parser, node: yaml.Node) -> Erratum:
    items = parser.mapping(node, "an erratum", _KEYS)
    for key in ("solver", "reason"):
        if key not in items:
            raise parser.fail(node, f"an erratum needs {key}")
    words = {key: parser.word(items[key], key) for key in ("solver", "reason", "remedy", "source") if key in items}
    kernel = items.get("kernel")
    return Erratum(
        **words,
        where=parser.where(node),
        kernel=(kernel.value,) if isinstance(kernel, yaml.ScalarNode) else parser.texts(kernel, "kernel"),
        when=parser.when(items.get("when")),
        versions={key: _versions(parser, items[key], key) for key in _VERSIONS if key in items},
        problems=tuple(_problem(parser, item) for item in parser.sequence(items.get("problems"), "problems")),
    )


def _versions(parser: Parser, node: yaml.Node, key: str) -> Versions:
    items = parser.mapping(node, key, frozenset({"from", "until"}))
    texts = {name: parser.word(value, f"{name} of {key}") for name, value in items.items()}
    for name, text in texts.items():
        if not ordered(text):
            raise parser.fail(items[name], f"{name} of {key} is a version such as 590.12, got {text[:40]!r}")
    return Versions(texts.get("from", ""), texts.get("until", ""))


def _problem(parser: Parser, node: yaml.Node) -> ConvProblem:
    text = parser.word(node, "a problem")
    try:
        return ConvProblem.parse(text)
    except ConvDispatchError as error:
        raise parser.fail(node, f"{text[:80]!r} is no problem: {error}") from None


def own_file() -> Path | None:
    """The user's file, if there is one."""
    chosen = settings.ERRATA.value()
    default_path = Path(chosen) if chosen else own_path(FILE_NAME)
    return default_path if chosen or default_path.is_file() else None


def files() -> list[Path]:
    """The user's file and the packaged one, if they exist."""
    return [path for path in (own_file(), packaged_path(FILE_NAME)) if path is not None]


def listed(shipped: Iterable[tuple[Erratum, ...]], may_raise: bool = True) -> tuple[Erratum, ...]:
    """Every entry: the user's, the packaged ones, and those that plugins ship. For a file that cannot be read it raises
    InvalidPolicy, or with ``may_raise=False`` leaves out the entries."""
    sources = list(shipped)
    for path in files():
        try:
            sources.append(read(str(path)))
        except InvalidPolicy:
            if may_raise:
                raise
    return tuple(erratum for entries in sources for erratum in entries)


@functools.lru_cache(maxsize=64)
def read(path: str) -> tuple[Erratum, ...]:
    """The entries of a file, which is read once. Raises InvalidPolicy."""
    return parse(read_text(path), path)
