"""Files that are no files, too large or too deep, and words from no standard: one sentence each, and at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from command_line import run_cli

import convdispatch as cd
from convdispatch.api.activations import parse_activation
from convdispatch.api.errors import ConvDispatchError
from convdispatch.device import plainfile, rates
from convdispatch.measurement import grammar
from convdispatch.selection.choice import lockfile
from convdispatch.selection.planpack import reading
from convdispatch.selection.plugins import registry, verdicts
from convdispatch.selection.records import packs
from convdispatch.selection.records.perfdb import PerfDB

READERS = {
    "registry": lambda path, db: registry.parse(registry.read_text(path), str(path)),
    "lock": lambda path, db: lockfile.read(path),
    "pack": lambda path, db: packs.import_pack(db, path),
    "plan_pack": lambda path, db: reading.read(path),
    "problems": lambda path, db: list(grammar.read_file(path)),
}
"""Each refuses in words, whatever lies there."""


def at_once(read):
    """``read`` in a process of its own would be killed after ten seconds: here a thread waits as long."""
    began = time.monotonic()
    with pytest.raises(ConvDispatchError) as found:
        read()
    assert time.monotonic() - began < 60
    text = str(found.value)
    assert len(text) < 1200, len(text)
    return text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("what", ["fifo", "device", "folder"])
def test_what_is_no_regular_file_is_not_read(tmp_path, db, name, what):
    path = tmp_path / "file"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert "is no regular file" in at_once(lambda: READERS[name](path, db)) or what == "folder"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_records_and_verdicts_pass_over_pipes(tmp_path, monkeypatch):
    db = PerfDB([tmp_path / "db"])
    (tmp_path / "db" / "cpu").mkdir(parents=True)
    os.mkfifo(tmp_path / "db" / "cpu" / "x.json")
    assert db.all("cpu") == []
    monkeypatch.setenv("CONVDISPATCH_DB", str(tmp_path / "db"))
    os.mkfifo(tmp_path / "db" / "ab.verdicts")
    verdicts.refresh()
    assert not verdicts.verdicts()
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    os.mkfifo(plugin / "pipe.py")
    assert verdicts.fingerprint("1", [plugin])
    verdicts.refresh()


def test_a_file_that_is_too_large(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(plainfile.MOST_BYTES + 1)
    with pytest.raises(OSError, match="at most"):
        plainfile.read_bytes(path)
    assert "at most 262144 are read" in at_once(lambda: registry.read_text(path))
    if os.path.exists("/proc/self/maps"):  # noqa: PTH110
        with pytest.raises(OSError, match="more than 4 bytes"):
            plainfile.read_bytes("/proc/self/maps", 4)


YAML = {
    "deep_flow": "[" * 20_000,
    "deep_maps": "{a: " * 20_000,
    "deep_blocks": "- " * 20_000,
    "deep_lines": "".join(" " * i + "a:\n" for i in range(500)),
    "sexagesimal": "rules:\n- prefer: [a]\n  when: {kh: " + ":".join(["59"] * 40_000) + "}\n",
    "tagged": "rules:\n- prefer: [a]\n  when: {kh: !!int '" + ":".join(["59"] * 40_000) + "'}\n",
    "aliases": "rules:\n- &r {prefer: [" + "a," * 2000 + "]}\n" + "- *r\n" * 20_000,
}


@pytest.mark.parametrize("name", YAML)
def test_a_registry_that_would_take_long_is_refused(name):
    began = time.thread_time()
    with pytest.raises(cd.InvalidPolicy, match=r"registry.yaml:\d+: "):
        registry.parse(YAML[name])
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(
    "text",
    ["mb1ic3ih8oc4kh3" + "+relu" * 20_000, "mb1" * 40_000, "x" * 100_000, "mb1ic" + "9" * 100_000 + "ih8oc4kh3"],
)
def test_long_texts_are_refused_and_not_echoed(text, tmp_path):
    began = time.thread_time()
    said = at_once(lambda: cd.ConvProblem.parse(text))
    assert len(said) < 200
    (tmp_path / "problems.txt").write_text(text + "\n")
    assert len(at_once(lambda: list(grammar.read_file(tmp_path / "problems.txt")))) < 400
    result = run_cli("explain", text)
    assert result.exit_code
    assert len(result.output) < 2000
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(
    "text", ["mb1ic٣ih8oc4kh3", "mb\uff11ic3ih8oc4kh3", "mb1ic3ih8oc4kh3+leaky_relu(nan)", "mb1ic3ih8oc4kh3+elu(٣)"]
)
def test_other_scripts_digits_and_no_numbers_are_refused(text):
    at_once(lambda: cd.ConvProblem.parse(text))


@pytest.mark.parametrize(
    "line", ['mb1ic٣ih8oc4oh6kh3n"x"', "(22, 22, ٣, 1, 4, 3, 3, 1, 1, 2, 2)", "MIOpenDriver conv -n ٣"]
)
def test_other_scripts_digits_in_dialects(line):
    with pytest.raises(ConvDispatchError):
        grammar.read_line(line, grammar.detect(line))


@pytest.mark.parametrize("text", ["leaky_relu(nan)", "clip(nan,1)", "relu6(-nan)", "elu(NaN)", "\uff52elu"])
def test_no_activation_takes_what_is_no_number(text):
    at_once(lambda: parse_activation(text))


def test_an_activation_without_an_end_computes():
    x, w = np.full((1, 1, 3, 3), -3, np.float32), np.ones((1, 1, 1, 1), np.float32)
    np.testing.assert_array_equal(cd.conv(x, w, activation="clip(-inf,inf)"), x)


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e300, -1.0, "nan"])
@pytest.mark.parametrize("name", ["flops", "bandwidth", "launch"])
def test_rates_that_no_device_has_are_damaged(tmp_path, monkeypatch, name, value):
    from convdispatch import runtime

    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path))
    info = runtime.device_info(runtime.default_device())
    values = {"flops": 1e11, "bandwidth": 1e10, "launch": 1e-5} | {name: value}
    rates.rates.cache_clear()
    rates.place(info).parent.mkdir(parents=True, exist_ok=True)
    rates.place(info).write_text(json.dumps(values))
    with pytest.warns(cd.ConvDispatchWarning, match=f"is no calibration .{name} is between|estimates hold"):
        assert rates.rates(info) == rates.estimate(info)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cd.explain("mb1ic3ih8oc4kh3").chosen
    rates.rates.cache_clear()


def test_a_command_on_a_pipe_ends(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    ended = subprocess.run(
        [sys.executable, "-m", "convdispatch", "explain", "mb1ic3ih8oc4kh3"],
        env=os.environ | {"CONVDISPATCH_REGISTRY": str(tmp_path / "pipe")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode
    assert "is no regular file" in ended.stderr
    assert "Traceback" not in ended.stderr
