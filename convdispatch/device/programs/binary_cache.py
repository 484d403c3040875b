"""Compiled kernels on disk: a file for each text, device and driver.

PoCL caches its kernels itself. NVIDIA's driver does too, but does not report whether it has a text; with a file it is
known that loading is enough, and no compilers are started. The file holds PTX, whose machine code the driver caches.

Files are written under another name and then renamed, and never locked: concurrent processes do not wait for each
other, and a killed process leaves no lock (pyopencl's cache locks a folder, and an abandoned lock costs every later
build a minute). The text of a damaged file is compiled again.

``CONVDISPATCH_KERNEL_CACHE`` names another folder; ``off`` caches nothing.
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
from typing import Any

import platformdirs
import pyopencl as cl

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

_FILE_HEADER = b"convdispatch kernel 1\n"
_MAX_CACHE_BYTES = 1 << 30
"""The most bytes of all cached files; beyond, the least recently used files are removed."""
_SLOW_BUILD_S = 0.05
"""Seconds of a slow build, which justifies parallel builds; of a binary too, which a driver may compile further."""
_concurrent_builds = threading.BoundedSemaphore(8)
"""Limits concurrent builds in this process to 8: a process with fourteen ended without a message (NVIDIA's driver
580.159, seen once)."""
_intel_compiler = background.Threads(1, "convdispatch-intel-compiler", stay=True)
"""Runs the compiler of Intel's runtime for CPUs, which holds 33 MB for each thread that ever compiled (version
2026.22). Several threads compile hardly sooner: a cold build of ResNet-50 takes 5.4 s with one, two or any number."""
_COMPILER_WAIT_S = 5.0
"""Seconds that a thread waits for Intel's compiler thread, which may be busy, before it compiles itself."""
_sweep_draws = random.Random()
"""Decides which writes sweep; separate from Python's global random numbers, which belong to the user's program."""
_SWEEPS = 64
"""The mean number of sweeps over all files while ``_MAX_CACHE_BYTES`` bytes are written."""


def compiled(context: cl.Context, text: str | bytes, options: Sequence[str]) -> cl.Program | PtxProgram:
    """The program of a text, from a plan pack, from its cache file or newly compiled; or the program of a binary.

    Raises BuildFailed with the compiler's log, and Frozen inside ``frozen()`` unless a plan pack has the program.
    """
    if isinstance(text, bytes):
        artifact_store.forbid_unstored("load a kernel", context.devices[0])
        return ptx_program(context.devices[0], text, lambda: _loaded(context, text, options)) or _loaded(
            context, text, options
        )
    if len(context.devices) != 1 or not artifact_store.wanted(context.devices[0]):
        forbid_when_frozen("compile a kernel")
        return _compiled(context, text, options)
    device, key = context.devices[0], artifact_store.key_of(text, *options)
    stored = artifact_store.find("programs", key, device)
    if stored is not None:
        with contextlib.suppress(BuildFailed, cl.Error), phase("load"):
            return _stored(context, stored[0], options)
    forbid_when_frozen("compile a kernel")
    program = _compiled(context, text, options)
    with contextlib.suppress(cl.Error):
        artifact_store.note("programs", key, lambda: program.get_info(cl.program_info.BINARIES)[0], device)
    return program


def _loaded(context: cl.Context, binary: bytes, options: Sequence[str]) -> cl.Program:
    """The program of a binary that a solver assembled, loaded by the driver. Raises BuildFailed."""
    assembled_in_child(context, binary, options)
    try:
        with phase("load"):
            return built(context, options, context.devices, [binary])
    except cl.LogicError as error:
        raise BuildFailed(f"a binary is none that the device takes: {error}", str(error)) from error


def _stored(context: cl.Context, binary: bytes, options: Sequence[str]) -> cl.Program | PtxProgram:
    """The program of a cached binary, loaded now, or when OpenCL first launches it."""

    def build() -> cl.Program:
        return built(context, options, context.devices, [binary])

    return ptx_program(context.devices[0], binary, build) or build()


def _compiled(context: cl.Context, text: str, options: Sequence[str]) -> cl.Program | PtxProgram:
    """The program from its file, or newly compiled."""
    cache_folder = folder()
    if cache_folder is None or len(context.devices) != 1 or _keeps_kernels(context.devices[0]):
        return _from_text(context, text, options)
    path = cache_folder / _name(context.devices[0], text, options)
    binary = read_file(path, _FILE_HEADER)
    if binary is not None:
        with contextlib.suppress(BuildFailed, cl.Error), phase("load"):
            return _stored(context, binary, options)
    program = _from_text(context, text, options)
    with contextlib.suppress(cl.Error):
        write_file(path, _FILE_HEADER, program.get_info(cl.program_info.BINARIES)[0])
    return program


def _keeps_kernels(device: cl.Device) -> bool:
    """Whether the driver's own cache is enough; NVIDIA's is not, because it does not report what it has cached."""
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
    """A program of Intel's runtime for CPUs is reloaded from its binary: it then takes 0.8 MB of memory, not 2, and
    loading takes 2 ms."""
    if len(context.devices) != 1 or not context.devices[0].platform.name.startswith("Intel"):
        return program
    try:
        return built(context, options, context.devices, program.get_info(cl.program_info.BINARIES))
    except (BuildFailed, cl.Error):
        return program


def built(context: cl.Context, options: Sequence[str], *source: Any) -> cl.Program:
    """The program built from a text, or from devices and binaries, without warnings.

    pyopencl's own ``build`` warns about everything that a compiler prints; silencing it would change the process's
    warning filters, which belong to the caller. The function that its ``build`` calls does not warn.
    """
    raw_program = cl._cl._Program(context, *source)
    program = cl.Program(raw_program)
    raw_options, _ = program._process_build_options(context, list(options))
    start = time.perf_counter()
    build = functools.partial(raw_program._build, options=raw_options, devices=None)
    try:
        with unlocked():
            if isinstance(source[0], str) and context.devices[0].platform.name.startswith("Intel"):
                from concurrent.futures import wait

                compiling = _intel_compiler.submit(build)
                wait([compiling], _COMPILER_WAIT_S)
                build() if compiling.cancel() else compiling.result()
            else:
                with _concurrent_builds:
                    start = time.perf_counter()
                    build()
    except cl.MemoryError:
        raise
    except cl.Error as error:
        logs = [program.get_build_info(device, cl.program_build_info.LOG) or "" for device in context.devices]
        log = "\n".join([str(error), *logs])
        error_line = next((line for line in log.splitlines() if "error" in line.lower()), str(error))
        devices = ", ".join(device.name.strip() for device in context.devices)
        raise BuildFailed(f"a kernel did not compile for {devices}: {error_line.strip()}", log) from error
    thread.slow += time.perf_counter() - start > _SLOW_BUILD_S
    return program


def folder() -> Path | None:
    """The folder of the cached files; None where nothing is cached."""
    chosen = settings.KERNEL_CACHE.value()
    if chosen == settings.OFF:
        return None
    return chosen or _default_folder(os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME"))


@functools.lru_cache(maxsize=4)
def _default_folder(*_: str | None) -> Path:
    """The user's cache folder for these environment variables, cached because that is as slow as reading a file."""
    return Path(platformdirs.user_cache_dir("convdispatch")) / "kernels"


def _name(device: cl.Device, text: str, options: Sequence[str]) -> str:
    return artifact_store.key_of(text, *options, *artifact_store.identity(device).values())[:40] + ".bin"


def read_file(path: Path, form: bytes) -> bytes | None:
    """The content of a file that ``write_file`` wrote; None if it is missing, damaged or of another form."""
    try:
        content = plainfile.read_bytes(path)
    except OSError:
        return None
    head = len(form)
    body = content[head + 32 :]
    if content[:head] != form or hashlib.sha256(body).digest() != content[head : head + 32]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the file's time is that of its last use, by which _sweep removes files
    return body


def write_file(path: Path, form: bytes, content: bytes) -> None:
    """Write a cache file; does nothing if the folder cannot be written or the disk is full."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(suffix=".part", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(form + hashlib.sha256(content).digest() + content)
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink()
            raise
        if _sweep_draws.random() * _MAX_CACHE_BYTES < len(content) * _SWEEPS:
            _sweep(path.parent)


def _sweep(folder: Path) -> None:
    files = []
    with os.scandir(folder) as entries:  # Path objects of tens of thousands of files would take most of the time
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= _MAX_CACHE_BYTES:
            return
        with contextlib.suppress(OSError):
            Path(path).unlink()
            total -= size
