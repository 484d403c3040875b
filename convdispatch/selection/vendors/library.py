"""Loads a vendor's library and checks its table of solvers; any fault is a PluginError before a solver is queried."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...api.errors import PluginError
from ...api.hookspecs import hookimpl
from ...api.solver import EPILOGUE
from . import abi
from .discovery import HEADER, library_of
from .solver import VendorSolver

VERSION = abi.CODES["plugin_version"]
MAX_SOLVERS = 1000
"""The most solvers of a library; a table with more is considered damaged."""
_BITS = {"places": ("host", "opencl", "cuda"), "promises": abi.PROMISES, "fuses": EPILOGUE}
"""The names of the bits in each bit field of a solver."""


class Library:
    """A loaded library as a plugin, with the functions that a plugin's Python module has."""

    def __init__(self, file: Path) -> None:
        path = library_of(file)
        try:
            handle = ctypes.CDLL(path)
        except OSError as error:
            raise PluginError(f"the library does not load: {error}") from None
        get_plugin = getattr(handle, "convdispatch_get_plugin", None)
        if get_plugin is None:
            raise PluginError(f"{path} exports no function convdispatch_get_plugin, which {HEADER.name} declares")
        get_plugin.restype, get_plugin.argtypes = ctypes.c_void_p, (ctypes.c_uint32,)
        address = get_plugin(VERSION)
        self._version = abi.Plugin.from_address(address).version if address else 0
        if not 1 <= self._version <= VERSION:
            got = f"a table of version {self._version}" if address else "no table"
            raise PluginError(f"convdispatch_get_plugin must return a table of version 1 to {VERSION}, got {got}")
        table = self._checked(abi.Plugin.from_address(address), "table")
        self.name = (table.name or b"").decode("utf-8", "replace")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            raise PluginError(f"its name must be 1 to 64 letters, digits, _ and -, got {self.name[:100]!r}")
        words = [(text or b"")[:64].decode("utf-8", "replace") for text in (table.vendor, table.release)]
        self.__version__ = " ".join(filter(None, words))
        count, self._unavailable = table.solver_count, table.unavailable
        if count > MAX_SOLVERS or (count and not table.solvers):
            raise PluginError(f"its table must list at most {MAX_SOLVERS} solvers, got {count} at {table.solvers}")
        addresses = (ctypes.c_void_p * count).from_address(table.solvers) if count else ()
        self._solvers = [self._solver(each, f"solver {number}") for number, each in enumerate(addresses)]

    def _solver(self, address: int | None, which: str) -> VendorSolver:
        if not address:
            raise PluginError(f"its {which} is NULL")
        table = self._checked(abi.Solver.from_address(address), which)
        name = (table.name or b"").decode("utf-8", "replace")
        if not re.fullmatch(rf"{self.name}\.[A-Za-z0-9_.-]{{1,64}}", name):
            raise PluginError(f"the name of its {which} must be {self.name}.VARIANT, got {name[:100]!r}")
        missing = [
            name_ for name_ in ("places", "dtypes", "rejects", "plan", "enqueue", "free") if not getattr(table, name_)
        ]
        if missing:
            raise PluginError(f"{name}: {', '.join(missing)} must not be 0")
        for field, names in _BITS.items():
            known_bits = sum(abi.CODES[name_] for name_ in names)
            if getattr(table, field) & ~known_bits:
                raise PluginError(f"{name}: {field} must be bits of {known_bits:#x}, got {getattr(table, field):#x}")
        packing = [bool(name_) for name_ in (table.packed, table.pack)] if self._version > 1 else [False]
        if len(set(packing)) > 1:
            raise PluginError(f"{name}: packed and pack must both be 0, or neither")
        return VendorSolver(table, name, packing[0])

    @hookimpl
    def convdispatch_solvers(self) -> Sequence[VendorSolver]:
        """The library's solvers."""
        return self._solvers

    def unavailable(self) -> str | None:
        """What the library lacks on this machine, as text; None if it lacks nothing."""
        text = abi.Text()
        if not self._unavailable or self._unavailable(text.address, text.size) == abi.CODES["ok"]:
            return None
        return text.read() or "the library is unavailable here, and gives no reason"

    def _checked(self, table: Any, what: str) -> Any:
        older = self._version == 1 and isinstance(table, abi.Solver)
        size, expected = table.struct_size, abi.Solver.packed.offset if older else ctypes.sizeof(table)
        if size != expected:
            raise PluginError(
                f"its {what} must have struct_size {expected} in version {self._version} of {HEADER.name}, got {size}: "
                "compile the library for this machine, with this header"
            )
        return table
