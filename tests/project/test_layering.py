"""Imports run one way, plugins and layers import the header alone, and the header's names are what it says."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

import convdispatch
from convdispatch import api
from convdispatch.api import lazy

# Zones, lowest first: a module imports its own zone and those below it, never upward.
ZONES = [
    ["api"],
    ["device"],
    ["selection"],
    ["measurement"],
    ["calls"],
    ["runtime", "elementwise"],
    ["tensor"],
    ["nn"],
    ["inference", "models"],
    ["onnx", "torch", "jax"],
    ["tools"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(ZONES) for name in names}


def imports(file: Path, package: str) -> set[str]:
    """Absolute names of what a file imports, inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).parent.parts)


def zone_of(module: str) -> str:
    """The first name below ``convdispatch``; unlisted ones fail the test that asks."""
    return module.split(".")[1]


PLUGINS = sorted((ROOT / "plugins").rglob("*.py"))


# What only passes names on loads them by text, when first asked: so one address serves all zones.
ADDRESSES = [ROOT / "convdispatch" / name for name in ("__init__.py", "api/__init__.py", "api/cuda.py")]
FILES = [file for file in sorted((ROOT / "convdispatch").rglob("*.py")) if file not in ADDRESSES]
MODULES = {module_of(file): file for file in FILES}


def imported_modules(file: Path) -> set[str]:
    """Modules of this project that a file imports: a name that is no module counts as the module it is taken from."""
    found = {name for name in imports(file, package_of(file)) if name.split(".")[0] == "convdispatch"}
    return {name if name in MODULES else name.rpartition(".")[0] for name in found} & MODULES.keys() - {module_of(file)}


def test_every_module_stands_in_a_zone():
    unlisted = sorted({zone_of(module) for module in MODULES} - RANK.keys())
    assert not unlisted, f"no zone lists {unlisted}: say in ZONES what they may import"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_downward(file):
    own = zone_of(module_of(file))
    for module in imported_modules(file):
        assert RANK[zone_of(module)] <= RANK[own], f"{module_of(file)} imports {module}, which stands above it"


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, directly or by way of others, the first again at the end; or none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_a_circle_is_found():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})) == {"b", "c"}


def test_no_modules_import_each_other():
    assert not circle({module: imported_modules(file) for module, file in MODULES.items()})


def test_no_modules_of_a_plugin_import_each_other():
    """``from .name import what`` counts for the module where there is one, else for the package's own file."""
    files = {module_of(file): file for file in PLUGINS}

    def imported(module: str, file: Path) -> set[str]:
        names = imports(file, package_of(file))
        return {name if name in files else name.rpartition(".")[0] for name in names} & files.keys() - {module}

    graph = {module: imported(module, file) for module, file in files.items()}
    assert any(graph.values())
    assert not circle(graph)


def test_rooms_have_a_sane_size():
    """At most 20 modules a folder: with more, nobody finds one by its name."""
    for folder in {file.parent for file in [*FILES, *PLUGINS]}:
        count = sum(file.name != "__init__.py" for file in folder.glob("*.py"))
        assert count <= 20, f"{folder.relative_to(ROOT)} has {count} modules"


LAYERS = ROOT / "convdispatch" / "selection" / "layers"
OUTSIDE = [*PLUGINS, *sorted(LAYERS.glob("*.py"))]


@pytest.mark.parametrize("file", OUTSIDE, ids=lambda f: str(f.relative_to(ROOT)))
def test_plugins_and_layers_import_the_header_alone(file):
    for name in imports(file, "plugin"):
        if name == "convdispatch" or name.startswith("convdispatch."):
            assert name == "convdispatch.api" or name.startswith("convdispatch.api."), f"{file} imports {name}"


def test_public_names_resolve_and_are_sorted():
    assert list(api.__all__) == sorted(api.__all__)
    assert api.__all__ == sorted(lazy.homes(api.__file__))
    for name in api.__all__:
        value = getattr(api, name)
        assert not isinstance(value, type(sys)), f"{name} is a module, not what it names"
    assert callable(convdispatch.conv)
    assert callable(convdispatch.policy)


def test_the_package_names_what_callers_need_and_loads_it_when_first_used():
    """Modules too, so that ``convdispatch.torch`` is there without an import of its own; what plugins need is not."""
    assert dir(convdispatch) == sorted(convdispatch.__all__)
    assert len(convdispatch.__all__) < 50
    for name in set(convdispatch.__all__) & set(api.__all__):
        assert getattr(convdispatch, name) is getattr(api, name)
    with pytest.raises(AttributeError, match=r"no attribute 'GemmPlan'; what plugins need is in .api"):
        convdispatch.GemmPlan  # noqa: B018
    code = (
        "import sys, convdispatch as c; assert not [n for n in sys.modules if n.startswith('convdispatch.')];"
        "assert c.runtime.devices and c.nn.Module and c.api.Solver; assert 'convdispatch.onnx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cudas_part_of_the_header_resolves():
    from convdispatch.api import cuda

    assert all(callable(getattr(cuda, name)) for name in cuda.__all__)


def test_imports_load_little_and_keep_names_and_functions_apart():
    """Neither NumPy nor OpenCL comes with the package; a name is kept once found; a function survives its module."""
    code = (
        "import sys, convdispatch as c\n"
        "assert not {'numpy', 'pyopencl', 'yaml'} & sys.modules.keys()\n"
        "c.conv; c.Tensor; assert {'conv', 'Tensor'} <= vars(c).keys(), sorted(vars(c))\n"
        "import convdispatch.calls.conv, convdispatch.api.policy\n"
        "from convdispatch.api import conv, policy\n"
        "assert callable(conv) and callable(policy), (conv, policy)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tests_stand_in_rooms_named_as_the_house():
    """``pytest tests/selection`` runs a zone's tests; ``tests/project`` has those of docs, layers and the package."""
    tests = ROOT / "tests"
    zones = {folder.name for folder in (ROOT / "convdispatch").iterdir() if folder.is_dir()}
    plugins = {folder.name for folder in (ROOT / "plugins").iterdir() if folder.is_dir()}
    for file in sorted(tests.rglob("test_*.py")):
        room, *inner, _ = file.relative_to(tests).parts + (() if file.parent != tests else ("",))
        if room != "support":
            assert room in {*zones, "plugins", "project"}, file.relative_to(ROOT)
            assert set(inner) <= plugins, file.relative_to(ROOT)
