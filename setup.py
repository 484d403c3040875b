"""Builds the optional native call path where a compiler and PyTorch's headers are, and makes README's links absolute;
all else is pyproject.toml's."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_FOLDER = Path("convdispatch/device/native")
_native: dict[str, Any] = runpy.run_path(str(_FOLDER / "build.py"))
_NAME = "convdispatch.device.native._launcher"


class Build(build_ext):
    """By the module's own command; where that fails, there is none, and everything works without."""

    def build_extension(self, extension: Extension) -> None:
        folder = Path(self.get_ext_fullpath(extension.name)).parent
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _native["build"](folder)
        except _native["Unbuildable"] as why:
            print(f"no native call path: {why}", file=sys.stderr)


def extensions() -> list[Extension]:
    """The module, where it can be built: without it the wheel is for every machine."""
    try:
        _native["command"](Path(_native["NAME"]))
    except _native["Unbuildable"] as why:
        print(f"no native call path: {why}", file=sys.stderr)
        return []
    return [Extension(_NAME, [str(_FOLDER / "launcher.cpp")], py_limited_api=True, optional=True)]


def description() -> str:
    """README.md for a package index, where links to files of this repository lead to it."""
    urls = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!\w+:|#)", f"]({urls['Repository']}/blob/main/", text)


found = extensions()
setup(
    ext_modules=found,
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if found else {},
    long_description=description(),
    long_description_content_type="text/markdown",
)
