"""Documentation is run: snippets execute, tables name every variable, hooks stand with their exact signature."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import pydoc
import re
import runpy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

import convdispatch as cd
from convdispatch import inference, runtime
from convdispatch.api import hookspecs
from convdispatch.api.settings import SETTINGS
from convdispatch.tools.cli import COMMANDS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


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


def test_the_plugin_of_the_guide_works(tmp_path, monkeypatch, read_anew):
    page = ROOT / "docs" / "plugins" / "writing-a-plugin.md"
    package = tmp_path / "convdispatch_acme"
    package.mkdir()
    (package / "__init__.py").write_text(blocks(page, "python")[0])
    (package / "direct1x1.cl").write_text(next(each for each in blocks(page, "c") if "kernel void" in each))
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    read_anew()
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


def test_hooks_stand_in_the_guide_with_their_signatures():
    text = (ROOT / "docs" / "plugins" / "reference.md").read_text()
    for name in ("convdispatch_solvers", "convdispatch_enqueue"):
        parameters = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
        assert f"def {name}({parameters})" in text


def test_the_table_of_macros_is_what_kernels_get():
    """Every macro of every dtype, direction and layout stands in the table, and nothing else does."""
    table = (
        (ROOT / "docs" / "plugins" / "reference.md")
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
    page = ROOT / "docs" / "use" / "environment.md"
    written = runpy.run_path(str(ROOT / "docs" / "variables.py"))["written"]
    assert page.read_text() == written(page.read_text()), "python docs/variables.py writes the table anew"
    assert all(f"\n| `{name}` |" in page.read_text() for name in SETTINGS)
    source = "".join(p.read_text() for p in (ROOT / "convdispatch").rglob("*.py"))
    assert set(re.findall(r"\b(CONVDISPATCH_[A-Z_]+)\b", source)) <= {*SETTINGS, "CONVDISPATCH_"}


def test_every_variable_is_read_in_one_module():
    """Others ask ``settings``, which checks what is set; what a child is started with may name a variable."""
    for file in [*(ROOT / "convdispatch").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]:
        read = re.findall(
            r"(?:environ(?:\.get|\.setdefault|\.pop)?[(\[]|getenv\()\s*[\"']CONVDISPATCH", file.read_text()
        )
        assert not read, f"{file.relative_to(ROOT)} reads a variable: convdispatch/api/settings.py does that"


def test_every_command_is_documented():
    text = "".join(page.read_text() for page in PAGES)
    for name in COMMANDS:
        assert f"convdispatch {name}" in text, f"`convdispatch {name}` stands nowhere in the documentation"


def anchors(page: Path) -> set[str]:
    """What may stand behind # in a link to a page, as GitHub and the site name its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if "://" not in path:
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name} links to {path}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {target.name} has no heading #{anchor}"


def test_every_page_is_linked():
    """From the README a reader reaches every page of docs/, link by link."""
    met, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop().resolve()
        if page not in met:
            met.add(page)
            links = re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", page.read_text())
            left += [page.parent / link for link in links if "://" not in link]
    missed = [str(page.relative_to(ROOT)) for page in PAGES if page.resolve() not in met]
    assert not missed, f"no page links to {', '.join(missed)}"


def test_recorded_figures_are_what_their_pages_say():
    from bench import results

    for page, text in results.pages().items():
        assert page.exists(), f"{page.name}: run python -m bench.results"
        assert page.read_text() == text, f"{page.name} is not what its data say: run python -m bench.results"
    named = {path.name for path in results.pages()}
    assert {path.name for path in (ROOT / "docs" / "results").glob("*.md")} == named
    for source in results.sources():
        page = results.read(source)
        assert source.read_text() == results.compact(page) or "tables" not in json.loads(source.read_text())


def test_figures_stand_in_the_results():
    """Times and rates are in docs/results, where each has its machine, date and command, and in the README's table.

    What a command prints, in a block, is an example.
    """
    for page in PAGES:
        room = page.relative_to(ROOT).parts[:-1]
        if room[-1:] in [("results",), ("notes",), ("adr",)]:
            continue
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in text.splitlines():
            figure = re.search(r"\d ?(ms|µs|us|[TG](FL)?OP/s|[TG]B/s|images/s)\b", line)
            assert not figure or "at most" in line, f"{page.name} has a figure; docs/results is for them: {line}"


def test_a_recorded_table_is_checked(tmp_path):
    from bench import results

    table = {"title": "t", "machine": "zen5", "date": "d", "command": "c", "columns": ["a", "b"], "rows": [[1, 2]]}
    file = tmp_path / "one.json"
    file.write_text(json.dumps(table))
    assert "| 1 | 2 |" in results.render(file)
    for wrong, words in [({"rows": [[1]]}, "2 columns, but a row is"), ({"machines": "x"}, "fields are")]:
        file.write_text(json.dumps(table | wrong))
        with pytest.raises(ValueError, match=words):
            results.read(file)
    assert results.parse_table(["head", "| a | b |", "|---|---|", "| 1 | 2 |"]) == (["a", "b"], [["1", "2"]])
    lines = '{"row": "x", "ms": {"ours": 1.23456}}\nwords\n{"row": "failed"}\n'
    assert results.parse_objects(lines, ["row", "ms.ours"]) == (["row", "ms.ours"], [["x", "1.235"]])
    assert results.parse_objects('[{"a": 1}, {"a": 2}]', ["a"])[1] == [["1"], ["2"]]


def test_a_printed_table_is_recorded(tmp_path, monkeypatch):
    from bench import results

    monkeypatch.setattr(results, "DATA", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "machines.json").write_text('{"zen5": "two cores"}')
    words = ["record", "new", "--title", "seen", "--machine", "zen5", "--command", "python -m bench layers --only L1"]
    monkeypatch.setattr(sys, "argv", ["results", *words])
    for ms in (1, 2):  # the second takes the first's place
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"a device\n| layer | ms |\n|---|---|\n| L1 | {ms} |\n"))
        assert results.main() == 0
    (table,) = results.read(tmp_path / "new.json")["tables"]
    assert table["rows"] == [["L1", "2"]]
    assert table["command"] == words[-1]
    page = (tmp_path / "new.md").read_text()
    assert "| L1 | 2 |" in page
    assert "two cores" in page


def test_every_public_name_stands_in_the_reference():
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    told = {name.rsplit(".", 1)[-1] for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    for module in ("api", "onnx", "inference", "elementwise", "nn", "runtime"):
        public = set(importlib.import_module(f"convdispatch.{module}").__all__) - {"functional"}
        assert public <= told, f"docs/reference lacks names of convdispatch.{module}: {sorted(public - told)}"


def test_names_that_pages_mention_exist():
    """``runtime.devices``, ``cd.conv``, ``ct.enable``, ``inference.build``: what a page calls, users find."""
    text = (ROOT / "convdispatch" / "torch" / "__init__.py").read_text()
    torch_names = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    public = {"runtime": set(dir(runtime)), "cd": set(cd.__all__), "inference": set(dir(inference)), "ct": torch_names}
    for page in PAGES:
        if page.parent.name not in ("results", "notes"):
            for module, name in re.findall(r"(?<![\w./-])(runtime|cd|inference|ct)\.([a-zA-Z]\w*)", page.read_text()):
                assert name in public[module] | {"md", "py"}, f"{page.name}: {module} has no {name}"


def test_the_table_of_new_things_is_true():
    """Files that CONTRIBUTING.md's table names exist, and names that it says stand in the files named beside them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Where a new thing goes")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ") and "goes to" not in line]
    assert "; ".join(row[0].strip() for row in rows) == (
        "solver; field of the C interface; solver for depthwise layers; activation; ONNX operator; framework; "
        "device kind; refusal; dtype; policy field; environment variable; subcommand; benchmark; drawing; dialect; "
        "peer; array type; place where launches go; queue kind; kind of streams"
    )
    for path in re.findall(r"`((?:convdispatch|plugins|bench|docs)/[\w/.]*)`", table):
        assert (ROOT / path).exists() or "NAME" in path, path
    for name, path in [
        ("convdispatch_solvers", "plugins/im2col/__init__.py"),
        ("def rejects", "plugins/winograd/gpu/solver.py"),
        ("errata", "errata.yaml"),
        ("def refusal", "convdispatch/selection/choice/ranking.py"),
        ("_READERS", "convdispatch/measurement/grammar/files.py"),
        ("def _kind", "convdispatch/measurement/grammar/files.py"),
        ("def read_line", "convdispatch/measurement/grammar/deepbench.py"),
        ("PEERS", "convdispatch/tools/benchmark/peers.py"),
        ("class Peer", "convdispatch/tools/benchmark/onnx_peer.py"),
        ("class Library", "convdispatch/calls/arrays/array_library.py"),
        ("def _find", "convdispatch/calls/arrays/known_libraries.py"),
        ("class CuPy", "convdispatch/calls/arrays/known_libraries.py"),
        ("class Commands", "convdispatch/device/commands/interface.py"),
        ("(Commands)", "convdispatch/device/places/stream.py"),
        ("class StreamPlace", "convdispatch/device/places/stream.py"),
        ("KINDS", "convdispatch/device/places/stream.py"),
        ("_STORAGE", "convdispatch/api/dtypes.py"),
        ("DTYPES", "convdispatch/api/dtypes.py"),
        ("_KINDS", "convdispatch/api/policy.py"),
        ("class Setting", "convdispatch/api/settings.py"),
        ("TRACE_WAIT", "convdispatch/api/settings.py"),
        ("COMMANDS", "convdispatch/tools/cli/__init__.py"),
    ]:
        assert name in (ROOT / path).read_text(), f"{path} has no {name}"
        assert name.split()[-1].strip("()") in table, name


@pytest.mark.parametrize("page", sorted((ROOT / "docs/reference").glob("*.md")), ids=lambda page: page.stem)
def test_what_the_reference_shows_exists(page):
    if page.stem in ("torch", "jax", "onnx"):
        pytest.importorskip(page.stem, reason=f"{page.stem} is not installed (extra: peers)")
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
        module, _, last = name.rpartition(".")
        pydoc.locate(name)  # imports the modules on the way; a function may have its module's name
        shown = sys.modules.get(module) or pydoc.locate(module)
        assert hasattr(shown, last), f"{page.name} shows {name}"
