"""The loader: every source, and every way in which one plugin may fail without harming another."""

from __future__ import annotations

import textwrap

import pytest

from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.selection.plugins import loader, registry

GOOD = """
from convdispatch.api import Solver, hookimpl

class {cls}(Solver):
    name = "{name}"
    def rejects(self, problem, device):
        return "never runs"
    def plan(self, context, problem, config):
        raise NotImplementedError

@hookimpl
def convdispatch_solvers():
    return [{cls}()]
"""
BROKEN = {
    "raises": ("raise RuntimeError('no engine')", "import raised RuntimeError: no engine"),
    "exits": ("import sys; sys.exit(3)", "import raised SystemExit"),
    "syntax": ("def broken(:", "import raised SyntaxError"),
    "version": ("api_version = 99\n" + GOOD.format(cls="A", name="a.b"), "written for API version 99, this is 1"),
    "hookless": ("x = 1", "implements no hook"),
    "misspelt": (
        "from convdispatch.api import hookimpl\n@hookimpl\ndef convdispatch_solver(): return []",
        "implements unknown hook convdispatch_solver; the hooks are convdispatch_enqueue, convdispatch_solvers",
    ),
    "signature": (
        "from convdispatch.api import hookimpl\n@hookimpl\ndef convdispatch_solvers(devices): return []",
        "Argument(s) {'devices'} are declared in the hookimpl but can not be found in the hookspec",
    ),
    "not_a_list": (
        "from convdispatch.api import hookimpl\n@hookimpl\ndef convdispatch_solvers(): return 3",
        "expected a list of Solver, got int",
    ),
    "not_solvers": (
        "from convdispatch.api import hookimpl\n@hookimpl\ndef convdispatch_solvers(): return ['fast']",
        "expected Solver objects with a name, got 'fast'",
    ),
    "hook_raises": (
        "from convdispatch.api import hookimpl\n@hookimpl\ndef convdispatch_solvers(): raise OSError('no library')",
        "convdispatch_solvers raised OSError: no library",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch, read_anew):
    """An empty drop-in folder; the loader is put back afterwards."""
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    return tmp_path


def put(folder, name, text):
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def entry(loaded, name):
    return next(e for e in loaded.report if e.name == name)


def test_in_tree_plugins_come_through_entry_points(folder):
    loaded = loader.reload()
    assert entry(loaded, "im2col").status == "loaded"
    assert entry(loaded, "im2col").source.startswith("convdispatch ")
    assert "im2col" in loaded.plugin_of.values()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_harms_no_other(folder, kind):
    text, reason = BROKEN[kind]
    put(folder, "broken", text)
    put(folder, "zz_good", GOOD.format(cls="Good", name="good.one"))
    with pytest.warns(ConvDispatchWarning, match="plugin broken was set aside"):
        loaded = loader.reload()
    assert entry(loaded, "broken").status == "failed"
    assert reason in entry(loaded, "broken").reason
    assert entry(loaded, "broken").mend
    assert entry(loaded, "zz_good").status == "loaded"
    assert "good.one" in loaded.solvers
    assert "im2col" in loaded.plugin_of.values()


def test_a_second_plugin_of_one_name_is_a_duplicate(folder):
    put(folder, "im2col", GOOD.format(cls="Copy", name="copy.one"))
    with pytest.warns(ConvDispatchWarning, match="another plugin named 'im2col' is loaded"):
        loaded = loader.reload()
    assert [e.status for e in loaded.report if e.name == "im2col"] == ["loaded", "duplicate"]
    assert "copy.one" not in loaded.solvers


def test_a_second_solver_of_one_name_is_a_duplicate(folder):
    put(folder, "first", GOOD.format(cls="A", name="same.name"))
    put(folder, "second", GOOD.format(cls="B", name="same.name"))
    with pytest.warns(ConvDispatchWarning, match="'same.name' is already provided by plugin 'first'"):
        loaded = loader.reload()
    assert entry(loaded, "second").status == "duplicate"
    assert loaded.plugin_of["same.name"] == "first"


def test_allow_list(folder, monkeypatch):
    put(folder, "good", GOOD.format(cls="Good", name="good.one"))
    monkeypatch.setenv("CONVDISPATCH_PLUGINS", "good, other")
    loaded = loader.reload()
    assert set(loaded.solvers) == {"good.one"}
    assert entry(loaded, "im2col").status == "blocked"
    assert "CONVDISPATCH_PLUGINS" in entry(loaded, "im2col").reason


def test_block_list_stops_the_import_itself(folder, monkeypatch):
    put(folder, "bad", "raise RuntimeError('imported')")
    monkeypatch.setenv("CONVDISPATCH_BLOCK", "bad")
    assert entry(loader.reload(), "bad").reason == "named in CONVDISPATCH_BLOCK"


def test_registry_blocks(folder, monkeypatch, tmp_path):
    put(folder, "bad", "raise RuntimeError('imported')")
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nblock: [bad]\n")
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(file))
    assert entry(loader.reload(), "bad").status == "blocked"
    assert registry.registry().block == {"bad"}


def test_a_package_is_a_dropin_too(folder):
    (folder / "acme").mkdir()
    (folder / "acme" / "__init__.py").write_text("from .inner import *\n" + GOOD.format(cls="A", name="acme.one"))
    (folder / "acme" / "inner.py").write_text("x = 1\n")
    assert "acme.one" in loader.reload().solvers


def test_unknown_and_failing_layers_are_said(folder, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_LAYERS", "trace,nonsense")
    with pytest.warns(ConvDispatchWarning, match="no layer is named 'nonsense'; there are trace, validation"):
        loaded = loader.reload()
    assert loaded.layers == ["trace"]


def test_one_bad_entry_point_does_not_stop_the_walk(folder, monkeypatch):
    import importlib.metadata as metadata

    real = metadata.entry_points

    def entries(**choice):
        extra = [metadata.EntryPoint("aaa_missing", "no_such_module_anywhere", loader.hookspecs.PROJECT)]
        return [*extra, *real(**choice)] if choice.get("group") == loader.hookspecs.PROJECT else real(**choice)

    monkeypatch.setattr(metadata, "entry_points", entries)
    with pytest.warns(ConvDispatchWarning, match="aaa_missing"):
        loaded = loader.reload()
    assert "ModuleNotFoundError" in entry(loaded, "aaa_missing").reason
    assert entry(loaded, "im2col").status == "loaded"
