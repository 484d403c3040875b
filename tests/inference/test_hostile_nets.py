"""Checkpoints that others wrote: small files take little memory, refusals name the file."""

from __future__ import annotations

import resource
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, seed
from strategies import FUZZ, answer, mutated

from convdispatch.api.errors import InvalidArgument
from convdispatch.nn import load_tensors, save_tensors
from convdispatch.nn.saving import try_place

MIB = 1 << 20


def peak():
    """Most memory that this process has held so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def refused(call, *words, most=200 * MIB):
    """Call in this process; it must refuse in these words, and never have held ``most`` bytes more than before."""
    before = peak()
    with pytest.raises(InvalidArgument) as found:
        call()
    assert peak() - before < most, f"{(peak() - before) >> 20} MiB were taken first"
    for word in words:
        assert word in str(found.value)


# --- our own checkpoints ---------------------------------------------------------------------------------------------


def header(text):
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        '{"a": {"dtype": "F32", "shape": [0, 1' + "0" * 30 + '], "data_offsets": [0, 0]}}',
        '{"a": {"dtype": "F32", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 0]}}',
        '{"a": {"dtype": "F32", "shape": 3, "data_offsets": [0, 0]}}',
        '{"a": 3}',
    ],
    ids=["deep", "wide", "digits", "shape", "entry"],
)
def test_a_header_that_is_none(tmp_path, text):
    (tmp_path / "x.st").write_bytes(header(text))
    refused(lambda: load_tensors(tmp_path / "x.st"), "x.st")


def test_a_save_that_is_killed_leaves_the_file_before(tmp_path):
    path = tmp_path / "run.ckpt"
    save_tensors(path, {"a": np.arange(9)})
    child = (
        "import os, signal, numpy as np\n"
        "from convdispatch.nn import saving\n"
        "saving.plainfile.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"saving.save_tensors({str(path)!r}, {{'a': np.zeros(9)}})\n"
    )
    assert subprocess.run([sys.executable, "-c", child], timeout=300).returncode == -signal.SIGKILL
    np.testing.assert_array_equal(load_tensors(path)[0]["a"], np.arange(9))


@pytest.mark.parametrize("place", ["/proc/none.ckpt", "{file}/x.ckpt", "{folder}", "{folder}/a\0b"])
def test_a_checkpoints_place_is_tried(tmp_path, place):
    (tmp_path / "file").write_text("")
    path = place.format(file=tmp_path / "file", folder=tmp_path)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        try_place(path)


def test_a_place_that_is_tried_is_left_as_it_was(tmp_path):
    (tmp_path / "x").write_text("kept")
    try_place(tmp_path / "x")
    try_place(tmp_path / "y")
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "kept"


# --- fuzz ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small sound file of each kind."""
    folder = tmp_path_factory.mktemp("fuzz")
    save_tensors(folder / "x.st", {"a": np.arange(6.0), "b": np.ones((2, 3), np.float32)}, {"note": "x"})
    return folder


def test_mutated_files_are_read_or_refused_by_name(files):
    path, good = files / "fuzzed.st", (files / "x.st").read_bytes()

    @seed(2026)
    @FUZZ
    @given(mutated(good))
    def run(data):
        path.write_bytes(data)
        _, words = answer(InvalidArgument, lambda: load_tensors(path))
        assert not words or path.name in words

    run()
