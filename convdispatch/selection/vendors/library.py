"""Loads a vendor's library and checks its table of solvers; any fault is a PluginError before a solver is queried."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import byref
from pathlib import Path
from typing import Any

import pyopencl as cl

from ...api.device import DeviceInfo
from ...api.errors import PluginError
from ...api.hookspecs import hookimpl
from ...api.problem import ConvProblem
from ...api.solver import EPILOGUE, Solver
from ...device import cuda_driver
from ...device.runtime import device_info
from . import abi
from .discovery import HEADER, library_of
from .plan import VendorPlan

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


MAX_CONFIG_BYTES = 256
_CODES = abi.CODES


class VendorSolver(Solver):
    """The solver of a ``table`` in a loaded library. A configuration is a text of the library."""

    def __init__(self, table: Any, name: str, packs: bool = False) -> None:
        self.name, self._table, self._packs = name, table, packs
        *promises, confines = abi.PROMISES
        for promise in promises:
            setattr(self, promise, bool(table.promises & _CODES[promise]))
        # Where neither bit is set, the solver may spread for all that ``strict_nan`` knows.
        self.spreads_nonfinite = self.spreads_nonfinite or (False if table.promises & _CODES[confines] else None)
        self.fuses = frozenset(part for part in EPILOGUE if table.fuses & _CODES[part])
        self.dtypes = frozenset(dtype for dtype, code in abi.DTYPE_CODES.items() if table.dtypes >> code & 1)
        self.predicts = bool(table.cost)

    def place(self, device: DeviceInfo) -> int:
        """The code of the place where plans run on a device: CUDA, else a CPU's host memory, else OpenCL; 0 for
        none."""
        offered_places = self._table.places
        if offered_places & _CODES["cuda"] and device.vendor == "nvidia" and cuda_driver.unavailable() is None:
            return _CODES["cuda"]
        on_host = offered_places & _CODES["host"] and device.type == "cpu"
        return _CODES["host"] if on_host else offered_places & _CODES["opencl"]

    def serves(self, device: DeviceInfo) -> str | None:
        """Why the solver cannot run on the device, or None."""
        if self.place(device):
            return None
        places = {"host": "a CPU's host memory", "cuda": "CUDA"}
        place_names = " or ".join(words for name, words in places.items() if self._table.places & _CODES[name])
        return f"{place_names} only, got {device.type} of {device.vendor}"

    def rejects(self, problem: ConvProblem, device: DeviceInfo) -> str | None:
        """Why the device or the library refuses the problem, or None."""
        if reason := self.serves(device):
            return reason
        text = abi.Text()
        status = self._ask("rejects", problem, device, text.address, text.size)
        if status == _CODES["rejected"]:
            return text.read() or "the library gives no reason"
        abi.check("rejects", status, text)
        return None

    def configs(self, problem: ConvProblem, device: DeviceInfo) -> Iterable[Mapping[str, Any]]:
        """The library's configurations, each a text."""
        return self._texts(problem, device) if self._table.config else [{}]

    def _texts(self, problem: ConvProblem, device: DeviceInfo) -> Iterator[Mapping[str, Any]]:
        for index in itertools.count():
            text = abi.Text(MAX_CONFIG_BYTES)
            status = self._ask("config", problem, device, index, text.address, text.size)
            if status == _CODES["end"]:
                return
            abi.check("config", status, text)
            yield {"config": text.read()}

    def cost(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> float | None:
        """The library's prediction in seconds."""
        return self._number("cost", problem, device, config, ctypes.c_double()) if self._table.cost else None

    def workspace(self, problem: ConvProblem, device: DeviceInfo, config: Mapping[str, Any]) -> int | None:
        """The library's workspace in bytes; 0 if the library has no function for it."""
        return self._number("workspace", problem, device, config, ctypes.c_uint64()) if self._table.workspace else 0

    def _number(self, name: str, problem: ConvProblem, device: DeviceInfo, config: Any, number: Any) -> Any:
        status = self._ask(name, problem, device, _text(config), byref(number))
        if status == _CODES["unknown"]:
            return None
        abi.check(name, status)
        return number.value

    def plan(self, context: cl.Context, problem: ConvProblem, config: Mapping[str, Any]) -> VendorPlan:
        """The library's plan for the context's device."""
        info, handle, text = device_info(context.devices[0]), ctypes.c_void_p(), abi.Text()
        size = self.workspace(problem, info, config)
        device = abi.device_of(info, self.place(info), context)
        arguments = byref(self._table), byref(abi.problem_of(problem)), byref(device), _text(config)
        abi.check("plan", self._table.plan(*arguments, byref(handle), text.address, text.size), text)
        if not handle.value or size is None:
            raise PluginError("its plan is NULL, or its workspace not known, and no error was returned")
        packs = self._packs and problem.constant_weights
        packed = self._number("packed", problem, info, config, ctypes.c_uint64()) if packs else 0
        return VendorPlan(self._table, handle.value, (device.place, size, packed or 0), context, problem)

    def _ask(self, name: str, problem: ConvProblem, device: DeviceInfo, *extra_arguments: Any) -> int:
        structures = abi.problem_of(problem), abi.device_of(device, self.place(device))
        return getattr(self._table, name)(byref(self._table), *map(byref, structures), *extra_arguments)


def _text(config: Mapping[str, Any]) -> bytes:
    return str(config.get("config", "")).encode()
