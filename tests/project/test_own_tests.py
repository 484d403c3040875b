"""Each module has a test file of its name, or a row of ``own_tests.yaml`` that names its own test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml
from paths import ROOT

TESTS = ROOT / "tests"
TABLE: dict[str, dict[str, str]] = yaml.safe_load((TESTS / "project" / "own_tests.yaml").read_text(encoding="utf-8"))
ROOMS = {"elementwise": "nn", "models": "nn"}
"""The rooms of zones that have no room of their name."""


def room(folder: str) -> Path:
    """The folder of tests that mirrors a folder of modules."""
    top, *parts = folder.split("/")
    zone = parts[0] if parts else ""
    return TESTS / "plugins" / zone if top == "plugins" else TESTS / ROOMS.get(zone, zone)


def without_test(folder: str) -> set[str]:
    """The modules of a folder without a test file of their name, such as ``test_farm`` or ``test_torch_farm``."""
    zone = folder.partition("/")[2].partition("/")[0]
    names = {path.stem.removeprefix("test_").removeprefix(f"{zone}_") for path in room(folder).rglob("test_*.py")}
    modules = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__", "__main__"}
    return modules - names


FOLDERS = sorted(
    {str(path.parent.relative_to(ROOT)) for top in ("convdispatch", "plugins") for path in (ROOT / top).rglob("*.py")}
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_module_has_a_test_of_its_own(folder):
    rows = TABLE.get(folder, {})
    listed = [name for names in rows.values() for name in names.split() if name != "*"]
    open_modules = without_test(folder)
    assert len(listed) == len(set(listed)), "a module is named twice"
    assert set(listed) <= open_modules, f"gone, or with a test of its name: {sorted(set(listed) - open_modules)}"
    rest = open_modules - set(listed)
    stars = sum(names == "*" for names in rows.values())
    assert stars == bool(rest), f"modules without a row, or a * without modules: {sorted(rest)}"


def test_no_row_is_dead():
    assert set(TABLE) <= set(FOLDERS), f"folders that are gone: {sorted(set(TABLE) - set(FOLDERS))}"


def test_each_test_is_of_its_zone():
    """A row's file exists, and is in the room that mirrors the folder, or names the folder's zone or plugin."""
    for folder, rows in TABLE.items():
        zone = folder.partition("/")[2].partition("/")[0]
        for name in rows:
            path = TESTS / name
            assert path.is_file(), f"{folder}: {name} is gone"
            text = path.read_text(encoding="utf-8")
            assert any(
                isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.parse(text).body
            )
            named = rf"convdispatch[._]{zone}\b|from convdispatch import .*\b{zone}\b"
            names_zone = re.search(named + r"|\brun_cli\(" * (zone == "tools"), text)
            assert room(folder) in path.parents or names_zone, f"{folder}: {name} does not name its zone"
