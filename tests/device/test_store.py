"""The store on disk: values last, whole or not at all, within limits, whoever else reads, writes or clears them."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys

import pytest
from threads import together

from convdispatch.device import plainfile
from convdispatch.device.cache import artifact_store, store

KEY = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "store"))
    another_process()
    yield tmp_path / "store"
    another_process()


def another_process():
    for table in store.TABLES.values():
        table.forget()


VALUES = {
    store.DECISIONS: ({"solver": "im2col", "config": {}}, {"solver": "fft"}),
    store.TEXTS: ("kernel void f() {}", "kernel void g() {}"),
    store.PROGRAMS: (b"\x7fELF\n\n", b""),
}
TABLES = pytest.mark.parametrize("table", VALUES, ids=lambda table: table.name)


@TABLES
def test_a_table_is_empty_until_one_of_its_own_values_is_on_disk(table):
    assert table.is_empty(), "there is no folder yet"
    for other in set(VALUES) - {table}:
        other.put(KEY, VALUES[other][0])
    assert table.is_empty(), "other tables share the folder"
    table.put(KEY, VALUES[table][0])
    assert not table.is_empty()
    table.clear()
    assert table.is_empty()


@TABLES
def test_a_value_lasts_and_is_replaced(table, folder):
    first, second = VALUES[table]
    assert table.get(KEY) is None
    for value in (first, second, first):
        table.put(KEY, value, "what it is of\nin lines")
        assert table.get(KEY) == value
        another_process()
        assert table.get(KEY) == value
    (entry,) = table.entries()
    assert entry.label == "what it is of in lines"
    assert entry.value in (None, first)
    assert table.size() == (1, entry.nbytes) == (1, sum(path.stat().st_size for path in folder.iterdir()))
    others = [other for other in store.TABLES.values() if other is not table]
    assert [other.get(KEY) for other in others] == [None] * len(others)


def cut(content: bytes) -> bytes:
    return content[:-1]


DAMAGE = [cut, lambda content: b"", lambda content: content[:30], lambda content: b"x" + content,
          lambda content: content.replace(b"store 1", b"store 2"),
          lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]]  # fmt: skip


@TABLES
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_file_or_one_of_another_version_is_missing(table, damage, folder):
    value, _ = VALUES[table]
    table.put(KEY, value, "label")
    another_process()
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert table.get(KEY) is None
    assert not list(table.entries())
    table.put(KEY, value, "label")
    another_process()
    assert table.get(KEY) == value


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{", b"\xff", b'{"a": ' * 50_000])
def test_bytes_that_are_no_value_are_none(content):
    """Whole files, which somebody wrote who may write the folder."""
    for table in (store.DECISIONS, store.TEXTS):
        store.Table(table.name, "", store.BYTES).put(KEY, content)
        assert table.get(KEY) is None


def test_a_pipe_in_the_place_of_a_file_does_not_hang(folder):
    folder.mkdir()
    os.mkfifo(folder / f"{KEY[:40]}.programs")
    assert store.PROGRAMS.get(KEY) is None
    assert not list(store.PROGRAMS.entries())


def no_space(*given, **named):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("why", ["no folder", "read-only", "full"])
def test_where_nothing_can_be_written_values_of_json_last_for_the_process(why, folder, monkeypatch):
    if why == "no folder":
        folder.write_text("a file in the place of a folder")
        monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(folder / "below"))
    if why == "read-only":
        store.TEXTS.put(KEY, "there before")
        monkeypatch.setattr(plainfile.Path, "open", no_space)  # the user root writes in any folder
        monkeypatch.setattr(store.os, "utime", no_space)
    if why == "full":
        monkeypatch.setattr(plainfile.Path, "replace", no_space)
    store.DECISIONS.put(KEY, {"solver": "a"})
    store.PROGRAMS.put(KEY, b"code")
    assert store.DECISIONS.get(KEY) == {"solver": "a"}
    assert store.PROGRAMS.get(KEY) is None
    another_process()
    assert store.DECISIONS.get(KEY) is None
    assert store.TEXTS.get(KEY) == ("there before" if why == "read-only" else None)
    assert not folder.is_dir() or not list(folder.glob(".*")), "no draft is left behind"


def test_a_full_disk_leaves_the_value_before(folder, monkeypatch):
    store.PROGRAMS.put(KEY, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "urandom", no_space)
        store.PROGRAMS.put(KEY, b"new")
    assert store.PROGRAMS.get(KEY) == b"old"
    assert len(list(folder.iterdir())) == 1


def test_off_stores_nothing_but_what_protects_processes(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for table in store.TABLES.values():
        table.put(KEY, VALUES.get(table, ({"a": 1},))[0])
    assert store.DECISIONS.get(KEY) is not None, "it lasts for the process"
    another_process()
    found = {name: table.get(KEY) for name, table in store.TABLES.items()}
    assert {name for name, value in found.items() if value is not None} == {"trials"}
    assert not folder.exists()
    assert store.folder() is store.PROGRAMS.folder() is None


WRITER = """
import sys
from convdispatch.device.cache.store import DECISIONS, PROGRAMS
for turn in range(60):
    for key in "ab":
        content = bytes([turn % 7]) * 40_000
        PROGRAMS.put(key * 64, content, sys.argv[1])
        DECISIONS.put(key * 64, {"turn": turn, "of": sys.argv[1] * 900})
        DECISIONS.forget()
        read = PROGRAMS.get(key * 64)
        assert read is None or (len(read) == 40_000 and len(set(read)) == 1), "torn"
        value = DECISIONS.get(key * 64)
        assert value is None or set(value["of"]) <= set("12"), value
"""


def test_two_processes_write_while_a_third_clears(folder):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name], stderr=subprocess.PIPE) for name in "12"]
    cleared = 0
    while any(writer.poll() is None for writer in writers):
        cleared += store.PROGRAMS.clear() + store.DECISIONS.clear()
        list(store.DECISIONS.entries())
    for writer in writers:
        assert writer.wait() == 0, writer.stderr.read().decode()
        writer.stderr.close()
    assert cleared + store.PROGRAMS.clear() + store.DECISIONS.clear()
    store.PROGRAMS.put(KEY, b"code")
    assert store.PROGRAMS.get(KEY) == b"code"
    assert store.PROGRAMS.clear() > 4
    assert not list(folder.iterdir())


def test_threads_that_write_leave_whole_values(folder):
    def work(letter):
        for _ in range(40):
            store.PROGRAMS.put(KEY, letter * 9000)
            assert len(set(store.PROGRAMS.get(KEY))) == 1

    together(work, (b"a", b"b", b"c"))
    assert len(list(folder.iterdir())) == 1


def test_the_least_recently_used_go_first_and_nobody_elses(folder, monkeypatch):
    folder.mkdir()
    (folder / "notes.txt").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(store, "MAX_BYTES", 5 * 4096)  # small files count as a block each
    tables = [store.PROGRAMS, store.TEXTS, store.DECISIONS] * 3
    for age, table in enumerate(tables):
        table.put(f"{age}" * 40, VALUES[table][0])
        (path,) = folder.glob(f"{age}*")
        os.utime(path, (1000 + age, 1000 + age))
    store.PROGRAMS.get("3" * 40)  # read, if it is still there: its time is now
    left = sorted(path.name[0] for path in folder.iterdir() if path.suffix != ".txt")
    assert left == ["4", "5", "6", "7", "8"]
    assert store.TEXTS.get("4" * 40)
    store.PROGRAMS.put("9" * 40, b"x")
    assert sorted(path.name[0] for path in folder.iterdir() if path.suffix != ".txt") == ["4", "6", "7", "8", "9"]
    assert (folder / "notes.txt").exists()


def test_clear_removes_one_table_and_its_drafts(folder):
    for table, (value, _) in VALUES.items():
        table.put(KEY, value)
    (folder / ".ab.programs.12.ff.part").write_bytes(b"left by a killed process")
    (folder / "notes.programmes").write_bytes(b"somebody's")
    assert store.PROGRAMS.clear() > 24
    assert store.PROGRAMS.get(KEY) is None
    assert {path.suffix for path in folder.iterdir()} == {".decisions", ".texts", ".programmes"}


def test_memory_of_values_is_bounded(monkeypatch):
    monkeypatch.setattr(store, "_MAX_IN_MEMORY", 10)
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", "off")
    for number in range(50):
        store.DECISIONS.put(str(number), {"number": number})
    assert [number for number in range(50) if store.DECISIONS.get(str(number))] == list(range(40, 50))


def test_writing_draws_none_of_the_callers_random_numbers():
    random.seed(0)
    store.PROGRAMS.put(KEY, b"x" * 64)
    drawn = random.random()
    random.seed(0)
    assert drawn == random.random()


# --- packs come first, then the disk ---------------------------------------------------------------------------------


@pytest.fixture
def pack(device):
    from convdispatch.device.cache.keys import identity

    collection = artifact_store.Gathered(identity(device))
    artifact_store.put_in_force(collection)
    yield collection
    artifact_store.take_out_of_force(collection)


def fail():
    pytest.fail("made again")


def test_a_pack_comes_before_the_disk_and_both_before_making(device, pack):
    assert store.TEXTS.cached(KEY, "pack's key", lambda: "made", device=device) == "made"
    assert store.TEXTS.cached(KEY, "pack's key", fail, device=device) == "made"
    pack.tables["texts"]["pack's key"] = "of the pack"
    with artifact_store.gathering(device) as gathered:
        assert store.TEXTS.cached(KEY, "pack's key", fail, device=device) == "of the pack"
    assert gathered.tables["texts"] == {"pack's key": "of the pack"}, "a pack made from a pack is whole"
    assert store.TEXTS.cached(KEY, None, fail) == "made"
    assert store.TEXTS.cached(None, None, lambda: "without a key") == "without a key"


def test_what_cannot_be_made_is_not_stored(folder):
    assert store.TEXTS.cached(KEY, None, lambda: None) is None
    assert store.TEXTS.cached(KEY, None, lambda: "now") == "now"
