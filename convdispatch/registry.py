"""registry.yaml to rules: which solvers are preferred where, which plugins are blocked, what must not run.

Looked up in ``$CONVDISPATCH_REGISTRY``, then the user's configuration folder, then the packaged file. An unknown key
or a malformed value is an InvalidPolicy that names file and line.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import operator
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from .api.device import DeviceInfo
from .api.errors import InvalidPolicy
from .api.problem import ConvProblem

__all__ = ["Erratum", "Registry", "Rule", "parse", "registry", "registry_path"]

_PROBLEM_KEYS = {f.name for f in dataclasses.fields(ConvProblem)} | {"depthwise"}
_DEVICE_KEYS = {"vendor", "type", "arch", "platform", "driver", "name"}
_COMPARISON = re.compile(r"\s*(>=|<=|!=|==|>|<)\s*(.+)")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Condition:
    """One ``key: value`` of a ``when``; ``alternatives`` are texts or numbers, any of which may match."""

    key: str
    alternatives: tuple[Any, ...]

    def matches(self, problem: ConvProblem, device: DeviceInfo) -> bool:
        """Whether the problem's or the device's value satisfies one alternative."""
        value = getattr(device if self.key in _DEVICE_KEYS else problem, self.key)
        return any(_satisfies(value, wanted) for wanted in self.alternatives)


def _satisfies(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        comparison = _COMPARISON.fullmatch(wanted)
        if comparison:
            return _OPERATORS[comparison[1]](_ordered(value), _ordered(comparison[2]))
        return fnmatch.fnmatchcase(str(value), wanted)
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _ordered(value: Any) -> tuple[int, ...]:
    """A number or a driver's version as something that compares: ``"580.159"`` is (580, 159)."""
    return (value,) if isinstance(value, int) else tuple(int(part) for part in re.findall(r"\d+", str(value)))


@dataclass(frozen=True)
class Rule:
    """Where every condition of ``when`` matches, the solvers of ``prefer`` come first, in their order."""

    when: tuple[Condition, ...]
    prefer: tuple[str, ...]
    line: int

    def matches(self, problem: ConvProblem, device: DeviceInfo) -> bool:
        """Whether all conditions hold."""
        return all(condition.matches(problem, device) for condition in self.when)


@dataclass(frozen=True)
class Erratum:
    """A solver (name or glob) that must not run where all conditions match, and why."""

    solver: str
    when: tuple[Condition, ...]
    reason: str
    line: int


@dataclass(frozen=True)
class Registry:
    """What one registry file says."""

    source: str
    rules: tuple[Rule, ...] = ()
    block: frozenset[str] = frozenset()
    errata: tuple[Erratum, ...] = ()

    def preference(self, problem: ConvProblem, device: DeviceInfo) -> tuple[tuple[str, ...], str | None]:
        """The first matching rule's solvers (names or globs), and where that rule stands."""
        for rule in self.rules:
            if rule.matches(problem, device):
                return rule.prefer, f"{self.source}:{rule.line}"
        return (), None

    def erratum(self, solver: str, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Why ``solver`` must not run here, or None."""
        for erratum in self.errata:
            if fnmatch.fnmatchcase(solver, erratum.solver) and all(c.matches(problem, device) for c in erratum.when):
                return f"{erratum.reason} (erratum, {self.source}:{erratum.line})"
        return None


def registry_path() -> Path | None:
    """The file in force: ``$CONVDISPATCH_REGISTRY``, the user's, the checkout's or the installed one."""
    chosen = os.environ.get("CONVDISPATCH_REGISTRY")
    if chosen:
        return Path(chosen)
    name = "registry.yaml"
    beside = Path(__file__).resolve().parent.parent
    for candidate in (
        Path(platformdirs.user_config_dir("convdispatch")) / name,
        beside / name,  # a checkout: editable installs skip data files
        Path(sys.prefix) / "etc" / "convdispatch" / name,
        beside / "etc" / "convdispatch" / name,  # pip install --target
    ):
        if candidate.is_file():
            return candidate
    return None


@functools.lru_cache(maxsize=8)
def _read(path: str | None) -> Registry:
    if path is None:
        return Registry("no registry.yaml")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidPolicy(f"the registry {path} cannot be read: {error.strerror}") from error
    return parse(text, path)


def registry() -> Registry:
    """The registry in force, read once a path. Raises InvalidPolicy."""
    path = registry_path()
    return _read(None if path is None else str(path))


def parse(text: str, source: str = "registry.yaml") -> Registry:
    """Parse a registry's text. Raises InvalidPolicy naming ``source`` and the line."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidPolicy(f"{source}:{line}: {error.problem or 'not YAML'}") from error
    if root is None:
        return Registry(source)
    return _Parser(source).registry(root)


class _Parser:
    """Walks YAML nodes, which know their lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.construct = yaml.constructor.SafeConstructor().construct_object

    def fail(self, node: yaml.Node, message: str) -> InvalidPolicy:
        return InvalidPolicy(f"{self.source}:{node.start_mark.line + 1}: {message}")

    def mapping(self, node: yaml.Node, what: str, keys: set[str]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, f"{what} must be a mapping of {', '.join(sorted(keys))}")
        items = {}
        for key, value in node.value:
            if key.value not in keys:
                raise self.fail(key, f"unknown key {key.value!r} in {what}; known: {', '.join(sorted(keys))}")
            if key.value in items:
                raise self.fail(key, f"{key.value!r} stands twice in {what}")
            items[key.value] = value
        return items

    def sequence(self, node: yaml.Node | None, what: str) -> list[yaml.Node]:
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self.fail(node, f"{what} must be a list")
        return node.value

    def texts(self, node: yaml.Node | None, what: str) -> tuple[str, ...]:
        for item in self.sequence(node, what):
            if not isinstance(item, yaml.ScalarNode):
                raise self.fail(item, f"{what} must hold names")
        return tuple(item.value for item in self.sequence(node, what))

    def registry(self, root: yaml.Node) -> Registry:
        items = self.mapping(root, "the registry", {"version", "rules", "block", "errata"})
        version = items.get("version")
        if version is not None and version.value != "1":
            raise self.fail(version, f"version must be 1, got {version.value}")
        return Registry(
            self.source,
            tuple(self.rule(node) for node in self.sequence(items.get("rules"), "rules")),
            frozenset(self.texts(items.get("block"), "block")),
            tuple(self.erratum(node) for node in self.sequence(items.get("errata"), "errata")),
        )

    def rule(self, node: yaml.Node) -> Rule:
        items = self.mapping(node, "a rule", {"when", "prefer"})
        if "prefer" not in items:
            raise self.fail(node, "a rule needs prefer: a list of solver names or globs")
        return Rule(self.when(items.get("when")), self.texts(items["prefer"], "prefer"), node.start_mark.line + 1)

    def erratum(self, node: yaml.Node) -> Erratum:
        items = self.mapping(node, "an erratum", {"solver", "when", "reason"})
        for key in ("solver", "reason"):
            if key not in items:
                raise self.fail(node, f"an erratum needs {key}")
        return Erratum(
            items["solver"].value, self.when(items.get("when")), items["reason"].value, node.start_mark.line + 1
        )

    def when(self, node: yaml.Node | None) -> tuple[Condition, ...]:
        if node is None:
            return ()
        items = self.mapping(node, "when", _PROBLEM_KEYS | _DEVICE_KEYS)
        return tuple(self.condition(key, value) for key, value in items.items())

    def condition(self, key: str, node: yaml.Node) -> Condition:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        alternatives = []
        for item in nodes:
            if not isinstance(item, yaml.ScalarNode):
                raise self.fail(item, f"{key} takes a value, a list of values or a comparison such as '>=32'")
            value = self.construct(item)
            comparison = _COMPARISON.fullmatch(value) if isinstance(value, str) else None
            if comparison and key != "driver" and not comparison[2].strip().isdigit():
                raise self.fail(item, f"{key}: {value!r} must compare with a whole number")
            alternatives.append(value)
        return Condition(key, tuple(alternatives))
