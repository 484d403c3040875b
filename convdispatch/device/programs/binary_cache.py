"""Compiled kernels on disk: a file for each text, device and driver.

PoCL, which keeps kernels itself, is left to it. NVIDIA's driver does so too, but does not say whether it has a text; a
file says it, and what only loads needs no compilers at hand. It holds PTX, and the driver keeps what it makes of that.

Files are written beside their place and renamed into it, and none is ever locked: processes that compile at once do
not wait for each other, and one that is killed leaves nothing that the next would wait for (pyopencl's cache locks a
folder, and a lock left behind costs every later build a minute). A file that is damaged is compiled anew.

``CONVDISPATCH_KERNEL_CACHE`` names another folder; ``off`` keeps nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from ...api import settings
from ...api.errors import BuildFailed
from ...api.policy import forbid_when_frozen
from .. import background, plainfile
from ..cache import artifact_store
from ..commands.interface import thread
from ..planning_lock import unlocked
from ..startup_profile import phase
from .compile_pool import assembled_in_child, compiled_in_child
from .ptx_program import PtxProgram, ptx_program

if TYPE_CHECKING:
    import pyopencl as cl

_FORM = b"convdispatch kernel 1\n"
_MOST = 1 << 30
"""The most bytes of all cached files; beyond, the least recently used ones are removed."""
_SLOW = 0.05
"""Seconds after which a build is worth a thread of its own, also of a binary, which a driver may compile further."""
_at_once = threading.BoundedSemaphore(8)
"""Limits concurrent builds in this process to 8: one with fourteen ended without a message (NVIDIA's driver 580.159,
seen once)."""
_intel_compiler = background.Threads(1, "convdispatch-intel-compiler", stay=True)
"""Runs the compiler of Intel's runtime for CPUs, which holds 33 MB for each thread that ever compiled (version
2026.22). Several threads compile hardly sooner: a cold build of ResNet-50 takes 5.4 s with one, two or any number."""
_PATIENCE = 5.0
"""Seconds after which a thread compiles itself, because a very long compilation is in its way."""
_sweep_draws = random.Random()
"""Draws when a write sweeps, apart from Python's own random numbers, which are the user's program's."""
_SWEEPS = 64
"""The number of sweeps over all files while as many bytes are written as may be cached."""


def compiled(context: cl.Context, text: str | bytes, options: Sequence[str]) -> cl.Program | PtxProgram:
    """The program of a text, from a plan pack, from its cache file or newly compiled; or the program of a binary.

    Raises BuildFailed with the compiler's log, and Frozen inside ``frozen()`` for what is not carried.
    """
    import pyopencl as cl

    if isinstance(text, bytes):
        artifact_store.forbid_unstored("load a kernel", context.devices[0])
        return ptx_program(context.devices[0], text, lambda: _loaded(context, text, options)) or _loaded(
            context, text, options
        )
    if len(context.devices) != 1 or not artifact_store.wanted(context.devices[0]):
        forbid_when_frozen("compile a kernel")
        return _compiled(context, text, options)
    device, key = context.devices[0], artifact_store.key_of(text, *options)
    found = artifact_store.find("programs", key, device)
    if found is not None:
        with contextlib.suppress(BuildFailed, cl.Error), phase("load"):
            return _stored(context, found[0], options)
    forbid_when_frozen("compile a kernel")
    program = _compiled(context, text, options)
    with contextlib.suppress(cl.Error):
        artifact_store.note("programs", key, lambda: program.get_info(cl.program_info.BINARIES)[0], device)
    return program


def _loaded(context: cl.Context, binary: bytes, options: Sequence[str]) -> cl.Program:
    """A binary that a solver made, loaded by the driver. Raises BuildFailed."""
    import pyopencl as cl

    assembled_in_child(context, binary, options)
    try:
        with phase("load"):
            return built(context, options, context.devices, [binary])
    except cl.LogicError as error:
        raise BuildFailed(f"a binary is none that the device takes: {error}", str(error)) from error


def _stored(context: cl.Context, binary: bytes, options: Sequence[str]) -> cl.Program | PtxProgram:
    """A program from a cached binary, loaded now, or when OpenCL first launches it."""

    def build() -> cl.Program:
        return built(context, options, context.devices, [binary])

    return ptx_program(context.devices[0], binary, build) or build()


def _compiled(context: cl.Context, text: str, options: Sequence[str]) -> cl.Program | PtxProgram:
    """The program from its file, or newly compiled."""
    import pyopencl as cl

    place = folder()
    if place is None or len(context.devices) != 1 or _keeps_kernels(context.devices[0]):
        return _from_text(context, text, options)
    path = place / _name(context.devices[0], text, options)
    binary = read_file(path, _FORM)
    if binary is not None:
        with contextlib.suppress(BuildFailed, cl.Error), phase("load"):
            return _stored(context, binary, options)
    program = _from_text(context, text, options)
    with contextlib.suppress(cl.Error):
        write_file(path, _FORM, program.get_info(cl.program_info.BINARIES)[0])
    return program


def _keeps_kernels(device: cl.Device) -> bool:
    """Whether the driver's own cache is enough; it is not on NVIDIA, whose driver does not tell what it has cached."""
    from pyopencl.characterize import has_src_build_cache

    return not device.platform.name.startswith("NVIDIA") and bool(has_src_build_cache(device))


def _from_text(context: cl.Context, text: str, options: Sequence[str]) -> cl.Program | PtxProgram:
    thread.compiled += 1
    program = compiled_in_child(context, text, options, built, lambda binary: _stored(context, binary, options))
    if program is not None:
        return program
    with phase("compile"):
        program = built(context, options, text)
        return _without_compiler(context, program, options)


def _without_compiler(context: cl.Context, program: cl.Program, options: Sequence[str]) -> cl.Program:
    """A program of Intel's runtime for CPUs, loaded from its binary: it then takes half of the memory, 0.8 MB for 2,
    and loading takes 2 ms."""
    import pyopencl as cl

    if len(context.devices) != 1 or not context.devices[0].platform.name.startswith("Intel"):
        return program
    try:
        return built(context, options, context.devices, program.get_info(cl.program_info.BINARIES))
    except (BuildFailed, cl.Error):
        return program


def built(context: cl.Context, options: Sequence[str], *source: Any) -> cl.Program:
    """The program built from a text, or from devices and binaries, without warnings.

    pyopencl's own ``build`` warns of all that a compiler says; to silence it would take the process' warning filters,
    which belong to the caller. What its ``build`` calls says nothing.
    """
    import pyopencl as cl

    made = cl._cl._Program(context, *source)
    program = cl.Program(made)
    raw, _ = program._process_build_options(context, list(options))
    start = time.perf_counter()
    build = functools.partial(made._build, options=raw, devices=None)
    try:
        with unlocked():
            if isinstance(source[0], str) and context.devices[0].platform.name.startswith("Intel"):
                from concurrent.futures import wait

                compiling = _intel_compiler.submit(build)
                wait([compiling], _PATIENCE)
                build() if compiling.cancel() else compiling.result()
            else:
                with _at_once:
                    start = time.perf_counter()
                    build()
    except cl.MemoryError:
        raise
    except cl.Error as error:
        logs = [program.get_build_info(device, cl.program_build_info.LOG) or "" for device in context.devices]
        log = "\n".join([str(error), *logs])
        first = next((line for line in log.splitlines() if "error" in line.lower()), str(error))
        devices = ", ".join(device.name.strip() for device in context.devices)
        raise BuildFailed(f"a kernel did not compile for {devices}: {first.strip()}", log) from error
    thread.slow += time.perf_counter() - start > _SLOW
    return program


def folder() -> Path | None:
    """The folder of the cached files; None where nothing is cached."""
    chosen = settings.KERNEL_CACHE.value()
    if chosen == settings.OFF:
        return None
    return chosen or _default_folder(os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME"))


@functools.lru_cache(maxsize=4)
def _default_folder(*_: str | None) -> Path:
    """The user's cache folder for these environment variables, cached because computing it takes as long as reading a
    small file."""
    return Path(platformdirs.user_cache_dir("convdispatch")) / "kernels"


def _name(device: cl.Device, text: str, options: Sequence[str]) -> str:
    return artifact_store.key_of(text, *options, *artifact_store.identity(device).values())[:40] + ".bin"


def read_file(path: Path, form: bytes) -> bytes | None:
    """The content of a file that ``write_file`` wrote; None where there is none, or none of this form that is whole."""
    try:
        content = plainfile.read_bytes(path)
    except OSError:
        return None
    head = len(form)
    found = content[head + 32 :]
    if content[:head] != form or hashlib.sha256(found).digest() != content[head : head + 32]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the file's time is that of its last use, by which _sweep chooses
    return found


def write_file(path: Path, form: bytes, content: bytes) -> None:
    """Write a cache file; where the folder cannot be written or the disk is full, the next process compiles again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, beside = tempfile.mkstemp(suffix=".part", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(form + hashlib.sha256(content).digest() + content)
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink()
            raise
        if _sweep_draws.random() * _MOST < len(content) * _SWEEPS:
            _sweep(path.parent)


def _sweep(where: Path) -> None:
    files = []
    with os.scandir(where) as entries:  # Path objects of tens of thousands of files would take most of the time
        for entry in entries:
            with contextlib.suppress(OSError):
                found = entry.stat()
                files.append((found.st_mtime, found.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= _MOST:
            return
        with contextlib.suppress(OSError):
            Path(path).unlink()
            total -= size
