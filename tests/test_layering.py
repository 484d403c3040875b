"""Imports run one way, plugins and layers import the header alone, and the header's names are what it says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import convdispatch
from convdispatch import api

ROOT = Path(__file__).parent.parent
# Lower may not import higher. Modules of one rank may import each other.
RANK = {
    name: rank
    for rank, names in enumerate(
        [
            ["api.errors", "api.activation", "api.dtypes", "api.problem", "api.device", "api.solver", "api.hookspecs"],
            ["api.walk"],
            ["api.policy"],
            ["recording", "tracing"],
            ["cuda", "sharedpool", "memory", "bridge"],
            ["icd", "kernels", "runtime", "gemm", "steps", "strided", "visible"],
            ["registry", "loader", "reference", "grammar", "measure", "shapes", "child", "progress"],
            ["record", "packs", "provenance"],
            ["perfdb", "neighbours", "lockfile"],
            ["evidence"],
            ["prepared", "derivation", "dispatch"],
            ["explanation", "search", "api.find"],
            ["api.arguments", "api.arrays", "api.conv"],
            ["interop", "tensor", "tape", "elementwise"],
            ["nn", "inference"],
            ["models", "train"],
            ["classify", "doctor", "benchmark", "conformance"],
            ["cli", "__main__"],
        ]
    )
    for name in names
}


def imports(file: Path, package: str) -> set[str]:
    """Absolute names of what a file imports, inside functions too; not what only type checkers see."""
    tree = ast.parse(file.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def rank_of(name: str) -> int | None:
    parts = name.removeprefix("convdispatch.").split(".")
    for length in (2, 1):
        if ".".join(parts[:length]) in RANK:
            return RANK[".".join(parts[:length])]
    return None


FILES = [
    file
    for file in sorted((ROOT / "convdispatch").rglob("*.py"))
    if file.name != "__init__.py" or file.parent.name not in ("convdispatch", "api")
]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way(file):
    relative = file.relative_to(ROOT).with_suffix("")
    parts = list(relative.parts)
    package = ".".join(parts[:-1])
    module = package if parts[-1] == "__init__" else ".".join(parts)
    own = rank_of(module)
    for name in imports(file, package):
        if name.startswith("convdispatch.") and own is not None and rank_of(name) is not None:
            assert rank_of(name) <= own, f"{module} imports {name}, which stands above it"


OUTSIDE = [*sorted((ROOT / "plugins").rglob("*.py")), *sorted((ROOT / "convdispatch" / "layers").glob("*.py"))]


@pytest.mark.parametrize("file", OUTSIDE, ids=lambda f: str(f.relative_to(ROOT)))
def test_plugins_and_layers_import_the_header_alone(file):
    for name in imports(file, "plugin"):
        if name == "convdispatch" or name.startswith("convdispatch."):
            assert name == "convdispatch.api" or name.startswith("convdispatch.api."), f"{file} imports {name}"


def test_public_names_resolve_and_are_sorted():
    assert list(api.__all__) == sorted(api.__all__)
    for name in api.__all__:
        value = getattr(api, name)
        assert getattr(convdispatch, name) is value
        assert not isinstance(value, type(sys)), f"{name} is a module, not what it names"
    assert callable(convdispatch.conv)
    assert callable(convdispatch.policy)


def test_functions_survive_the_import_of_their_modules():
    code = (
        "import convdispatch.api.conv, convdispatch.api.policy\n"
        "from convdispatch.api import conv, policy\n"
        "assert callable(conv) and callable(policy), (conv, policy)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_loads_neither_numpy_nor_opencl():
    code = "import sys, convdispatch; print([m for m in ('numpy', 'pyopencl', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_readable():
    """About 300 lines a file: over 400, a file does more than one thing."""
    for file in (*FILES, *OUTSIDE):
        lines = len(file.read_text().splitlines())
        assert lines <= 400, f"{file.relative_to(ROOT)} has {lines} lines"
