"""registry.yaml to rules: which solvers are preferred where, and which plugins are blocked.

The file is ``$CONVDISPATCH_REGISTRY``, else the one in the user's configuration folder, else the packaged one. The
first of them replaces the others, unless it contains ``include: packaged``. An unknown key or a value that can match
nothing is an InvalidPolicy that names file and line.
"""

from __future__ import annotations

import fnmatch
import functools
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ...api import settings
from ...api.device import DeviceInfo
from ...api.errors import InvalidPolicy
from ...api.problem import ConvProblem
from ...device import plainfile
from ...device.cache_home import user_folder
from .conditions import KEYS, Condition, mistake

FILE_NAME = "registry.yaml"
MAX_FILE_BYTES = 256 << 10
"""The largest size of a file of rules or errata, in bytes."""
MAX_NESTING = 16
"""The deepest nesting of lists and mappings in a registry file; a valid file has 6 levels."""
MAX_ENTRIES = 100_000
"""The most entries of a registry file, after YAML aliases are expanded."""
_MAX_LENGTH = 200
"""The most characters of a value in a rule's condition."""
KEYS_OF_A_FILE = frozenset({"version", "include", "families", "rules", "block"})


@dataclass(frozen=True)
class Rule:
    """A rule: if every condition of ``when`` matches, the solvers of ``prefer`` rank first, in their order."""

    when: tuple[Condition, ...]
    prefer: tuple[str, ...]
    """The solvers that the rule prefers: names, globs, or families that the same file defines."""
    where: str
    """The file and line where the entry was read, such as ``registry.yaml:12``."""
    families: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The families that the file defines: a name, and the solvers or globs that it stands for."""

    def globs(self, name: str) -> tuple[str, ...]:
        """The solvers or globs that an entry of ``prefer`` stands for: a family's, or the entry itself."""
        return dict(self.families).get(name, (name,))

    def matches(self, problem: ConvProblem, device: DeviceInfo) -> bool:
        """Whether all conditions hold."""
        return all(condition.matches(problem, device) for condition in self.when)


@dataclass(frozen=True)
class Registry:
    """The rules of one registry file, followed by those of the file that it includes."""

    source: str
    rules: tuple[Rule, ...] = ()
    block: frozenset[str] = frozenset()
    own: int | None = None
    """The number of rules that come from the file itself, before the packaged ones; None if it replaces the packaged
    ones."""
    named: tuple[tuple[str, str], ...] = ()
    """The solvers or globs that the file itself names, each with file and line."""

    def over(self, packaged: Registry) -> Registry:
        """This file's rules before the packaged ones; the plugins that either file blocks are blocked."""
        return Registry(
            self.source,
            self.rules + packaged.rules,
            self.block | packaged.block,
            own=len(self.rules),
            named=self.named,
        )

    def unmatched(self, solvers: Iterable[str]) -> list[str]:
        """A sentence for each name or glob of the file itself that matches none of ``solvers``."""
        return unmatched(self.named, solvers)

    def preference(self, problem: ConvProblem, device: DeviceInfo) -> tuple[tuple[str, ...], str | None]:
        """Return the first matching rule's solvers (names, globs or families), and the rule's file and line."""
        rule = self.rule(problem, device)
        return (rule.prefer, rule.where) if rule else ((), None)

    def rule(self, problem: ConvProblem, device: DeviceInfo) -> Rule | None:
        """The first rule that matches."""
        return next((rule for rule in self.rules if rule.matches(problem, device)), None)


def unmatched(named: Iterable[tuple[str, str]], solvers: Iterable[str]) -> list[str]:
    """A sentence for each name or glob, with its file and line, that matches none of ``solvers``."""
    names = list(solvers)
    return [
        f"{where}: {glob!r} names no loaded solver (convdispatch info lists them)"
        for glob, where in named
        # Derived solvers (``solver+rewriting``) are not loaded, so the part before the ``+`` is compared.
        if not fnmatch.filter(names, glob.partition("+")[0])
    ]


def registry_path() -> Path | None:
    """The file in force: ``$CONVDISPATCH_REGISTRY``, the user's, or the packaged one."""
    if chosen := settings.REGISTRY.value():
        return Path(chosen)
    own = own_path(FILE_NAME)
    return own if own.is_file() else packaged_path()


def own_path(name: str) -> Path:
    """The path of a file of rules in the user's configuration folder."""
    return user_folder("config") / name


@functools.cache
def packaged_path(name: str = FILE_NAME) -> Path | None:
    """The path of a packaged file, in the checkout or the installation."""
    root = Path(__file__).resolve().parents[3]
    for candidate in (
        root / name,  # In a checkout the file is at the root, because editable installs skip data files.
        Path(sys.prefix) / "etc" / "convdispatch" / name,
        root / "etc" / "convdispatch" / name,  # This is the folder that ``pip install --target`` writes.
    ):
        if candidate.is_file():
            return candidate
    return None


@functools.lru_cache(maxsize=8)
def _read(path: str | None, packaged: str | None) -> Registry:
    """The registry of one file, followed by the packaged rules if it includes them or is the packaged file."""
    if path is None:
        return Registry("no registry.yaml", own=0)
    text = read_text(path)
    if path == packaged:
        return Registry(path).over(parse(text, path))
    file_registry = parse(text, path)
    return file_registry if file_registry.own is None else file_registry.over(_read(packaged, packaged))


def read_text(path: str | Path) -> str:
    """The text of a file of rules or errata. Raises InvalidPolicy, which names the line of bytes that are no UTF-8."""
    try:
        data = plainfile.read_bytes(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:  # A path that contains a NUL character raises ValueError.
        raise InvalidPolicy(f"the file {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidPolicy(f"{path}:{line}: not UTF-8: {error.reason}") from None


def registry() -> Registry:
    """The registry in force, read once a path. Raises InvalidPolicy."""
    path, packaged = registry_path(), packaged_path()
    return _read(None if path is None else str(path), None if packaged is None else str(packaged))


def parse(text: str, source: str = FILE_NAME, keys: Set[str] = KEYS_OF_A_FILE) -> Registry:
    """Parse one registry's text, which may have ``keys``; ``own`` is set if it includes the packaged one.

    Raises InvalidPolicy naming ``source`` and the line.
    """
    root = compose(text, source)
    return Registry(source) if root is None else Parser(source).registry(root, keys)


def compose(text: str, source: str) -> yaml.Node | None:
    """The nodes of a YAML text; None of an empty one. Raises InvalidPolicy naming ``source`` and the line."""
    # LibYAML reads the packaged files, which every process reads, in a tenth of the time, but bounds no nesting.
    is_packaged = source in (str(packaged_path(FILE_NAME)), str(packaged_path("errata.yaml")))
    try:
        root = yaml.compose(
            text, Loader=getattr(yaml, "CSafeLoader", _BoundedLoader) if is_packaged else _BoundedLoader
        )
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidPolicy(f"{source}:{line}: {error.problem or 'not YAML'}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise InvalidPolicy(f"{source}:{line}: a character that YAML does not allow: {error.reason}") from error
    except RecursionError:
        raise InvalidPolicy(f"{source}:1: lists or mappings stand too deep in each other") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # An escape sequence that is no character, for instance, raises ValueError.
        raise InvalidPolicy(f"{source}:1: not YAML: {error}") from error
    return root


class _BoundedLoader(yaml.SafeLoader):
    """A YAML loader that refuses nesting deeper than MAX_NESTING, because time grows with the square of depth."""

    def fetch_flow_collection_start(self, kind: Any) -> None:
        if self.flow_level >= MAX_NESTING:
            self._too_deep()
        super().fetch_flow_collection_start(kind)

    def add_indent(self, column: int) -> bool:
        if len(self.indents) >= MAX_NESTING:
            self._too_deep()
        return bool(super().add_indent(column))

    def _too_deep(self) -> NoReturn:
        raise yaml.scanner.ScannerError(
            None, None, f"lists or mappings stand more than {MAX_NESTING} deep in each other", self.get_mark()
        )


class Parser:
    """Turns YAML nodes, which hold their line numbers, into rules."""

    def __init__(self, source: str) -> None:
        self.source, self.entries = source, 0
        self.construct = yaml.constructor.SafeConstructor().construct_object

    def where(self, node: yaml.Node) -> str:
        return f"{self.source}:{node.start_mark.line + 1}"

    def fail(self, node: yaml.Node, message: str) -> InvalidPolicy:
        return InvalidPolicy(f"{self.where(node)}: {message}")

    def mapping(self, node: yaml.Node, what: str, keys: Set[str]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, f"{what} must be a mapping of {', '.join(sorted(keys))}")
        items = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.fail(key, f"a key of {what} is a word; known: {', '.join(sorted(keys))}")
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
        self.count(node)
        return node.value

    def count(self, node: yaml.Node) -> None:
        """Bound the number of entries of the whole file, because a few YAML aliases can expand to very many."""
        self.entries += len(node.value)
        if self.entries > MAX_ENTRIES:
            raise self.fail(node, f"the file comes to more than {MAX_ENTRIES} entries")

    def texts(self, node: yaml.Node | None, what: str) -> tuple[str, ...]:
        for item in self.sequence(node, what):
            if not isinstance(item, yaml.ScalarNode):
                raise self.fail(item, f"{what} must hold names")
        return tuple(item.value for item in self.sequence(node, what))

    def word(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, f"{what} must be one word or sentence")
        return str(node.value)

    def registry(self, root: yaml.Node, keys: Set[str]) -> Registry:
        items = self.mapping(root, "the registry", keys)
        self.must_be_version_1(items.get("version"))
        include = items.get("include")
        if include is not None and include.value != "packaged":
            raise self.fail(include, "include takes packaged and nothing else")
        families = self.families(items.get("families"))
        rules = tuple(self.rule(node, families) for node in self.sequence(items.get("rules"), "rules"))
        named = [(glob, rule.where) for rule in rules for name in rule.prefer for glob in rule.globs(name)]
        return Registry(
            self.source,
            rules,
            frozenset(self.texts(items.get("block"), "block")),
            own=None if include is None else len(rules),
            named=tuple(named),
        )

    def must_be_version_1(self, node: yaml.Node | None) -> None:
        """Raise InvalidPolicy for a file of another version."""
        if node is not None and self.word(node, "version") != "1":
            raise self.fail(node, f"version must be 1, got {node.value}")

    def families(self, node: yaml.Node | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The families of a file: named lists of solvers or globs, which its rules may use."""
        if node is None:
            return ()
        keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        names = {key.value for key in keys if isinstance(key, yaml.ScalarNode)}
        lists = self.mapping(node, "families", names)
        return tuple((name, self.texts(list_node, f"the family {name}")) for name, list_node in lists.items())

    def rule(self, node: yaml.Node, families: tuple[tuple[str, tuple[str, ...]], ...] = ()) -> Rule:
        items = self.mapping(node, "a rule", {"when", "prefer"})
        if "prefer" not in items:
            raise self.fail(node, "a rule needs prefer: a list of solvers, globs or families")
        when, prefer = self.when(items.get("when")), self.texts(items["prefer"], "prefer")
        return Rule(when, prefer, self.where(node), families)

    def when(self, node: yaml.Node | None) -> tuple[Condition, ...]:
        if node is None:
            return ()
        items = self.mapping(node, "when", KEYS)
        return tuple(self.condition(key, value) for key, value in items.items())

    def condition(self, key: str, node: yaml.Node) -> Condition:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        self.count(node)
        alternatives = []
        for item in nodes:
            if not isinstance(item, yaml.ScalarNode):
                raise self.fail(item, f"{key} takes a value, a list of values or a comparison such as '>=32'")
            # PyYAML reads base-60 numbers in a time that is quadratic in their length.
            if len(item.value) > _MAX_LENGTH:
                raise self.fail(item, f"{key}: a value of {len(item.value)} characters, at most {_MAX_LENGTH} are read")
            try:
                value = self.construct(item)
                wrong = mistake(key, value)
            except (yaml.YAMLError, ValueError, OverflowError, TypeError, AttributeError) as error:
                reason = getattr(error, "problem", None) or error
                raise self.fail(item, f"{key}: {str(item.value)[:40]!r} is no value: {reason}") from None
            if wrong:
                raise self.fail(item, wrong)
            alternatives.append(value)
        return Condition(key, tuple(alternatives))
