"""The environment variables of this package: one table of names, types, defaults and meanings, and their parsers.

A variable is read and checked when its value is needed, never at import: ``settings.TIER.value()``. A text that cannot
be parsed raises InvalidArgument with what was expected. A new variable is a ``Setting`` below, from which ``doctor``
and the table of ``docs/use/environment.md`` are generated.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import InvalidArgument

T = TypeVar("T")
OFF = "off"
"""The value of a folder's setting that means that nothing is stored."""
_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+")


class Unreadable(ValueError):
    """A text that is no value of a setting; the message, where there is one, says what is wrong with it."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A type of value: a description of the texts that are allowed, and the function that reads one, which raises
    ValueError."""

    expected: str
    read: Callable[[str], T]


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable. An empty text counts as unset."""

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    """What the variable does, in the Markdown of the docs; links are relative to ``docs/use``."""
    examples: tuple[str, ...]

    def value(self) -> T:
        """The variable's value now, or the default. Raises InvalidArgument for a text that cannot be read."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.kind.read(text)
        except ValueError as error:
            why = f" ({error})" if isinstance(error, Unreadable) and str(error) else ""
            raise InvalidArgument(
                f"the environment variable {self.name} must be {self.kind.expected}, got {text!r}{why}: for instance "
                f"{self.name}={self.examples[0]}, or leave it unset"
            ) from None


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise Unreadable
    return _TRUTH[text.lower()]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not _NAME.fullmatch(name):
            raise Unreadable(f"{name!r} is no name")
    return names


def _bytes(text: str) -> int:
    found = _BYTES.fullmatch(text)
    if found is None:
        raise Unreadable
    return int(float(found[1]) * 1024 ** " KMGT".index((found[2] or " ").upper()))


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise Unreadable("it is a file")
    return path


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():
        raise Unreadable("it is a folder")
    return path


def _alike(text: str, words: Iterable[str]) -> list[str]:
    import difflib  # loaded where there is something to say

    return difflib.get_close_matches(text, words, 1)


def _one_of(*words: str) -> Kind[Any]:
    """A kind of setting whose value is one word out of a list."""

    def read(text: str) -> str:
        if text not in words:
            near = _alike(text, words)
            raise Unreadable(f"did you mean {near[0]}?" if near else "")
        return text

    return Kind(f"{', '.join(words[:-1])} or {words[-1]}", read)


def _number(low: float, high: float, unit: str) -> Kind[float]:
    """A kind of setting whose value is a number between two bounds, both included."""

    def read(text: str) -> float:
        found = float(text)
        if not low <= found <= high:
            raise Unreadable
        return found

    return Kind(f"a number of {unit} from {low:,.0f} to {high:,.0f}", read)


TRUTH: Kind[Any] = Kind("a truth value (1, true, yes or on; 0, false, no or off)", _truth)
NAMES: Kind[tuple[str, ...]] = Kind("names, separated by commas", _names)
BYTES: Kind[int] = Kind("a number of bytes such as 512M or 2G", _bytes)
FOLDER: Kind[Any] = Kind("a folder", _folder)
FOLDER_OR_OFF: Kind[Any] = Kind("a folder or off", lambda text: OFF if text.lower() == OFF else _folder(text))
FILE: Kind[Any] = Kind("a file", _file)
FILES: Kind[tuple[Path, ...]] = Kind(
    f"files, separated by {os.pathsep!r}", lambda text: tuple(_file(part) for part in text.split(os.pathsep) if part)
)
PATHS: Kind[tuple[Path, ...]] = Kind(
    f"files and folders, separated by {os.pathsep!r}",
    lambda text: tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part),
)
TEXT: Kind[Any] = Kind("a text", str)

DEVICE = Setting(
    "CONVDISPATCH_DEVICE",
    TEXT,
    None,
    "the device to use: part of its name, its vendor, its type, or `platform:device` where each side is part "
    "of a name or a number; else a GPU that works, else a CPU",
    ("nvidia", "cpu", "intel:0"),
)
PLUGINS = Setting("CONVDISPATCH_PLUGINS", NAMES, (), "load only these plugins", ("im2col,acme",))
BLOCK = Setting("CONVDISPATCH_BLOCK", NAMES, (), "never load these plugins", ("acme",))
PLUGIN_DIR = Setting(
    "CONVDISPATCH_PLUGIN_DIR",
    FOLDER,
    None,
    "the drop-in folder: each `.py` file or package in it is a plugin; else `plugins` in the user's "
    "configuration folder",
    ("/opt/plugins",),
)
VENDORS = Setting(
    "CONVDISPATCH_VENDORS",
    PATHS,
    (),
    "where vendors' shared libraries are named: folders of `.icd` files, such files, and libraries; else "
    "`/etc/convdispatch/vendors`, then `vendors` in the user's configuration folder "
    "([libraries](../plugins/writing-a-plugin.md#in-c))",
    ("/opt/acme/acme.icd",),
)
LAYERS = Setting(
    "CONVDISPATCH_LAYERS",
    NAMES,
    (),
    "layers to switch on; `trace` prints a line a call, `validation` checks each plan between guard zones, "
    "and a sample of each solver's first result for a problem against float64",
    ("validation,trace",),
)
TRACE = Setting(
    "CONVDISPATCH_TRACE", FILE, None, "the file that `trace` appends to; else standard error", ("trace.csv",)
)
TRACE_WAIT = Setting(
    "CONVDISPATCH_TRACE_WAIT",
    TRUTH,
    False,
    "`1`: `trace` waits for each result and says after how many microseconds it was there",
    ("1",),
)
REGISTRY = Setting(
    "CONVDISPATCH_REGISTRY",
    FILE,
    None,
    "the registry.yaml to read; else the one in the user's configuration folder, else the packaged one. It "
    "replaces the packaged rules unless it says `include: packaged` "
    "([rules](../design/selection.md#rules-of-your-own))",
    ("policy.yaml",),
)
ERRATA = Setting(
    "CONVDISPATCH_ERRATA",
    FILE,
    None,
    "a file of further errata; else `errata.yaml` in the user's configuration folder. Those of the package and "
    "of plugins hold too ([errata](wrong-numbers.md#errata))",
    ("errata.yaml",),
)
DB = Setting(
    "CONVDISPATCH_DB",
    FOLDER,
    None,
    "the folder of measured records; else `perfdb` in the user's data folder",
    ("/var/lib/convdispatch",),
)
RATES = Setting(
    "CONVDISPATCH_RATES",
    FOLDER_OR_OFF,
    None,
    "the folder of devices' measured rates (`convdispatch calibrate`; a device that is new is measured in the"
    " background once); else `rates` in the user's data folder; `off` keeps estimates",
    ("/var/lib/convdispatch/rates",),
)
SIMD_WIDTH = Setting(
    "CONVDISPATCH_SIMD_WIDTH",
    _one_of("4", "8", "16"),
    None,
    "floats of the vectors that kernels for CPUs are written in, with the registers that go with them (32 for"
    " 16, else 16): `4`, `8` or `16`; else what the device says, less where `CL_CONFIG_CPU_TARGET_ARCH` makes"
    " Intel's runtime compile for an older processor",
    ("8",),
)
LOCK = Setting(
    "CONVDISPATCH_LOCK", FILE, None, "the lock file that fixes which solver runs each problem", ("convdispatch.lock",)
)
PACK = Setting(
    "CONVDISPATCH_PACK",
    FILES,
    (),
    "a plan pack to put in force when something is first planned, or several, as in `PATH` "
    "([packs](first-call.md#ship-what-is-compiled-plan-packs))",
    ("net.cdpack",),
)
CUDA = Setting(
    "CONVDISPATCH_CUDA",
    TRUTH,
    True,
    "`0` leaves memory of NVIDIA devices to OpenCL alone; otherwise CUDA sees it too, where its driver is there",
    ("0",),
)
CUDA_OVERLAP = Setting(
    "CONVDISPATCH_CUDA_OVERLAP",
    TRUTH,
    True,
    "`0`: kernels on CUDA streams are placed only when the one before has ended (Hopper and later)",
    ("0",),
)
NATIVE = Setting(
    "CONVDISPATCH_NATIVE",
    TRUTH,
    True,
    "`0`: calls on PyTorch's tensors go by Python, not by the compiled call path",
    ("0",),
)
CHECK = Setting(
    "CONVDISPATCH_CHECK",
    TRUTH,
    False,
    "`1`: the first result of each inference form of a PyTorch graph is compared with PyTorch's own",
    ("1",),
)
LARGE_IMPORTS = Setting(
    "CONVDISPATCH_LARGE_IMPORTS",
    TRUTH,
    None,
    "`1`: NVIDIA's OpenCL may import more than 384 MiB of CUDA's memory at once; `0`: it may not. Else a "
    "child process tries it when it is first wanted, and the answer is stored "
    "([why](../design/cudnn.md#imports-that-end-the-process))",
    ("0",),
)
KERNEL_CACHE = Setting(
    "CONVDISPATCH_KERNEL_CACHE",
    FOLDER_OR_OFF,
    None,
    "the folder of what this machine decided and compiled ([caches](../design/caches.md)), at most 1 GiB; `off` stores "
    "nothing; else `kernels` in the user's cache folder",
    ("/var/cache/convdispatch",),
)
CACHE_LIMIT = Setting(
    "CONVDISPATCH_CACHE_LIMIT",
    BYTES,
    1 << 30,
    "bytes of host memory that programs, plans, calls, packed weights and nets' forms may take, of which "
    "further sizes of a layer take 48 MiB at most ([many sizes](first-call.md#many-sizes)); else `1G`",
    ("256M",),
)
TRACEBACK = Setting(
    "CONVDISPATCH_TRACEBACK",
    TRUTH,
    False,
    "`1` prints the whole traceback of each fault of a plugin, as `convdispatch --traceback` does",
    ("1",),
)
TIER = Setting(
    "CONVDISPATCH_TIER",
    _one_of("full", "ready"),
    None,
    "whether a first call under PyTorch waits for its specialised kernel: `full` waits, `ready` lets "
    "PyTorch's kernel answer meanwhile; else `ready` on CUDA, and elsewhere for further sizes of a layer. "
    "With `full` a net built on a CPU with nothing cached waits for all its forms too. `policy(tier=...)` "
    "goes before it",
    ("full",),
)
STRICT_NAN = Setting(
    "CONVDISPATCH_STRICT_NAN",
    TRUTH,
    False,
    "`1`: everywhere as under `policy(strict_nan=True)` ([what that promises](reproducibility.md#strict_nan))",
    ("1",),
)
BATCH_INVARIANT = Setting(
    "CONVDISPATCH_BATCH_INVARIANT",
    TRUTH,
    False,
    "`1`: everywhere as under `policy(batch_invariant=True)` "
    "([what that promises](reproducibility.md#batch_invariant))",
    ("1",),
)
TORCH_FIND_MS = Setting(
    "CONVDISPATCH_TORCH_FIND_MS",
    _number(0, 86_400_000, "milliseconds"),
    60_000.0,
    "milliseconds that a process may spend on measuring in the background while "
    "`torch.backends.cudnn.benchmark` is on; 60000",
    ("0",),
)
OCL_ICD_VENDORS = Setting(
    "OCL_ICD_VENDORS",
    TEXT,
    None,
    "read by the ICD loader: a folder of `.icd` files. When it is unset, convdispatch sets it for its own "
    "process, before the first platform query, to a folder that lists the system's vendors and those that pip"
    " installed",
    ("/etc/OpenCL/vendors",),
)
SETTINGS = {setting.name: setting for setting in list(globals().values()) if isinstance(setting, Setting)}
"""All settings by name, in the order of the documentation."""


def texts() -> dict[str, str]:
    """The variables that are set, as written: those of the table, and others whose names begin with CONVDISPATCH_."""
    by_name = {name: text for name, text in os.environ.items() if name in SETTINGS or name.startswith("CONVDISPATCH_")}
    return dict(sorted(by_name.items()))


def faults() -> dict[str, str]:
    """A message by name for each variable that is set and cannot be parsed, or whose name is not in the table."""
    messages = {}
    for name in texts():
        setting = SETTINGS.get(name)
        if setting is None:
            near = _alike(name, SETTINGS)
            messages[name] = f"no environment variable is named {name}" + (f"; did you mean {near[0]}?" if near else "")
            continue
        try:
            setting.value()
        except InvalidArgument as error:
            messages[name] = str(error)
    return messages


def check() -> None:
    """Raise InvalidArgument if a variable of the table is set to a text that cannot be parsed."""
    for setting in SETTINGS.values():
        setting.value()


@contextlib.contextmanager
def changed(values: dict[str, str | None]) -> Iterator[None]:
    """Inside the block these environment variables have these texts, or are unset (None), for child processes too."""
    outer_values = {name: os.environ.get(name) for name in values}
    _write(values)
    try:
        yield
    finally:
        _write(outer_values)


def _write(values: dict[str, str | None]) -> None:
    for name, text in values.items():
        os.environ.pop(name, None)
        if text is not None:
            os.environ[name] = text
