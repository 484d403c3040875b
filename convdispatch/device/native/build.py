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
    """Why there can be no native call path here."""


def _torch() -> Path:
    """PyTorch's folder, also from a build that pip isolates, where it cannot be imported. Raises Unbuildable."""
    spec = importlib.util.find_spec("torch")
    places = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    places += [Path(sysconfig.get_path(kind)) / "torch" for kind in ("platlib", "purelib")]
    for place in places:
        if (place / _HEADER).is_file():
            return place
    raise Unbuildable(f"no PyTorch with {_HEADER} (2.11 or later) in {', '.join(map(str, places))}")


def sources() -> str:
    """A digest of the module's sources. The module has it as its docstring, so that one built from other sources is
    noticed."""
    found = hashlib.sha256()
    for each in sorted(_HERE.iterdir()):
        if each.suffix in (".h", ".cpp"):
            found.update(each.read_bytes())
    return found.hexdigest()


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
    aside = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(command(aside), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unbuildable(f"the compiler failed:\n{done.stderr}")
    aside.replace(target)  # an atomic rename, because another process may be loading the module
    return target


def main() -> int:
    """Build the module; returns exit status 1 where it cannot be built."""
    try:
        print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE))
    except Unbuildable as why:
        print(f"no native call path: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
