"""A folder's ``__init__`` names every module in it, and none that is gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from paths import ROOT

LEAST = 3
"""Modules and folders from which on a folder needs a map."""


def contents(folder: Path) -> set[str]:
    """Modules and packages that lie in a folder."""
    modules = {path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


FOLDERS = [
    path.parent
    for top in ("convdispatch", "plugins")
    for path in sorted((ROOT / top).rglob("__init__.py"))
    if len(contents(path.parent)) >= LEAST
]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_map_names_what_is_there(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = set(re.findall(r"^- ``(\w+)``: \S", text, re.MULTILINE))
    there = contents(folder)
    assert named == there, f"not named: {sorted(there - named)}; gone: {sorted(named - there)}"
