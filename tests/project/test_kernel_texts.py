"""A module that asks for a kernel's text by its own package has the file beside it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from paths import ROOT

MODULES = [
    path
    for folder in ("convdispatch", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "kernel_text(__package__" in path.read_text(encoding="utf-8")
]


def named_files(path: Path) -> list[str]:
    """The files that calls of ``kernel_text(__package__, "file", ...)`` name."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [
        call.args[1].value
        for call in calls
        if getattr(call.func, "id", "") == "kernel_text" and getattr(call.args[0], "id", "") == "__package__"
        if isinstance(call.args[1], ast.Constant)
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_file_is_there(path):
    assert [name for name in named_files(path) if not (path.parent / name).is_file()] == []


def test_a_file_in_another_folder_is_seen(tmp_path):
    module = tmp_path / "plan.py"
    module.write_text('text = kernel_text(__package__, "parts.cl.mako", split=2)\n', encoding="utf-8")
    assert named_files(module) == ["parts.cl.mako"]
    assert len(MODULES) > 20
