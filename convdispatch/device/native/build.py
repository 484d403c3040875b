"""Builds the native call path in place: ``python -m convdispatch.device.native.build [FOLDER]``.

Needs a C++17 compiler, Python's headers and PyTorch's, which its wheel brings. Nothing of CUDA is needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "_launcher.abi3.so"
_HERE = Path(__file__).resolve().parent
_HEADER = Path("include/torch/csrc/stable/c/shim.h")


class Unbuildable(Exception):
    """The native call path cannot be built here; the message is the reason."""


def _torch() -> Path:
    """PyTorch's folder, found even in pip's isolated builds, where it cannot be imported. Raises Unbuildable."""
    spec = importlib.util.find_spec("torch")
    folders = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    folders += [Path(sysconfig.get_path(kind)) / "torch" for kind in ("platlib", "purelib")]
    for folder in folders:
        if (folder / _HEADER).is_file():
            return folder
    raise Unbuildable(f"no PyTorch with {_HEADER} (2.11 or later) in {', '.join(map(str, folders))}")


def sources() -> str:
    """A digest of the module's sources. The built module has it as its docstring, so that a module built from other
    sources is noticed."""
    digest = hashlib.sha256()
    for file in sorted(_HERE.iterdir()):
        if file.suffix in (".h", ".cpp"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def command(target: Path) -> list[str]:
    """The compiler's command line. Raises Unbuildable."""
    if sys.platform != "linux":
        raise Unbuildable(f"linux only, got {sys.platform}")
    compiler = shutil.which(os.environ.get("CXX", "").split(" ")[0] or "c++") or shutil.which("g++")
    if compiler is None:
        raise Unbuildable("no C++ compiler (c++, g++, or what CXX names)")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        raise Unbuildable(f"no Python.h in {headers}: install Python's development files")
    torch = _torch()
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    flags.append(f'-DSOURCES="{sources()}"')
    # The module has no rpath to PyTorch's libraries: it uses those that PyTorch has already loaded.
    libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-ldl"]
    includes = [f"-I{torch / 'include'}", f"-I{headers}"]
    return [compiler, *flags, *includes, str(_HERE / "launcher.cpp"), "-o", str(target), *libraries]


def build(folder: Path = _HERE) -> Path:
    """Compile the module into a folder; returns its path. Raises Unbuildable with the compiler's message."""
    target = folder / NAME
    draft = target.with_suffix(f".{os.getpid()}")
    result = subprocess.run(command(draft), capture_output=True, text=True, check=False)
    if result.returncode:
        raise Unbuildable(f"the compiler failed:\n{result.stderr}")
    draft.replace(target)  # an atomic rename, because another process may be loading the module
    return target


def main() -> int:
    """Build the module; returns exit status 1 where it cannot be built."""
    try:
        print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE))
    except Unbuildable as error:
        print(f"no native call path: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
