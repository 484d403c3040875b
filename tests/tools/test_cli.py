"""The command line: each command's words, its JSON, and its errors in one line."""

from __future__ import annotations

import json

import pytest
from command_line import run_cli

from convdispatch.selection.plugins import loader
from convdispatch.tools.cli import COMMANDS


@pytest.fixture
def run():
    """Invoke the command; gives (exit status, output)."""

    def invoke(*arguments, status=0):
        result = run_cli(*arguments, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.output

    return invoke


def test_help_names_every_command(run):
    for command in COMMANDS:
        assert command in run("--help")
        assert "Usage" in run(command, "--help")


def test_info(run):
    listing = json.loads(run("info", "--json"))
    assert listing["devices"]
    assert "im2col" in listing["solvers"].values()


def test_explain(run):
    explained = json.loads(run("explain", "mb1ic4ih8oc6kh5g2", "--json"))
    assert {"im2col", explained["chosen"]} <= {solver["solver"] for solver in explained["solvers"]}
    said = run("explain", "mb1ic4ih8oc6kh5g2")
    assert f"->  {explained['chosen']} " in said
    assert explained["why"] in " ".join(said.splitlines())


def test_explain_reads_other_tools_words(run):
    assert "fwd_f32_mb2ic3ih9iw9oc4kh3kw3dh2dw2" in run("explain", 'mb2ic3ih9oc4kh3dh1n"dilated"')


def test_errors_are_one_line(run):
    output = run("explain", "mb1icc4", status=1)
    assert output.startswith("Error: ")
    assert len(output.strip().splitlines()) == 1


def test_unknown_device_lists_what_is_there(run):
    output = run("explain", "mb1ic4ih8oc6kh3", "--device", "abacus", status=1)
    assert "no OpenCL device matches 'abacus'; there are:" in output


def test_doctor_is_content_and_says_so(run):
    report = json.loads(run("doctor", "--json"))
    assert report["healthy"]
    assert report["default_device"]
    assert any(entry["name"] == "im2col" and entry["status"] == "loaded" for entry in report["plugins"])
    assert all("problem" in device for device in report["devices"])


def test_doctor_names_what_is_broken_and_how_to_mend_it(run, tmp_path, monkeypatch):
    (tmp_path / "acme.py").write_text("raise RuntimeError('no engine')")
    registry = tmp_path / "registry.yaml"
    registry.write_text("rules: {}\n")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(tmp_path))
    monkeypatch.setenv("CONVDISPATCH_REGISTRY", str(registry))
    loader.plugins.cache_clear()
    try:
        report = json.loads(run("doctor", "--no-probe", "--json", status=1))
        text = run("doctor", "--no-probe", status=1)
    finally:
        monkeypatch.undo()
        loader.plugins.cache_clear()
    entry = next(entry for entry in report["plugins"] if entry["name"] == "acme")
    assert entry["status"] == "failed"
    assert "no engine" in entry["reason"]
    assert f"{registry}:1: rules must be a list" in report["registry_problem"]
    assert "to mend: acme: reinstall or remove the plugin" in text
    assert "CONVDISPATCH_PLUGIN_DIR=" in text


def test_doctor_without_any_device(run, monkeypatch):
    from convdispatch.device import runtime

    monkeypatch.setattr(runtime, "devices", lambda: [])
    monkeypatch.delenv("CONVDISPATCH_DEVICE", raising=False)
    runtime._ranked.cache_clear()
    report = json.loads(run("doctor", "--json", status=1))
    runtime._ranked.cache_clear()
    assert report["default_device"] is None
    assert "pip install 'convdispatch[cpu]'" in report["default_problem"]
    assert "no device works: pip install 'convdispatch[cpu]'" in report["advice"]
