"""Environment variables: each kind of value read right, each kind of bad one refused in a sentence, none at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_cli

from convdispatch.api import settings
from convdispatch.api.errors import InvalidArgument

TRUTHS = [setting for setting in settings.SETTINGS.values() if setting.kind is settings.TRUTH]


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in settings.SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("setting", settings.SETTINGS.values(), ids=lambda each: each.name)
def test_an_unset_or_empty_variable_is_its_default_and_examples_can_be_read(setting, monkeypatch):
    assert setting.value() == setting.default
    for text in ("", "  "):
        monkeypatch.setenv(setting.name, text)
        assert setting.value() == setting.default
    for example in setting.examples:
        monkeypatch.setenv(setting.name, example)
        setting.value()


@pytest.mark.parametrize("setting", TRUTHS, ids=lambda each: each.name)
def test_truth_values(setting, monkeypatch):
    for text, value in (("1", True), ("true", True), ("Yes", True), ("on", True), (" 1 ", True)):
        monkeypatch.setenv(setting.name, text)
        assert setting.value() is value
    for text in ("0", "false", "No", "OFF"):
        monkeypatch.setenv(setting.name, text)
        assert setting.value() is False
    monkeypatch.setenv(setting.name, "flase")
    with pytest.raises(InvalidArgument, match=rf"{setting.name} must be a truth value \(1, true.*, got 'flase'.*unset"):
        setting.value()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("CONVDISPATCH_TIER", "raedy", r"must be full or ready, got 'raedy' \(did you mean ready\?\)"),
        ("CONVDISPATCH_TIER", "none", r"must be full or ready, got 'none':"),
        ("CONVDISPATCH_SIMD_WIDTH", "5", r"must be 4, 8 or 16, got '5'"),
        ("CONVDISPATCH_TORCH_FIND_MS", "1s", r"must be a number of milliseconds from 0 to 86,400,000, got '1s': for"),
        ("CONVDISPATCH_TORCH_FIND_MS", "-1", "must be a number of milliseconds from 0"),
        ("CONVDISPATCH_TORCH_FIND_MS", "nan", "must be a number of milliseconds from 0"),
        ("CONVDISPATCH_TORCH_FIND_MS", "inf", "must be a number of milliseconds from 0"),
        ("CONVDISPATCH_CACHE_LIMIT", "much", "must be a number of bytes such as 512M or 2G, got 'much'"),
        ("CONVDISPATCH_CACHE_LIMIT", "-1", "must be a number of bytes"),
        (
            "CONVDISPATCH_PLUGINS",
            "im2col;fft",
            r"must be names, separated by commas, got 'im2col;fft' \('im2col;fft' is",
        ),
        ("CONVDISPATCH_DB", __file__, r"must be a folder, got .*test_settings.py' \(it is a file\)"),
        ("CONVDISPATCH_RATES", __file__, r"must be a folder or off, .*\(it is a file\)"),
        ("CONVDISPATCH_LOCK", str(Path(__file__).parent), r"must be a file, .*\(it is a folder\)"),
        ("CONVDISPATCH_PACK", os.pathsep.join(["a.cdpack", str(Path(__file__).parent)]), r"must be files.*is a folder"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(name, text, words, monkeypatch):
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidArgument, match=f"the environment variable {name} {words}"):
        settings.SETTINGS[name].value()
    with pytest.raises(InvalidArgument, match=name):
        settings.check()
    assert list(settings.faults()) == [name]


def test_values(monkeypatch, tmp_path):
    for name, text, value in (
        ("TIER", "ready", "ready"),
        ("TORCH_FIND_MS", "0", 0.0),
        ("TORCH_FIND_MS", "1e3", 1000.0),
        ("CACHE_LIMIT", "1.5 MiB", 3 << 19),
        ("PLUGINS", "im2col, acme ,", ("im2col", "acme")),
        ("DB", "~/records", Path.home() / "records"),
        ("RATES", "Off", settings.OFF),
        ("KERNEL_CACHE", str(tmp_path), tmp_path),
        ("TRACE", os.devnull, Path(os.devnull)),
        ("PACK", os.pathsep.join(["a", "", "b"]), (Path("a"), Path("b"))),
    ):
        monkeypatch.setenv(f"CONVDISPATCH_{name}", text)
        assert getattr(settings, name).value() == value


def test_no_value_is_read_at_import():
    """All modules of the package are imported beside variables none of which can be read."""
    bad = {name: "?!" for name, each in settings.SETTINGS.items() if each.kind not in (settings.TEXT, settings.FOLDER)}
    code = (
        "import importlib, pkgutil, convdispatch, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "for module in pkgutil.walk_packages(convdispatch.__path__, 'convdispatch.'):\n"
        "    if module.name.split('.')[1] in ('api', 'calls', 'device', 'selection', 'measurement', 'inference'):\n"
        "        if not any(part in module.name for part in ('test_', '_launcher')):\n"
        "            importlib.import_module(module.name)\n"
        "print('imported')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **bad}, capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr


def test_a_command_and_enable_say_what_cannot_be_read(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    import convdispatch.torch as ct

    monkeypatch.setenv("CONVDISPATCH_TIER", "raedy")
    with pytest.raises(InvalidArgument, match="CONVDISPATCH_TIER must be full or ready"):
        ct.enable()
    done = run_cli("info", status=1)
    assert "CONVDISPATCH_TIER must be full or ready, got 'raedy' (did you mean ready?)" in done.output


def test_doctor_lists_what_is_set_and_what_is_wrong_with_it(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_NATIVE", "flase")
    monkeypatch.setenv("CONVDISPATCH_TEIR", "full")
    monkeypatch.setenv("CONVDISPATCH_SIMD_WIDTH", "5")
    done = run_cli("doctor", "--no-probe", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 1
    assert report["environment"].items() >= {("CONVDISPATCH_NATIVE", "flase"), ("CONVDISPATCH_TEIR", "full")}
    assert report["unreadable"] == ["CONVDISPATCH_NATIVE", "CONVDISPATCH_SIMD_WIDTH"]
    said = "\n".join(report["advice"])
    assert "CONVDISPATCH_NATIVE must be a truth value" in said
    assert "no environment variable is named CONVDISPATCH_TEIR; did you mean CONVDISPATCH_TIER?" in said


def test_changes_are_undone(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_TRACE", "before.csv")
    with settings.changed({"CONVDISPATCH_TRACE": None, "CONVDISPATCH_LAYERS": "trace"}):
        assert (settings.TRACE.value(), settings.LAYERS.value()) == (None, ("trace",))
    assert (settings.TRACE.value(), settings.LAYERS.value()) == (Path("before.csv"), ())
