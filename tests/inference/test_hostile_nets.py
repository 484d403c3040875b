"""Checkpoints, pictures and data sets that others wrote: small files take little memory, refusals name the file."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, seed
from strategies import FUZZ, answer, mutated

from convdispatch.api.errors import InvalidArgument
from convdispatch.models.checkpoint import read_checkpoint
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


def archive(path, *members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members:
            file.writestr(name, content)
    return path


# --- checkpoints of PyTorch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [b"r", b"p"], ids=["LONG_BINPUT", "PUT"])
@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_pickle_that_remembers_under_a_large_number(tmp_path, opcode, form):
    """The reader's table has a place for every number up to the largest: 16 bytes a place."""
    number = struct.pack("<I", 0x05FFFFFF) if opcode == b"r" else b"100663295\n"
    body = b"\x80\x02}" + opcode + number + b"."
    path = tmp_path / "bomb.pth"
    if form == "zip":
        archive(path, ("a/data.pkl", body))
    else:
        path.write_bytes(body)
    refused(lambda: read_checkpoint(path), "bomb.pth", "100663295")


@pytest.mark.parametrize(
    "opcode", [b"\x8e", b"\x8d", b"\x96", b"T"], ids=["BYTES8", "UNICODE8", "BYTEARRAY8", "STRING"]
)
def test_a_pickle_that_promises_more_than_it_has(tmp_path, opcode):
    size = struct.pack("<i", 2**31 - 1) if opcode == b"T" else struct.pack("<Q", 2**33)
    refused(
        lambda: read_checkpoint(archive(tmp_path / "x.pth", ("a/data.pkl", b"\x80\x05" + opcode + size + b"."))),
        "x.pth",
    )
    (tmp_path / "y.pth").write_bytes(b"\x80\x05" + opcode + size + b".")
    refused(lambda: read_checkpoint(tmp_path / "y.pth"), "y.pth")


def test_many_views_of_one_storage(tmp_path):
    """A few bytes each, and each a copy of all of it."""
    storage = b"X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ" + struct.pack(
        "<i", MIB
    )
    one = (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQK\x00(J" + struct.pack("<i", MIB) + b"t(K\x01t\x89}tR"
    )
    body = b"\x80\x02}(" + b"".join(b"X\x03\x00\x00\x00%03d" % i + one for i in range(300)) + b"u."
    path = archive(tmp_path / "x.pth", ("a/data.pkl", body), ("a/data/0", bytes(4 * MIB)))
    refused(lambda: read_checkpoint(path), "x.pth", "times the file")
    assert len(read_checkpoint(path, most_copies=400)) == 300
    refused(lambda: read_checkpoint(path, most_copies=400, most_description=1000), "at most 1000 are read")


def test_an_archive_whose_entries_overlap(tmp_path):
    path = archive(
        tmp_path / "x.pth", ("a/data.pkl", pickle.dumps({}, 2)), *((f"a/data/{i}", b"0" * 64) for i in range(9))
    )
    data = bytearray(path.read_bytes())
    entry = data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 4)
    data[entry + 20 : entry + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    path.write_bytes(data)
    refused(lambda: read_checkpoint(path), "x.pth", "entries would take")


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


def test_drafts_of_the_dead_are_removed_by_the_next_save(tmp_path):
    path = tmp_path / "run.ckpt"
    child = (
        "import os, signal, numpy as np\n"
        "from convdispatch.nn import saving\n"
        "saving.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"saving.save_tensors({str(path)!r}, {{'a': np.zeros(9)}})\n"
    )
    subprocess.run([sys.executable, "-c", child], timeout=300)
    left = [file.name for file in tmp_path.iterdir()]
    assert [name.endswith(".part") for name in left] == [True], left
    node = left[0].split(".")[-3].rpartition("-")[0]
    living = tmp_path / f".run.ckpt.{node}-{os.getppid()}.abc.part"  # of a process that writes now
    living.write_bytes(b"x")
    other = tmp_path / ".other.ckpt.part"
    other.write_bytes(b"x")
    old = tmp_path / ".run.ckpt.abcdefgh.part"  # as an earlier version named it
    old.write_bytes(b"x")
    os.utime(old, (1, 1))
    save_tensors(path, {"a": np.zeros(9)})
    assert {file.name for file in tmp_path.iterdir()} == {"run.ckpt", living.name, other.name}


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


# --- pictures --------------------------------------------------------------------------------------------------------


def test_a_picture_of_many_pixels(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    from convdispatch.models.pictures import read_picture

    path = tmp_path / "large.png"
    image.new("1", (12000, 12000)).save(path)
    assert path.stat().st_size < MIB
    refused(lambda: read_picture(path, 224), "large.png", "12000x12000", most=100 * MIB)
    small = tmp_path / "small.png"
    image.new("L", (40, 50), 255).save(small)
    monkeypatch.setattr("convdispatch.models.pictures.MAX_PIXELS", 1999)
    refused(lambda: read_picture(small, 224), "40x50", "at most 1999")
    monkeypatch.setattr("convdispatch.models.pictures.MAX_PIXELS", 2000)
    assert read_picture(small, 224).mean() == 255


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_grey_of_16_bits_is_scaled(tmp_path, kind):
    image = pytest.importorskip("PIL.Image")
    from convdispatch.models.pictures import read_picture

    ramp = np.linspace(0, 65535, 64).astype(np.uint16)
    wide = np.tile(ramp, (64, 1))
    path = tmp_path / f"x.{kind}"
    if kind == "pgm":
        path.write_bytes(b"P5 64 64 65535\n" + wide.astype(">u2").tobytes())
    else:
        image.fromarray(wide).save(path)
    narrow = tmp_path / "y.png"
    image.fromarray(np.rint(wide / 257).astype(np.uint8)).save(narrow)
    got = read_picture(path, 56)
    np.testing.assert_array_equal(got, read_picture(narrow, 56))
    assert 120 < got.mean() < 135


def test_pictures_whose_white_is_unknown_are_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    from convdispatch.models.pictures import read_picture

    for dtype in (np.float32, np.int32):
        image.fromarray(np.ones((8, 8), dtype)).save(tmp_path / "x.tif")
        refused(lambda: read_picture(tmp_path / "x.tif", 8), "whose white is not known")


# --- fuzz ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small sound file of each kind."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("fuzz")
    save_tensors(folder / "x.st", {"a": np.arange(6.0), "b": np.ones((2, 3), np.float32)}, {"note": "x"})
    image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 257).save(folder / "x.png")
    image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(folder / "x.jpg")
    body = (
        b"\x80\x02}(X\x01\x00\x00\x00ac"
        + b"torch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage"
    )
    body += b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQK\x00(K\x02K\x03t(K\x03K\x01t\x89}tRu."
    archive(folder / "x.pth", ("a/data.pkl", body), ("a/data/0", bytes(24)))
    assert read_checkpoint(folder / "x.pth")["a"].shape == (2, 3)
    return folder


@pytest.mark.parametrize("kind", ["st", "pth", "png", "jpg", "pkl"])
def test_mutated_files_are_read_or_refused_by_name(files, kind):
    from convdispatch.models.pictures import read_picture

    readers = {"st": load_tensors, "pth": read_checkpoint, "pkl": read_checkpoint}
    read = readers.get(kind, lambda path: read_picture(path, 16))
    path = files / f"fuzzed.{kind}"
    good = (files / ("x.pth" if kind == "pkl" else f"x.{kind}")).read_bytes()
    if kind == "pkl":
        with zipfile.ZipFile(files / "x.pth") as opened:
            good = opened.read("a/data.pkl")

    @seed(2026)
    @FUZZ
    @given(mutated(good))
    def run(data):
        path.write_bytes(data)
        if kind == "pkl":  # the archive sound, what it holds not
            archive(path, ("a/data.pkl", data), ("a/data/0", bytes(24)))
        _, words = answer(InvalidArgument, lambda: read(path))
        assert not words or path.name in words

    run()
