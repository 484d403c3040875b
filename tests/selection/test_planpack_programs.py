"""A pack's programs are read in place, those of earlier packs unpacked; a byte that is another refuses the file."""

from __future__ import annotations

import json
import zipfile

import pytest

from convdispatch.api import InvalidArgument
from convdispatch.device.cache.artifact_store import Gathered
from convdispatch.selection import planpack
from convdispatch.selection.planpack import reading
from convdispatch.selection.planpack.reading import MANIFEST

IDENTITY = {"device": "none", "driver": "1"}
PROGRAMS = {"a": b"one " * 999, "b": bytes(range(256)) * 40, "c": b"x", "d": b"one " * 999}


def stored(path):
    """A pack of programs, as it is written."""
    gathered = Gathered(IDENTITY)
    gathered.tables["programs"].update(PROGRAMS)
    planpack.write(path, gathered)
    return path


def deflated(path):
    """The same with compiled code deflated."""
    with zipfile.ZipFile(stored(path.with_suffix(".other"))) as archive, zipfile.ZipFile(path, "w") as out:
        for info in archive.infolist():
            out.writestr(zipfile.ZipInfo(info.filename), archive.read(info), zipfile.ZIP_DEFLATED)
    return path


def begin(info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin."""
    return info.header_offset + reading._HEADER_BYTES + len(info.filename)


def refused(path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidArgument) as error:
        reading.read(path)
    assert str(error.value).startswith(f"{path} is no plan pack that can be read: ")
    assert words in str(error.value)
    # For a device that is not here nothing of them is read.
    assert reading.read(path, lambda identity: False).get("programs", "a") is None


def test_programs_come_back_as_they_were_put_in(tmp_path):
    file = reading.read(stored(tmp_path / "a.cdpack"))
    found = {key: file.get("programs", key) for key in PROGRAMS}
    assert found == PROGRAMS
    assert all(type(each) is bytes for each in found.values())  # drivers take nothing else
    assert file.get("programs", "e") is None


def test_several_keys_may_have_one_member(tmp_path):
    path, other = stored(tmp_path / "a.cdpack"), tmp_path / "b.cdpack"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(other, "w") as out:
        for info in archive.infolist():
            content = archive.read(info)
            if info.filename == MANIFEST:
                manifest = json.loads(content)
                manifest["programs"]["e"] = manifest["programs"]["b"]
                content = json.dumps(manifest).encode()
            out.writestr(info, content)
    assert reading.read(other).get("programs", "e") == PROGRAMS["b"]


def test_a_byte_that_is_another_refuses_the_file(tmp_path):
    path = stored(tmp_path / "a.cdpack")
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.startswith("programs/")]
    assert len(infos) == len(PROGRAMS)
    for info in infos:
        for at in (0, info.compress_size // 2):
            content = bytearray(path.read_bytes())
            content[begin(info) + at] ^= 255
            refused(tmp_path / "damaged.cdpack", content, "")


@pytest.mark.parametrize(
    ("offset", "words"), [(0, "does not begin as a member does"), (30, "has another name where it begins")]
)
def test_a_member_that_is_not_where_it_is_said_to_be(tmp_path, offset, words):
    path = stored(tmp_path / "a.cdpack")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        content[archive.getinfo("programs/1.bin").header_offset + offset] ^= 1
    refused(tmp_path / "moved.cdpack", content, words)


def test_compiled_code_that_is_deflated_is_refused(tmp_path):
    refused(tmp_path / "b.cdpack", deflated(tmp_path / "a.cdpack").read_bytes(), "is not stored as it is")
