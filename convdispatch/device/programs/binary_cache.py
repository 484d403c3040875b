"""Compiled programs: from a plan pack, from the store, or compiled now.

PoCL stores its kernels itself. NVIDIA's driver does too, but does not report whether it has a text; with a file in the
store it is known that loading is enough, and no compilers are started. The file holds PTX, whose machine code
``cuda.machine_code`` stores.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from ...api.errors import BuildFailed
from ...api.policy import forbid_when_frozen
from .. import background
from ..background import unlocked
from ..cache import artifact_store
from ..cache.keys import identity, key_of
from ..cache.store import PROGRAMS
from ..commands.interface import thread
from ..startup_profile import phase
from .compile_pool import assembled_in_child, compiled_in_child
from .ptx_program import PtxProgram, ptx_program

_KERNEL_FILE = re.compile(r'^#line 1 "([^"]+)"', re.MULTILINE)
"""The directive by which a text names the file that its kernels are from."""
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


def compiled(context: cl.Context, text: str | bytes, options: Sequence[str]) -> cl.Program | PtxProgram:
    """The program of a text, from a plan pack, from the store or newly compiled; or the program of a binary.

    Raises BuildFailed with the compiler's log, and Frozen inside ``frozen()`` unless a plan pack has the program.
    """
    if isinstance(text, bytes):
        artifact_store.forbid_unstored("load a kernel", context.devices[0])
        return ptx_program(context.devices[0], text, lambda: _loaded(context, text, options)) or _loaded(
            context, text, options
        )
    if len(context.devices) != 1:
        forbid_when_frozen("compile a kernel")
        return _from_text(context, text, options)
    device, pack_key = context.devices[0], key_of(text, *options)
    packed = artifact_store.find("programs", pack_key, device)
    program = packed and _from_binary(context, packed[0], options)
    if program:
        return program
    forbid_when_frozen("compile a kernel")
    key = None if _keeps_kernels(device) else key_of(pack_key, *identity(device).values())
    binary = key and PROGRAMS.get(key)
    program = binary and _from_binary(context, binary, options)
    is_new = not program
    program = program or _from_text(context, text, options)
    if (is_new and key and PROGRAMS.folder()) or artifact_store.gathers():
        with contextlib.suppress(cl.Error):
            binary = program.get_info(cl.program_info.BINARIES)[0]
            if is_new and key:
                kernel_file = _KERNEL_FILE.search(text)
                PROGRAMS.put(key, binary, f"{kernel_file[1] if kernel_file else 'a text'} for {device.name.strip()}")
            artifact_store.note("programs", pack_key, lambda: binary, device)
    return program


def _from_binary(context: cl.Context, binary: bytes, options: Sequence[str]) -> cl.Program | PtxProgram | None:
    """The program of a cached binary; None if the driver refuses it."""
    with contextlib.suppress(BuildFailed, cl.Error), phase("load"):
        return _stored(context, binary, options)
    return None


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
    quiet = ["-w"] if context.devices[0].platform.name.startswith("NVIDIA") else []  # it counts them on standard error
    raw_options, _ = program._process_build_options(context, [*options, *quiet])
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
