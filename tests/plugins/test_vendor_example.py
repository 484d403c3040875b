"""The template for vendors: both wheels, a fresh environment, discovered, chosen by a registry rule, verified.

The environment gets the two wheels alone; dependencies come from the one that runs the tests, behind them on the path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from paths import ROOT

from convdispatch.api.errors import InvalidArgument
from convdispatch.device import runtime
from convdispatch.device.opencl import icd
from convdispatch.measurement.conformance.verify import verify

EXAMPLE = ROOT / "examples" / "vendor_plugin"
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "out", "shared", "__pycache__", "tests", "bench")
PACKAGE = "convdispatch_acme/"
FILES = (PACKAGE + "__init__.py", PACKAGE + "direct1x1.cl", "pyproject.toml", PACKAGE + "registry.yaml")


def test_it_is_short():
    assert sum(len((EXAMPLE / name).read_text().splitlines()) for name in FILES) < 100


def test_the_guide_shows_the_files_as_they_are():
    text = (ROOT / "docs" / "plugins" / "writing-a-plugin.md").read_text()
    for name, language in zip(FILES, ("python", "c", "toml", "yaml")):
        assert (EXAMPLE / name).read_text() in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL), name


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Python of an environment into which both wheels were installed."""
    folder = tmp_path_factory.mktemp("fresh")
    for name, source in (("convdispatch", ROOT), ("acme", EXAMPLE)):
        copy = folder / name
        shutil.copytree(source, copy, ignore=LEFT_OUT)  # a build in the tree would leave folders there
        run(["-m", "pip", "wheel", ".", "--no-deps", *isolation(), "-w", str(folder / "wheels")], cwd=copy)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wheels = sorted(str(path) for path in (folder / "wheels").glob("*.whl"))
    assert len(wheels) == 2, wheels
    run(["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", *wheels])
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    (Path(site.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def isolation() -> list[str]:
    """pip's isolated build fetches setuptools; where it is here already, that is not needed."""
    try:
        import setuptools
    except ImportError:
        return []
    return ["--no-build-isolation"] if int(setuptools.__version__.split(".")[0]) >= 77 else []


def run(arguments: list[str], python=sys.executable, code: int = 0, **options) -> str:
    """Run Python outside of this checkout; what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CONVDISPATCH_PLUGIN_DIR")}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore"} | options.pop("env", {})
    done = subprocess.run(
        [str(python), *arguments], env=environment, capture_output=True, text=True, timeout=500, **options
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_wheels_alone(fresh, device, tmp_path):
    """Everything a vendor does after building: doctor, a registry's rule, explain, the call, verify, pytest."""
    icd.announce()  # an OpenCL runtime that pip installed is found through the variable that this sets
    assert os.environ.get("OCL_ICD_VENDORS") or icd.vendors()
    here = {"cwd": tmp_path}
    where = run(
        ["-c", "import convdispatch, convdispatch_acme as a; print(convdispatch.__file__, a.__file__)"], fresh, **here
    )
    assert all(str(fresh.parent.parent) in path for path in where.split())

    found = json.loads(run(["-m", "convdispatch", "info", "--json"], fresh, **here))
    assert found["solvers"]["acme.direct1x1"] == "acme"

    fresh_db = {"env": {"CONVDISPATCH_DB": str(tmp_path / "db")}}
    said = json.loads(run(["-m", "convdispatch", "explain", "mb1ic16ih7oc4kh1", "--json"], fresh, **fresh_db, **here))
    assert said["chosen"] == "acme.direct1x1"
    assert said["source"].endswith("convdispatch_acme/registry.yaml:4"), "the wheel's own rule"

    rules = tmp_path / "registry.yaml"
    rules.write_text("version: 1\nrules:\n  - when: {kh: 1, kw: 1, direction: fwd}\n    prefer: [acme.*]\n")
    chosen = {"env": {"CONVDISPATCH_REGISTRY": str(rules), "CONVDISPATCH_DB": str(tmp_path / "db")}}
    problem = "mb2ic16ih7oc16kh1+bias"
    said = json.loads(run(["-m", "convdispatch", "explain", problem, "--json"], fresh, **chosen, **here))
    assert said["chosen"] == "acme.direct1x1"
    assert said["source"].endswith("registry.yaml:3")
    code = (
        "import numpy as np, convdispatch as cd\n"
        "x, w = np.ones((1, 8, 3, 3), np.float32), np.ones((4, 8, 1, 1), np.float32)\n"
        "print(cd.conv(x, w, np.full(4, 2, np.float32)).ravel()[[0, -1]].tolist())\n"
    )
    assert run(["-c", code], fresh, **chosen, **here).strip() == "[10.0, 10.0]"

    report = tmp_path / "acme.json"
    arguments = ["-m", "convdispatch", "verify", "acme", "--level", "core", "--json", str(report)]
    run([*arguments, "--case", "[13]x[13]*"], fresh, **here)
    outcomes = json.loads(report.read_text())["outcomes"]
    assert {o["status"] for o in outcomes} == {"passed", "refused"}
    assert {o["reason"] for o in outcomes} >= {"1x1 only, got (1, 3, 3)", "stride 1 and no padding only"}


def test_the_example_passes_the_kit(device, full, monkeypatch, read_anew):
    """Every case that it computes, whole with --full; else a spread over the levels."""
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(EXAMPLE))
    read_anew()
    reports = [verify("convdispatch_acme", "full", case=None if full else glob) for glob in ("1x1*", "border*")]
    for report in reports:
        assert report.of(status="failed") == []
        assert report.verdict() == "passed"


NATIVE = ROOT / "examples" / "native_plugin"


def test_the_guide_shows_the_library_in_c_as_it_is():
    text = (ROOT / "docs" / "plugins" / "writing-a-plugin.md").read_text()
    for name, language in (("direct.c", "c"), ("Makefile", "make")):
        assert (NATIVE / name).read_text() in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL), name
    assert len((NATIVE / "direct.c").read_text().splitlines()) <= 150
    assert not list(NATIVE.rglob("*.py"))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The folder in which the example's Makefile built what there is a compiler for."""
    folder = tmp_path_factory.mktemp("native") / "native"
    shutil.copytree(NATIVE, folder, ignore=shutil.ignore_patterns("*.so", "*.icd"))
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("needs make and a C compiler (cc)")
    wanted = ["native.icd", *(["portable.icd"] if shutil.which("c++") else [])]
    include = f"INCLUDE={ROOT / 'convdispatch' / 'include'}"
    command = ["make", *wanted, include, "CXX=c++", "CFLAGS=-Werror", "CXXFLAGS=-Werror"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder


@pytest.mark.parametrize(("name", "cases"), [("native", ("*1x1*", "*.fwd.0[0-4]")), ("portable", ("1x1*",))])
def test_the_libraries_of_the_example_pass_the_kit(device, libraries, full, monkeypatch, read_anew, name, cases):
    """In C on host memory, in C++ on OpenCL's; neither waits in ``enqueue``, and both keep the queue's order."""
    if not (libraries / f"{name}.icd").exists():
        pytest.skip("needs a C++ compiler (c++)")
    if name == "native" and runtime.device_info(device).type != "cpu":
        pytest.skip("a CPU's host memory only")
    monkeypatch.setenv("CONVDISPATCH_VENDORS", str(libraries))
    read_anew()
    reports = [verify(name, "full" if full else "core", case=None if full else glob) for glob in cases]
    for report in reports:
        assert report.of(status="failed") == []
        assert len(report.of(status="passed")) > 2


NOTHING = """
from convdispatch.api import hookimpl

def unavailable():
    {says}

@hookimpl
def convdispatch_solvers():
    return []
"""


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("return 'libacme.so is not found: pip install acme-runtime'", "libacme.so is not found: pip install acme-"),
        ("raise RuntimeError('lost')", "its unavailable() raised RuntimeError: lost"),
    ],
)
def test_verify_says_what_a_plugin_without_solvers_lacks(tmp_path, monkeypatch, read_anew, device, says, words):
    (tmp_path / "empty.py").write_text(NOTHING.format(says=says))
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    read_anew()
    with pytest.raises(InvalidArgument, match="provides no solver on this machine: ") as caught:
        verify("empty", "core")
    assert words in str(caught.value)
