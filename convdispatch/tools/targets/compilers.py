"""Vendors' compilers without a device: what a kernel text uses on an architecture, or why it does not compile.

AMD's is clang with the vendor's device libraries (ROCm's own where installed), Intel's is ``ocloc``, NVIDIA's is clang
for PTX (libclc's built-in functions) and ``ptxas`` for machine code.
"""

from __future__ import annotations

import functools
import math
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...api.errors import BuildFailed, InvalidArgument
from ...device.cuda.ptx import dynamic_shared
from ...device.programs.kernels import driver_options
from .described import target_device

TIMEOUT_S = 120.0
"""Seconds after which a compiler is ended."""
UNKNOWN_ITEMS = 256
"""Work items of a work group, for the occupancy of a kernel that does not fix them."""


@dataclass(frozen=True)
class Kernel:
    """What a compiled kernel uses: registers of a work item (on Intel of a hardware thread), bytes of ``scratch``
    memory of a work item for spilled registers and arrays, bytes of ``local`` memory of a work group.

    ``items`` are the work items of a work group, 0 where the kernel does not fix them, ``occupancy`` the resident
    waves, warps or hardware threads over the most that a compute unit holds.
    """

    name: str
    registers: int
    scratch: int
    local: int
    items: int
    occupancy: float


@dataclass(frozen=True)
class Compiled:
    """The kernels of a text, or the compiler's first error."""

    error: str | None = None
    kernels: list[Kernel] = field(default_factory=list)
    late: bool = False
    """Whether the compiler was ended: on a machine that is less busy it may end in time."""


@dataclass(frozen=True)
class _Unit:
    """The resources of a compute unit, which work groups share: the most resident warps or hardware ``threads``, bytes
    of local memory, those that a work group may have of them, work items of a warp, 32-bit registers."""

    threads: int
    local: int
    group_local: int
    lanes: int = 32
    registers: int = 1 << 16

    def occupancy(self, items: int, local: int, registers: int = 0) -> float:
        """The share of the threads that work groups of so many items fill."""
        each = math.ceil((items or UNKNOWN_ITEMS) / self.lanes)
        groups = self.threads // each
        if registers:
            groups = min(groups, self.registers // (each * 32 * math.ceil(registers / 8) * 8))
        if local:
            groups = min(groups, self.local // (local + 1024))
        return groups * each / self.threads


_UNITS = {
    "sm_80": _Unit(64, 164 << 10, 163 << 10),
    "sm_90": _Unit(64, 228 << 10, 227 << 10),
    "sm_120": _Unit(48, 100 << 10, 99 << 10),
    "dg2": _Unit(128, 128 << 10, 64 << 10),
    "pvc": _Unit(64, 128 << 10, 128 << 10),
}
"""Streaming multiprocessors (CUDA C++ programming guide, table of compute capabilities) and Xe cores (Intel's oneAPI
GPU optimization guide)."""
_AMD_WAVES = {"gfx90a": 8, "gfx942": 8, "gfx1030": 16, "gfx1100": 16, "gfx1201": 16}
"""Waves that a SIMD holds at most."""
_AMD_ISA = {"gfx942": "940", "gfx1100": "1036", "gfx1201": "1036"}
"""The device library's instruction set that stands for one that it does not know, as ROCm 5.2's does not."""
_BITCODE = (Path("/opt/rocm/amdgcn/bitcode"), Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"))
_NVIDIA_LIBRARY = Path("/usr/lib/clc/nvptx64--nvidiacl.bc")
_CLANGS = ("/opt/rocm/llvm/bin/clang", *(f"clang-{version}" for version in range(22, 16, -1)), "clang")
_HIDDEN = "//@"
"""Marks a line of inline PTX for sm_90a, which sm_90 lacks: the nvidia plugin takes the mark away after compiling."""


def missing(target: str) -> str | None:
    """Why kernels cannot be compiled for the target on this machine, and what to install; None where they can."""
    if target in _AMD_WAVES:
        if _clang() is None or _bitcode() is None:
            return "needs clang and AMD's device libraries: apt-get install clang-19 rocm-device-libs"
    elif target in ("dg2", "pvc"):
        if shutil.which("ocloc") is None:
            return "needs Intel's ocloc: apt-get install intel-opencl-icd"
    elif _clang() is None or not _NVIDIA_LIBRARY.exists() or shutil.which("ptxas") is None:
        return "needs clang, libclc and CUDA's ptxas: apt-get install clang-19 libclc-19; pip install nvidia-cuda-nvcc"
    return None


def compiler(target: str) -> Callable[[str, Path], Compiled]:
    """The function that compiles a text for the target in an empty folder. Raises InvalidArgument without one."""
    reason = missing(target)
    if reason:
        raise InvalidArgument(f"{target} {reason}")
    compile_text = _amd if target in _AMD_WAVES else _intel if target in ("dg2", "pvc") else _nvidia

    def run(text: str, folder: Path) -> Compiled:
        try:
            return Compiled(kernels=compile_text(target, text, folder))
        except subprocess.TimeoutExpired as late:
            return Compiled(f"{Path(late.cmd[0]).name} did not end in {TIMEOUT_S:.0f} s", late=True)
        except BuildFailed as error:
            return Compiled(str(error))

    return run


@functools.lru_cache(maxsize=16)
def identity(target: str) -> str:
    """The versions of the compilers that the target takes: part of the key of what they compiled."""
    if target in ("dg2", "pvc"):
        with tempfile.TemporaryDirectory() as folder:
            _run(["ocloc", "query", "OCL_DRIVER_VERSION"], Path(folder))
            version = (Path(folder) / "OCL_DRIVER_VERSION").read_text().strip()
            return " ".join((f"Intel's driver {version}", *driver_options(target_device(target))))
    tools = ([] if target in _AMD_WAVES else ["ptxas"]) + [_clang() or ""]
    texts = [_run([tool, "--version"], Path.cwd()) for tool in tools]
    return "; ".join(next(line for line in text.splitlines() if re.search(r"version|release", line)) for text in texts)


def _clang() -> str | None:
    return next((path for path in map(shutil.which, _CLANGS) if path), None)


def _bitcode() -> Path | None:
    return next((folder for folder in _BITCODE if (folder / "opencl.bc").exists()), None)


def _run(command: Sequence[str | Path], folder: Path) -> str:
    """The output of a compiler. Raises BuildFailed with its first error, and TimeoutExpired.

    The compiler does not hear of Ctrl-C: it would end with an error that is none of the text's.
    """
    process = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
        start_new_session=True,
    )  # fmt: skip
    output = process.stdout + process.stderr
    if process.returncode < 0:
        raise BuildFailed(f"{Path(command[0]).name} ended by {signal.Signals(-process.returncode).name}", output)
    if process.returncode:
        lines = [line for line in output.splitlines() if re.search(r"\berror\b|fatal", line, re.IGNORECASE)]
        raise BuildFailed(f"{Path(command[0]).name}: {(lines or [output or 'no message'])[0].strip()[:200]}", output)
    return output


def _frontend(*options: str | Path) -> list[str | Path]:
    """Clang's command line for ``kernel.cl``, as OpenCL's drivers call it, with ``-O3`` and without warnings."""
    plain = ["-x", "cl", "-cl-std=CL1.2", "-O3", "-w", "-nogpulib", "-S", "kernel.cl", "-o", "kernel.s"]
    return [_clang() or "clang", *plain, *options]


def _linked(*libraries: Path) -> list[str | Path]:
    return [part for path in libraries for part in ("-Xclang", "-mlink-builtin-bitcode", "-Xclang", path)]


def _amd(target: str, text: str, folder: Path) -> list[Kernel]:
    bitcode = _bitcode()
    assert bitcode is not None
    isa = target.removeprefix("gfx")
    if not (bitcode / f"oclc_isa_version_{isa}.bc").exists():
        isa = _AMD_ISA[target]
    wave64 = "on" if target.startswith("gfx9") else "off"
    settings = ("correctly_rounded_sqrt_off", "daz_opt_off", "finite_only_off", "unsafe_math_off", "abi_version_500",
               f"wavefrontsize64_{wave64}", f"isa_version_{isa}")  # fmt: skip
    libraries = [bitcode / f"{name}.bc" for name in ("opencl", "ocml", "ockl")]
    libraries += [bitcode / f"oclc_{name}.bc" for name in settings]
    (folder / "kernel.cl").write_text(text)
    _run(_frontend("--target=amdgcn-amd-amdhsa", f"-mcpu={target}", *_linked(*libraries)), folder)
    assembly = (folder / "kernel.s").read_text()
    waves = [
        int(match[1])
        for part in assembly.split("; Kernel info:")[1:]
        if (match := re.search(r"^; Occupancy: (\d+)", part, re.MULTILINE))
    ]
    kernels = _yaml(assembly.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0])["amdhsa.kernels"]
    if len(waves) != len(kernels):
        raise BuildFailed(f"clang names {len(kernels)} kernels and {len(waves)} occupancies", assembly)
    return [
        Kernel(
            each[".name"],
            each[".vgpr_count"],
            each[".private_segment_fixed_size"],
            each[".group_segment_fixed_size"],
            math.prod(each.get(".reqd_workgroup_size", [0])),
            count / _AMD_WAVES[target],
        )
        for each, count in zip(kernels, waves)
    ]


def _intel(target: str, text: str, folder: Path) -> list[Kernel]:
    (folder / "kernel.cl").write_text(text)
    options = " ".join(("-cl-std=CL1.2", *driver_options(target_device(target))))
    _run(["ocloc", "compile", "-file", "kernel.cl", "-device", target, "-options", options,
          "-internal_options", "-ze-allow-zebin", "-output", "kernel", "-output_no_suffix"], folder)  # fmt: skip
    binary = next(folder.glob("kernel*.bin"), folder / "kernel").read_bytes()
    begin = binary.find(b"---\nversion:")
    if begin < 0:
        raise BuildFailed("ocloc's binary does not say what its kernels use", "")
    described = _yaml(binary[begin : binary.index(b"\n...", begin)].decode())
    limits, kernels = _UNITS[target], []
    for kernel in described["kernels"]:
        values, buffers = kernel["execution_env"], kernel.get("per_thread_memory_buffers", [])
        lanes = values["simd_size"]
        # Private memory is sized by work item, scratch memory by hardware thread.
        scratch = sum(each["size"] if each.get("is_simt_thread") else each["size"] // lanes for each in buffers)
        items, local = math.prod(values.get("required_work_group_size", [0])), values.get("slm_size", 0)
        threads = limits.threads if values["grf_count"] <= 128 else limits.threads // 2
        occupancy = _Unit(threads, limits.local, limits.group_local, lanes).occupancy(items, local) * threads
        kernels.append(Kernel(kernel["name"], values["grf_count"], scratch, local, items, occupancy / limits.threads))
    return kernels


def _nvidia(target: str, text: str, folder: Path) -> list[Kernel]:
    # Clang 19 knows no architecture beyond sm_90; later architectures run the PTX of sm_90.
    old = "sm_90" if int(target.removeprefix("sm_")) > 90 else target
    options = ["--target=nvptx64-nvidia-nvcl", f"-march={old}"]
    # NVIDIA's compiler knows asm, inlines every such function, and has no half arithmetic.
    inline = "-Dinline=static inline __attribute__((always_inline))"
    dialect = ["-Dasm=__asm__", inline, "-Xclang", "-cl-ext=-cl_khr_fp16"]
    (folder / "kernel.cl").write_text(text)
    _run(_frontend(*options, *dialect, "-emit-llvm", *_linked(_NVIDIA_LIBRARY)), folder)
    code = (folder / "kernel.s").read_text()
    clang = [_clang() or "clang", "-x", "ir", "kernel.s", "-O3", "-Xclang", "-disable-llvm-passes", "-w", "-S"]
    _run([*clang, *options, "-o", "kernel.ptx"], folder)
    ptx, arch = (folder / "kernel.ptx").read_text(), target
    if _HIDDEN in ptx:
        ptx, arch = ptx.replace(_HIDDEN, "").replace(".target sm_90", ".target sm_90a"), "sm_90a"
    sized = dynamic_shared(ptx)
    ptx, launched = (ptx, dict[str, int]()) if sized is None else sized
    # NVIDIA's own compiler writes a work group's size into PTX, by which ptxas limits registers; clang does not.
    fixed = re.findall(r"^define .*? @(\w+)\(.*!reqd_work_group_size !(\d+)", code, re.MULTILINE)
    sizes = {name: [int(size) for size in re.findall(r"i32 (\d+)", _metadata(code, number))] for name, number in fixed}
    for name, size in sizes.items():
        launch = f".reqntid {', '.join(map(str, size))}"
        ptx = re.sub(rf"(\.entry {name}\([^)]*\))", rf"\1\n{launch}", ptx)
    (folder / "kernel.ptx").write_text(ptx)
    output = _run(["ptxas", f"-arch={arch}", "-v", "kernel.ptx", "-o", "kernel.cubin"], folder)
    if loss := re.search(r"Potential Performance Loss: (.*)", output):  # e.g. wgmma instructions run in turn
        raise BuildFailed(f"ptxas: {loss[1]}", output)
    kernels = []
    for part in output.split("Compiling entry function '")[1:]:
        name, spilled = part.partition("'")[0], re.search(r"(\d+) bytes stack frame", part)
        registers, shared = re.search(r"Used (\d+) registers", part), re.search(r"(\d+) bytes smem", part)
        if spilled is None or registers is None:
            raise BuildFailed(f"ptxas does not say what {name} uses", output)
        local = (int(shared[1]) if shared else 0) + launched.get(name, 0)
        items, used = math.prod(sizes.get(name, [0])), int(registers[1])
        occupancy = _UNITS[target].occupancy(items, local, used)
        kernels.append(Kernel(name, used, int(spilled[1]), local, items, occupancy))
    return kernels


def _metadata(code: str, number: str) -> str:
    """The text of the metadata node with this number in LLVM's assembly, or an empty text."""
    match = re.search(rf"^!{number} = (.*)$", code, re.MULTILINE)
    return match[1] if match else ""


def excess(target: str, kernel: Kernel, most_items: int, local: int) -> str | None:
    """What a kernel uses beyond the device's limits, in words: work items of a group, or bytes of local memory."""
    limit = _UNITS[target].group_local if target in _UNITS else local
    if kernel.items > most_items:
        return f"{kernel.name} has {kernel.items} work items a group, at most {most_items}"
    return f"{kernel.name} has {kernel.local} bytes of local memory, at most {limit}" if kernel.local > limit else None


def _yaml(text: str) -> Any:
    import yaml

    return yaml.load(text.strip(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
