"""Documentation is run: snippets execute, tables name every variable, hooks stand with their exact signature."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import convdispatch as cd
from convdispatch.api import hookspecs
from convdispatch.selection import dispatch
from convdispatch.selection.plugins import loader
from convdispatch.tools.cli import COMMANDS
from convdispatch.tools.doctor import VARIABLES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_readme_snippets_run(number):
    exec(compile(blocks(ROOT / "README.md", "python")[number], "README.md", "exec"), {})


def test_the_readme_tells_how_to_install_what_is_not_published():
    text = (ROOT / "README.md").read_text()
    assert not re.search(r"pip install '?convdispatch", text), "until it is published, that finds nothing"
    extras = set(re.findall(r"'\.\[(\w+)\]'", text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras >= {"cpu", "pocl", "onednn", "cudnn", "demo"}
    assert extras <= project["optional-dependencies"].keys()
    assert f"convdispatch-{project['version']}-py3-none-any.whl" in text
    assert "python -m build --wheel" in text


@pytest.mark.parametrize("word", ["--from model.onnx", "DLPack", "constant(w)"])
def test_the_readme_tells_of(word):
    assert word in (ROOT / "README.md").read_text()


def test_the_five_lines_are_right():
    scope: dict = {}
    exec(blocks(ROOT / "README.md", "python")[0], scope)

    assert scope["y"].shape == (8, 64, 56, 56)
    assert (scope["y"] >= 0).all()


def test_the_plugin_of_the_guide_works(tmp_path, monkeypatch):
    page = ROOT / "docs" / "writing-a-plugin.md"
    package = tmp_path / "convdispatch_acme"
    package.mkdir()
    (package / "__init__.py").write_text(blocks(page, "python")[0])
    (package / "direct1x1.cl").write_text(blocks(page, "c")[0])
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    loader.reload()
    dispatch.forget()
    try:
        rng = np.random.default_rng(0)
        x = rng.integers(-4, 5, (2, 5, 6, 7)).astype(np.float32)
        w = rng.integers(-4, 5, (3, 5, 1, 1)).astype(np.float32)
        bias = np.ones(3, np.float32)
        with cd.policy(solver="acme.direct1x1"):
            got = cd.conv(x, w, bias, activation="relu")
        want = np.maximum(np.einsum("oc,nchw->nohw", w[:, :, 0, 0], x) + 1, 0)
        np.testing.assert_array_equal(got, want)
        with cd.policy(solver="acme.*"), pytest.raises(cd.NoSolver, match="stride 1 and no padding only"):
            cd.conv(x, w, stride=2)
    finally:
        monkeypatch.undo()
        loader.reload()
        dispatch.forget()


def test_hooks_stand_in_the_guide_with_their_signatures():
    text = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    for name in ("convdispatch_solvers", "convdispatch_enqueue"):
        parameters = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
        assert f"def {name}({parameters})" in text


def test_the_table_of_macros_is_what_kernels_get():
    """Every macro of every dtype, direction and layout stands in the table, and nothing else does."""
    table = (
        (ROOT / "docs" / "writing-a-plugin.md")
        .read_text()
        .partition("### The macros of a kernel")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `([A-Z0-9_ a-z(),]+)` \|", table, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"[A-Z][A-Z0-9_]*(?=$|[ (])", row) if name != "T"}
    problem = cd.ConvProblem.parse("mb1ic4ih8oc4kh3+bias+residual+relu")
    kinds = [problem.replace(dtype=dtype) for dtype in ("float32", "float64", "float16", "bfloat16")]
    kinds += [cd.ConvProblem.parse(f"{way}_mb1ic4ih8oc4kh3") for way in ("bwd_data", "bwd_weights")]
    given = {name for kind in kinds for name in re.findall(r"#define (\w+)", kind.macros())}
    assert told == given


def test_every_variable_is_documented():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(VARIABLES)
    source = "".join(p.read_text() for p in (ROOT / "convdispatch").rglob("*.py"))
    assert set(re.findall(r"\b(CONVDISPATCH_[A-Z_]+)\b", source)) <= set(VARIABLES)


def test_every_command_is_documented():
    text = "".join(page.read_text() for page in PAGES)
    for name in COMMANDS:
        assert f"convdispatch {name}" in text, f"`convdispatch {name}` stands nowhere in the documentation"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_new_things_is_true():
    """Files that CONTRIBUTING.md's table names exist, and names that it says stand in the files named beside them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Where a new thing goes")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ") and "goes to" not in line]
    assert [row[0].strip() for row in rows] == ["solver", "refusal", "dialect", "peer", "array type", "queue kind"]
    for path in re.findall(r"`((?:convdispatch|plugins)/[\w/.]*)`", table):
        assert (ROOT / path).exists() or "NAME" in path, path
    for name, path in [
        ("convdispatch_solvers", "plugins/im2col/__init__.py"),
        ("def rejects", "plugins/nvidia/direct/solver.py"),
        ("errata", "registry.yaml"),
        ("def refusal", "convdispatch/selection/choice/ranking.py"),
        ("_WRITERS", "convdispatch/measurement/grammar/__init__.py"),
        ("_READERS", "convdispatch/measurement/grammar/files.py"),
        ("def _kind", "convdispatch/measurement/grammar/files.py"),
        ("def read_line", "convdispatch/measurement/grammar/deepbench.py"),
        ("PEERS", "convdispatch/tools/benchmark/measuring/peers.py"),
        ("class Peer", "convdispatch/tools/benchmark/measuring/onnx_peer.py"),
        ("class Library", "convdispatch/calls/arrays/array_library.py"),
        ("def _find", "convdispatch/calls/arrays/known_libraries.py"),
        ("class Numba", "convdispatch/calls/arrays/known_libraries.py"),
        ("class Commands", "convdispatch/device/commands/interface.py"),
        ("(Commands)", "convdispatch/device/cuda/stream.py"),
    ]:
        assert name in (ROOT / path).read_text(), f"{path} has no {name}"
        assert name.split()[-1].strip("()") in table, name
