"""Reads plan packs of any origin: every size in the file is checked before memory is allocated for it.

Nothing is unpacked to a folder, and no path is taken from the file. Any error is an InvalidArgument that names the
file. Stored members are read in place, and compared with their checksums when they are first used.

A plan pack is a zip archive. Its ``manifest.json`` is ``{"plan pack": 1, "device": {...}, "plugins": {...},
"decisions": {...}, "forms": {...}, "programs": {key: member}, "texts": member, "weights": {key: member}}``; texts are
one JSON member, keys to texts. Compiled code and packed weights are stored without compression, because inflating 12 MB
of code took most of the time of reading a pack.
"""

from __future__ import annotations

import mmap
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...api.errors import ConvDispatchError, InvalidArgument
from ...api.problem import ConvProblem
from ...device import jsontext, plainfile

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TEXTS = "texts.json"
MEMBER = re.compile(r"(programs|weights)/[0-9]{1,6}\.bin")
"""The names of archive members that hold programs or packed weights; the other two members are JSON."""
ENTRY_KEY = re.compile(r"[ -~]{1,4096}")
"""A valid key of an entry: printable ASCII of limited length."""
MAX_JSON_BYTES = 256 << 20
"""The largest size of a JSON member in bytes, uncompressed."""
MAX_MEMBERS = 200_000
_MAX_FILE_BYTES = 1 << 40
"""The largest size of a plan pack in bytes; the file is mapped into memory, not read."""
_HEADER_BYTES = 30
"""The size in bytes of a ZIP member's local header, up to its name."""
_MAX_COMPRESSION = 200
"""The highest compression ratio that is accepted of a ZIP member; compiled code has a ratio of about 3."""
_LAYOUTS = (None, "nchw", "nhwc")


class _Invalid(Exception):
    """The file is no valid plan pack; the message says why."""


class PackFile:
    """A plan pack that was read: decisions, forms, programs and texts are loaded, packed weights are read on demand."""

    def __init__(self, path: str | Path, fits: Callable[[dict[str, str]], bool]) -> None:
        """``fits(identity)`` says whether a device here is of the pack's kind; if not, no program is read."""
        self.name = str(path)
        self._lock = threading.Lock()
        self._checked: dict[str, memoryview | None] = {}
        plainfile.must_be_plain(path, _MAX_FILE_BYTES)
        with Path(path).open("rb") as file:
            if not file.seek(0, 2):
                raise _Invalid("it is empty")
            self._map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            with zipfile.ZipFile(file) as archive:
                self._members = _checked_members(archive, len(self._map))
                manifest = _json(archive, MANIFEST)
                self._texts = _texts(_json(archive, TEXTS))
                self._read_manifest(manifest)
                programs = self._table(manifest, "programs")
        wanted = set(programs.values()) if fits(self.identity) else ()
        programs_read = {member: self._program(self._members[member]) for member in wanted}
        self._programs = {key: programs_read[member] for key, member in programs.items()} if wanted else {}
        self._weights = self._table(manifest, "weights")
        for member in self.weights:
            self._offset_of(self._members[member])

    def get(self, table: str, key: str) -> Any:
        """The value of ``key`` in a table, or None."""
        if table == "weights":
            member = self._weights.get(key)
            return member if not member else self.content(member)
        if table == "programs":
            program = self._programs.get(key)
            return None if program is None else bytes(program)
        return (self._texts if table == "texts" else getattr(self, table)).get(key)

    def holds(self, table: str) -> bool:
        """Whether there is any value in a table."""
        return bool(getattr(self, table if table in ("decisions", "forms") else f"_{table}"))

    def without(self, table: str, wanted: Any) -> None:
        """Remove the entries of a table for which ``wanted(key)`` is false."""
        entries = getattr(self, f"_{table}" if table == "weights" else table)
        for key in [key for key in entries if not wanted(key)]:
            del entries[key]

    def content(self, member: str) -> memoryview | None:
        """The bytes of a stored member; None if they are damaged."""
        with self._lock:
            if member not in self._checked:
                info = self._members[member]
                start = self._offset_of(info)
                found = self._map[start : start + info.file_size]
                self._checked[member] = found if zlib.crc32(found) == info.CRC else None
            return self._checked[member]

    @property
    def weights(self) -> list[str]:
        """The names of the members that hold packed weights."""
        return [member for member in self._weights.values() if member]

    def _offset_of(self, info: zipfile.ZipInfo) -> int:
        """Offset in the file of a stored member's bytes."""
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise _Invalid(f"{info.filename} is not stored as it is")
        head = self._map[info.header_offset : info.header_offset + _HEADER_BYTES]
        if len(head) < _HEADER_BYTES or bytes(head[:4]) != b"PK\x03\x04":
            raise _Invalid(f"{info.filename} does not begin as a member does")
        name = info.header_offset + _HEADER_BYTES
        end = name + int.from_bytes(head[26:28], "little")
        if bytes(self._map[name:end]) != info.filename.encode():
            raise _Invalid(f"{info.filename} has another name where it begins")
        start = end + int.from_bytes(head[28:30], "little")
        if start + info.compress_size > len(self._map):
            raise _Invalid(f"{info.filename} does not end within the file")
        return start

    def _program(self, info: zipfile.ZipInfo) -> memoryview:
        """A program's bytes, in place. Raises _Invalid if they are damaged."""
        start = self._offset_of(info)
        content = self._map[start : start + info.file_size]
        if zlib.crc32(content) != info.CRC:
            raise _Invalid(f"{info.filename} is damaged: its checksum is another")
        return content

    def _read_manifest(self, manifest: Any) -> None:
        if not isinstance(manifest, dict) or manifest.get("plan pack") != FORMAT_VERSION:
            raise _Invalid(f"it is of another form than {FORMAT_VERSION}: write it anew with convdispatch pack")
        self.identity = _text_mapping(manifest.get("device"), "device")
        self.plugins = _text_mapping(manifest.get("plugins"), "plugins")
        self.decisions = {}
        for text, decision in _mapping(manifest.get("decisions"), "decisions").items():
            decision = _mapping(decision, f"the decision for {text[:200]}")
            if not isinstance(decision.get("solver"), str):
                raise _Invalid(f"the decision for {text[:200]} names no solver")
            config = _mapping(decision.get("config"), f"the configuration for {text[:200]}")
            entry = {"solver": decision["solver"], "config": config, "seal": str(decision.get("seal", ""))}
            if isinstance(decision.get("math"), str):
                entry["math"] = decision["math"]
            self.decisions[str(ConvProblem.parse(text))] = entry
        self.forms = {}
        for key, form in _mapping(manifest.get("forms"), "forms").items():
            form = _mapping(form, "a form")
            layout = form.get("layout")
            if layout not in _LAYOUTS:
                raise _Invalid(f"a form has a layout, got {str(layout)[:40]!r}")
            self.forms[key] = {"layout": layout}

    def _table(self, manifest: Mapping[str, Any], table: str) -> dict[str, str]:
        members = _text_mapping(manifest.get(table), table)
        kinds = [] if table == "programs" else [""]
        missing = next((name for name in members.values() if name not in kinds and name not in self._members), None)
        if missing is not None:
            raise _Invalid(f"it names the member {missing[:80]!r}, which it does not have")
        return members


def read(path: str | Path, fits: Callable[[dict[str, str]], bool] = lambda _: True) -> PackFile:
    """Read a pack; see ``PackFile``. Raises InvalidArgument for a file that is no valid pack."""
    try:
        return PackFile(path, fits)
    except _Invalid as error:
        why = str(error)
    except FileNotFoundError:
        why = "there is no such file"
    except MemoryError:
        raise
    except ConvDispatchError as error:
        why = str(error)
    except Exception as error:
        # ``zipfile`` raises BadZipFile, struct.error, NotImplementedError and others for a damaged archive.
        why = f"{error or type(error).__name__}"
    raise InvalidArgument(f"{path} is no plan pack that can be read: {' '.join(why.split())}")


def _checked_members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The archive's members by name, after checking their names, sizes and compression ratios."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise _Invalid(f"it has {len(infos)} members, at most {MAX_MEMBERS} are read")
    infos_by_name: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        if name not in (MANIFEST, TEXTS) and MEMBER.fullmatch(name) is None:
            raise _Invalid(f"it has a member {name[:80]!r}, which a plan pack has not")
        if name in infos_by_name:
            raise _Invalid(f"it has two members {name!r}")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Invalid(f"{name} is neither stored nor deflated")
        if info.file_size > max(4096, _MAX_COMPRESSION * info.compress_size) or info.compress_size > size:
            raise _Invalid(f"{name} claims {info.file_size} bytes of {info.compress_size} in the file")
        infos_by_name[name] = info
    packed = sum(info.compress_size for info in infos)
    if packed > size:
        raise _Invalid(f"its members claim {packed} bytes of a file of {size}: they lie over each other")
    for name in (MANIFEST, TEXTS):
        if name not in infos_by_name:
            raise _Invalid(f"it has no {name}")
        if infos_by_name[name].file_size > MAX_JSON_BYTES:
            raise _Invalid(f"{name} has {infos_by_name[name].file_size} bytes, at most {MAX_JSON_BYTES} are read")
    return infos_by_name


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return jsontext.loads(archive.read(name))
    except ValueError as error:
        raise _Invalid(f"{name} is not JSON: {error}") from None


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Invalid(f"{what} is a mapping, got {str(value)[:80]!r}")
    return value


def _text_mapping(value: Any, what: str) -> dict[str, str]:
    words_by_key = _mapping(value, what)
    for key, word in words_by_key.items():
        if ENTRY_KEY.fullmatch(key) is None or not isinstance(word, str) or len(word) > 4096:
            raise _Invalid(f"{what} maps words to words, got {key[:80]!r}: {str(word)[:80]!r}")
    return words_by_key


def _texts(value: Any) -> dict[str, str]:
    texts_by_key = _mapping(value, TEXTS)
    wrong_key = next((key for key, text in texts_by_key.items() if not isinstance(text, str)), None)
    if wrong_key is not None:
        raise _Invalid(f"{TEXTS} maps keys to texts, got {str(texts_by_key[wrong_key])[:80]!r}")
    return texts_by_key
