"""``convdispatch_plugin.h`` in ctypes: structures and codes are parsed from the header itself."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from ctypes import c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import pyopencl as cl

from ...api.activations import parse_activation
from ...api.device import DeviceInfo
from ...api.dtypes import ALL_DTYPES
from ...api.errors import BuildFailed, MemoryLimit, PluginError
from ...api.fault_text import plain
from ...api.problem import ConvProblem
from ...device.cuda_driver import number_of
from ...device.rates import rates
from .discovery import HEADER

_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
CODES = {name.lower(): int(code) for name, code in re.findall(r"CONVDISPATCH_(\w+)(?: =)? (\d+)", _TEXT)}
"""The header's numbers by their names, without the prefix and in small letters."""
DTYPE_CODES = {name: CODES[name] for name in ALL_DTYPES if name in CODES}
PROMISES = ("deterministic", "exact", "spreads_nonfinite", "reproducible", "batch_invariant", "confines_nonfinite")
"""The bits of ``promises``, each but the last an attribute of a Solver."""
_DIRECTIONS = {"fwd": "forward", "bwd_data": "backward_data", "bwd_weights": "backward_weights"}
_ERRORS: dict[str, type[Exception]] = {"out_of_memory": MemoryLimit, "build_failed": BuildFailed}
_STATUS = ("rejected", "end", "unknown", *_ERRORS, "launch_failed", "internal")
_GUARD = b"\xa5" * 64
"""Bytes behind a text, which show whether a library wrote beyond its end."""
_KINDS: dict[str, Any] = {"uint32_t": c_uint32, "int32_t": c_int32, "uint64_t": c_uint64, "int64_t": c_int64}
_KINDS |= {"double": c_double, "size_t": c_size_t, "void": None}


def _kind(text: str) -> Any:
    """The ctypes type of a C declaration."""
    if "*" in text:
        return c_char_p if "const char" in text else c_void_p
    return _KINDS[text.split()[0]]


def _structure(name: str) -> type[Any]:
    """The header's structure ``convdispatch_NAME``."""
    body = re.search(rf"struct convdispatch_{name} {{(.*?)\n}}", _TEXT, re.DOTALL)
    fields: list[tuple[str, Any]] = []
    for declaration in " ".join(body[1].split()).split(";")[:-1]:  # type: ignore[index]
        if function := re.fullmatch(r" ?(.+?)\(\*(\w+)\)\((.*)\)", declaration):
            arguments = map(_kind, function[3].split(","))
            fields.append((function[2], ctypes.CFUNCTYPE(_kind(function[1]), *arguments)))
            continue
        kind = re.match(r" ?(const )?\w+ ", declaration)[0]  # type: ignore[index]
        for declarator in declaration[len(kind) :].split(","):
            field_name, length = re.search(r"(\w+)(?:\[(\d)\])?$", declarator).groups()  # type: ignore[union-attr]
            fields.append((field_name, _kind(kind + declarator) * int(length) if length else _kind(kind + declarator)))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Memory = _KINDS["convdispatch_memory"] = _structure("memory")
Problem, Device, Call, Solver, Plugin = map(_structure, ("problem", "device", "call", "solver", "plugin"))


class Text:
    """Memory of ``size`` bytes for a text that a library writes."""

    def __init__(self, size: int = 512) -> None:
        self.size = size
        self._bytes = ctypes.create_string_buffer(bytes(size) + _GUARD, size + len(_GUARD))
        self.address = ctypes.addressof(self._bytes)

    def read(self) -> str:
        """The text as one line, cut at its size. Raises PluginError if the library wrote beyond the memory."""
        if self._bytes.raw[self.size :] != _GUARD:
            raise PluginError(f"it wrote beyond the {self.size} bytes of its text")
        return plain(self._bytes.raw[: self.size].split(b"\0")[0].decode("utf-8", "replace"), self.size)


def check(what: str, status: int, text: Text | None = None) -> None:
    """Raise the exception for a status that is not 0, with the library's own text."""
    said = text.read() if text is not None else ""
    if status != CODES["ok"]:
        code = next((name for name in _STATUS if CODES[name] == status), "no code of the header")
        message = f"its {what} returned {status}, {code.replace('_', ' ')}" + (f": {said}" if said else "")
        raise _ERRORS.get(code, PluginError)(message)


def _structure_from(kind: Any, values: Mapping[str, Any]) -> Any:
    """A structure, filled with those of the values for which it has a field."""
    structure = kind(struct_size=ctypes.sizeof(kind))
    for name in (field[0] for field in kind._fields_ if field[0] in values):
        setattr(structure, name, values[name].encode() if isinstance(values[name], str) else values[name])
    return structure


@functools.lru_cache(maxsize=256)
def problem_of(problem: ConvProblem) -> Any:
    """A problem as the header's structure."""
    name, numbers = parse_activation(problem.activation) if problem.activation else (None, ())
    parts = ("bias", "residual", "activation", "accumulate")
    codes = {
        "direction": CODES[_DIRECTIONS[problem.direction]],
        "dtype": DTYPE_CODES[problem.dtype],
        "out_dtype": DTYPE_CODES[problem.out_dtype or problem.dtype],
        "layout": CODES[problem.layout],
        "math": CODES[f"math_{problem.math}"],
        "epilogue": sum(CODES[part] for part in parts if getattr(problem, part)),
        "activation": name,
        "activation_parameters": (c_double * 2)(*numbers),
    }
    return _structure_from(Problem, vars(problem) | codes)


def device_of(info: DeviceInfo, place: int, context: Any = None) -> Any:
    """A device as the header's structure; for a plan with the handles of the ``context``."""
    capability = info.arch.removeprefix("sm_") if info.vendor == "nvidia" else ""
    values = vars(info) | vars(rates(info)) | {"place": place, "cuda_ordinal": -1}
    values["type"] = CODES.get(info.type, CODES["accelerator"])
    values["extensions"] = " ".join(sorted(info.extensions))
    values["cuda_capability"] = int(capability) if capability.isdigit() else 0
    if context is not None:
        device, number = context.devices[0], number_of(context.devices[0])
        values |= {"cl_context": context.int_ptr, "cl_device_id": device.int_ptr, "opencl_function": _opencl_function()}
        values["cuda_ordinal"] = -1 if number is None else number
    return _structure_from(Device, values)


@functools.lru_cache(maxsize=1)
def _opencl_function() -> Any:
    """A C function that returns the address of a function, by name, of the OpenCL loader that pyopencl calls."""
    loader = ctypes.CDLL(cl._cl.__file__)

    def address(name: bytes | None) -> int | None:
        function = getattr(loader, (name or b"").decode("ascii", "replace"), None)
        return None if function is None else ctypes.cast(function, c_void_p).value

    return dict(Device._fields_)["opencl_function"](address)
