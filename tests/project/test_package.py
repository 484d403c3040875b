"""What a package index takes: the sdist and the wheel that are built here, and an environment that has nothing else."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def checkout(factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: a build leaves folders in its own."""
    without = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*cache", "*.so")
    return shutil.copytree(ROOT, factory.mktemp("checkout") / "convdispatch", ignore=without)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it where no C++ compiler is."""
    for package in ("build", "setuptools"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder, tree = tmp_path_factory.mktemp("dist"), checkout(tmp_path_factory)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree]
    done = subprocess.run(command, env=os.environ | {"PATH": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_the_sdist_has_all_that_a_checkout_needs(built):
    with tarfile.open(built[0]) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    rules = "registry.yaml", "errata.yaml"
    for name in (*rules, "LICENSE", "CHANGELOG.md", "docs/use/getting-started.md", "mkdocs.yml", "setup.py"):
        assert name in names
    kept = subprocess.run(["git", "ls-files", "convdispatch", "plugins", "examples", "docs"], cwd=ROOT, text=True,
                          capture_output=True, check=True).stdout.split()  # fmt: skip
    assert not set(kept) - names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_wheel_is_for_every_machine_and_has_its_license(built):
    assert built[1].name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built[1]) as file:
        names = file.namelist()
        metadata = email.message_from_bytes(file.read(next(name for name in names if name.endswith("/METADATA"))))
        license_text = file.read(next(name for name in names if name.endswith("/licenses/LICENSE"))).decode()
    assert license_text == (ROOT / "LICENSE").read_text()
    assert "Apache License" in license_text
    assert "END OF TERMS AND CONDITIONS" in license_text
    assert "convdispatch/py.typed" in names
    assert "convdispatch/include/convdispatch_plugin.h" in names
    assert "convdispatch/tools/vendor_plugin/convdispatch_acme/__init__.py" in names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert len(metadata.get_all("Classifier")) >= 10
    assert any(url.startswith("Repository, https://") for url in metadata.get_all("Project-URL"))
    assert metadata["Author"]
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert len(links) > 10
    assert not [link for link in links if not re.match(r"https?://|#", link)]


def test_an_index_would_take_them(built):
    pytest.importorskip("twine", reason="twine is not installed")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)


def test_readmes_first_lines_run_in_an_environment_that_has_nothing_else(built, tmp_path):
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    done = subprocess.run([*install, f"{built[1]}[cpu]"], capture_output=True, text=True)
    if done.returncode and re.search("Connection|No matching distribution|timed out|resolution", done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("CONVDISPATCH", "PYTHON", "OCL"))
    }
    program = f"{block}\nimport convdispatch\nprint(convdispatch.__file__, y.shape)"
    done = subprocess.run([python, "-c", program], cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert "(8, 64, 54, 54)" in done.stdout or "(8, 64, 56, 56)" in done.stdout
    said = subprocess.run([tmp_path / "bin" / "convdispatch", "--version"], env=clean, capture_output=True, text=True)
    assert PROJECT["version"] in said.stdout


def test_make_builds_the_native_module_once_pytorch_is_there():
    """pip builds the package before it installs PyTorch: its own build finds no headers in a fresh environment."""
    recipe = (ROOT / "Makefile").read_text().partition("$(VENV)/.dist: $(VENV)/bin/python")[2]
    installed, built = recipe.index("$(PIP)"), recipe.index("convdispatch.device.native.build || true")
    assert installed < built < recipe.index("touch $@")


def test_a_native_wheel_runs_on_other_linuxes(built, tmp_path, tmp_path_factory):
    """A wheel named linux_x86_64 is refused by public indexes."""
    for module in ("auditwheel", "torch"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (make dist)")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path]
    subprocess.run([*command, checkout(tmp_path_factory)], check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    if "none-any" in wheel.name:
        pytest.skip("no compiler builds the native module here")
    command = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libtorch*", "--exclude", "libc10*"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([*command, "--wheel-dir", tmp_path, wheel], env=os.environ | {"PATH": path}, check=True)
    assert list(tmp_path.glob("*manylinux*.whl"))
