"""Programs that NVIDIA's OpenCL built, loaded by CUDA's driver, and their kernels prepared for ``cuLaunchKernelEx``.

Each program is loaded once, and one call of ``struct`` packs a kernel's arguments: a launch costs the host little more
than the driver's own time.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_size_t, c_uint, c_void_p
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from ...api import settings
from ..cache import artifact_store
from ..commands.interface import Kernel
from ..cuda_driver import Cuda, CudaError, cuda_call, structure
from ..places.stream import Unlaunchable
from ..startup_profile import phase
from .machine_code import machine_code, note
from .ptx import Parameter, dynamic_shared, entries, for_cuda, in_one_row, overlapping

_BUFFER_POINTER = 1  # CUDA's constant CU_LAUNCH_PARAM_BUFFER_POINTER
_BUFFER_SIZE = 2  # CUDA's constant CU_LAUNCH_PARAM_BUFFER_SIZE
_FORMAT_LETTERS = {"float16": "e", "float32": "f", "float64": "d", "bool": "?"}
_INTEGERS = {("i", 1): "b", ("i", 2): "h", ("i", 4): "i", ("i", 8): "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_DEFAULT_GROUP_SIZE = 256
"""The number of work items in a work group of a kernel that specifies no local size."""
_DYNAMIC_SHARED = 8
"""CUDA's constant CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_MAX_GROUPS = (2**31 - 1, 65535, 65535)
"""The most work groups of a CUDA launch along x, y and z."""
_MAX_ITEMS = (1024, 1024, 64)
"""The most work items of a CUDA work group along x, y and z."""
_lock = threading.Lock()
_modules: dict[tuple[int, bytes, Row | None], Module | str] = {}
"""Loaded modules, or the reason why one was not loaded, by device, hash of the binary and the kernel that is launched
in one row, if any. Modules are never unloaded, because a caller's CUDA graph may use a kernel longer than any plan."""


class Row(NamedTuple):
    """A kernel with more groups along y or z than CUDA can launch: all its groups are launched along x instead."""

    kernel: str
    groups: tuple[int, ...]
    """The numbers of groups along x, y and z, as the kernel counts them."""


class Form(NamedTuple):
    """A program's PTX text as it is passed to CUDA's driver."""

    text: str
    overlaps: bool
    """Whether the program's kernels may be launched before the preceding kernel has ended."""
    shared: dict[str, int]
    """Bytes of dynamic shared memory that a launch of each kernel must set, by the kernel's name."""


class Module(NamedTuple):
    """A program that CUDA's driver has loaded."""

    handle: c_void_p
    parameters: Mapping[str, list[Parameter]]
    """The parameters of each kernel, by its name."""
    form: Form


def _module(cuda: Cuda, program: Any, row: Row | None = None) -> Module:
    """The loaded module of a program, in which the kernel of ``row`` is launched in one row. Raises Unlaunchable, the
    same each time."""
    binary = program.get_info(cl.program_info.BINARIES)[0]
    key = (cuda.number, hashlib.sha256(binary).digest(), row)
    with _lock:
        is_loaded = key in _modules
        if not is_loaded:
            _modules[key] = load(cuda, binary, row)
        module = _modules[key]
    if isinstance(module, str):
        raise Unlaunchable(module)
    if is_loaded and artifact_store.gathers():
        note(cuda, module.form.text)
    return module


def assemble(cuda: Cuda, kernel: Kernel) -> None:
    """Cache the machine code of a kernel's program. A program whose machine code the driver's linker does not return is
    loaded, so that the driver caches it. Raises Unlaunchable."""
    row = _row(kernel, _sizes(kernel)[0])
    text = for_cuda(kernel.program.get_info(cl.program_info.BINARIES)[0])
    form = next(_forms(text if row is None else in_one_row(text, *row)))
    if machine_code(cuda, form.text) is None:
        _module(cuda, kernel.program, row)


def load(cuda: Cuda, binary: bytes, row: Row | None = None) -> Module | str:
    """The module loaded from OpenCL's PTX by CUDA's driver, or the reason why it was not loaded."""
    try:
        text = for_cuda(binary)
        parameters = entries(text)
        if row is not None:
            text = in_one_row(text, *row)
    except Unlaunchable as error:
        return str(error)
    load_error = None
    for form in _forms(text):
        try:
            handle = _loaded(cuda, form.text)
            for kernel, size in form.shared.items():
                function = c_void_p()
                cuda("cuModuleGetFunction", byref(function), handle, kernel.encode())
                cuda("cuFuncSetAttribute", function, _DYNAMIC_SHARED, size)
        except CudaError as error:
            load_error = error
        else:
            return Module(handle, parameters, form)
    return f"CUDA does not load the PTX of NVIDIA's OpenCL: {load_error}"


def _loaded(cuda: Cuda, text: str) -> c_void_p:
    """Loads a program from its machine code, if there is any, else from PTX. Raises CudaError."""
    module = c_void_p()
    code = machine_code(cuda, text)
    if code is not None:
        with contextlib.suppress(CudaError), phase("load"):
            cuda("cuModuleLoadData", byref(module), code)
            return module
    with phase("assemble"):
        cuda("cuModuleLoadData", byref(module), text.encode() + b"\0")
    return module


def _forms(plain: str) -> Iterator[Form]:
    """The forms of a program to try in turn: with kernels that may overlap, where the device supports that, then
    without; of each, first the form that the driver's linker accepts too, whose machine code can be cached."""
    overlapped = overlapping(plain) if settings.CUDA_OVERLAP.value() else None
    for text, overlaps in ((overlapped, True), (plain, False)):
        if text is None:
            continue
        dynamic = dynamic_shared(text)
        if dynamic is not None:
            yield Form(dynamic[0], overlaps, dynamic[1])
        yield Form(text, overlaps, {})


def _letter(dtype: Any) -> str:
    if dtype.kind in "iu":
        letter = _INTEGERS["i", dtype.itemsize]
        return letter.upper() if dtype.kind == "u" else letter
    if dtype.name not in _FORMAT_LETTERS:
        raise Unlaunchable(f"a kernel takes a number of {dtype}, which is not packed")
    return _FORMAT_LETTERS[dtype.name]


def _sizes(kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns (groups, work items of a group), each along x, y and z; groups along y or z may exceed CUDA's limits.
    Raises Unlaunchable for sizes that CUDA launches in no form."""
    global_size = (*kernel.global_size, 1, 1)[:3]
    group = _group_of(global_size) if kernel.local_size is None else (*kernel.local_size, 1, 1)[:3]
    if any(size % items for size, items in zip(global_size, group, strict=True)):
        raise Unlaunchable(f"{kernel.name} has {global_size} work items, which groups of {group} do not divide")
    groups = tuple(size // items for size, items in zip(global_size, group, strict=True))
    if math.prod(groups) > _MAX_GROUPS[0] and _too_many(groups):
        raise Unlaunchable(f"{kernel.name} has {groups} work groups, CUDA launches at most {_MAX_GROUPS}")
    if any(items > limit for items, limit in zip(group, _MAX_ITEMS, strict=True)):
        raise Unlaunchable(f"{kernel.name} has groups of {group} work items, CUDA launches at most {_MAX_ITEMS}")
    return groups, group


def _too_many(groups: tuple[int, ...]) -> bool:
    return any(count > limit for count, limit in zip(groups, _MAX_GROUPS, strict=True))


def _row(kernel: Kernel, groups: tuple[int, ...]) -> Row | None:
    """The row in which a kernel of so many groups is launched, None where CUDA takes them along their axes."""
    return Row(kernel.name, groups) if _too_many(groups) else None


def _group_of(global_size: tuple[int, ...]) -> tuple[int, ...]:
    """The size of a work group: as many items along the first axis as divide it, and along the others as many as keep
    the number of groups within CUDA's limits."""
    items_left, group = _DEFAULT_GROUP_SIZE, [1, 1, 1]
    for axis in (1, 2):
        fewest = -(-global_size[axis] // _MAX_GROUPS[axis])
        most = min(items_left, _MAX_ITEMS[axis])
        group[axis] = next((n for n in range(fewest, most + 1) if global_size[axis] % n == 0), 1)
        items_left //= group[axis]
    for axis, size in enumerate(global_size):
        rest = size // group[axis]
        most = min(items_left, rest, _MAX_ITEMS[axis] // group[axis])
        factor = next(n for n in range(most, 0, -1) if rest % n == 0)
        group[axis] *= factor
        items_left //= factor
    return tuple(group)


_Attribute = structure(kind=c_uint, pad=c_uint, value=c_uint * 16)
_SIZES = dict.fromkeys(("gx", "gy", "gz", "bx", "by", "bz", "shared"), c_uint)
_Config = structure(**_SIZES, stream=c_void_p, attributes=ctypes.POINTER(_Attribute), count=c_uint)
_MAY_OVERLAP = _Attribute(6, 0, (1,))
"""The launch attribute CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION with the value 1, allowed."""


class Ready:
    """One launch with packed arguments: a call inserts its operands' addresses and launches. For one thread at a time.

    ``places`` are (argument's index, operand's number, byte offset) of the arguments that are memory.
    """

    __slots__ = (
        *("_config_pointer", "_config", "_early", "_extra", "_handle", "_launch"),
        *("_length", "_overlaps", "_places", "_stream", "_words", "buffer"),
    )

    def __init__(self, function: Function, arguments: Sequence[Any], places: Sequence[tuple[int, int, int]]) -> None:
        pack = function.pack
        self.buffer = bytearray(-(-max(pack.size, 1) // 8) * 8)
        pack.pack_into(self.buffer, 0, *function.numbers(list(arguments)))
        self._length, self._words = c_size_t(pack.size), memoryview(self.buffer).cast("Q")
        self._extra = (c_void_p * 5)(
            *(_BUFFER_POINTER, ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))),
            *(_BUFFER_SIZE, ctypes.addressof(self._length), 0),
        )
        self._places = tuple((function.offsets[index] // 8, operand, offset) for index, operand, offset in places)
        self._config = _Config(
            *function.groups, *function.items, function.shared, None, ctypes.pointer(_MAY_OVERLAP), 0
        )
        self._config_pointer, self._handle, self._launch = byref(self._config), function.handle, function.launch
        self._overlaps, self._stream, self._early = function.overlaps, None, False

    def __call__(self, stream: int, operands: Sequence[int], early: bool) -> int:
        """Launches as ``Function`` does, with the operands' addresses."""
        words = self._words
        for index, operand, offset in self._places:
            words[index] = operands[operand] + offset
        if stream != self._stream:
            self._config.stream = self._stream = stream
        if early != self._early:
            self._config.count, self._early = self._overlaps if early else 0, early
        return self._launch(self._config_pointer, self._handle, None, self._extra)


class Function:
    """A kernel that CUDA's driver has loaded; safe to launch from several threads."""

    def __init__(self, cuda: Cuda, kernel: Kernel) -> None:
        groups, self.items = _sizes(kernel)
        row = _row(kernel, groups)
        self.groups = groups if row is None else (math.prod(groups), 1, 1)
        module, kernels, form = _module(cuda, kernel.program, row)
        parameters = kernels.get(kernel.name)
        if parameters is None:
            raise Unlaunchable(f"its PTX has no kernel {kernel.name}, only {', '.join(kernels)}")
        self.handle = c_void_p()
        try:
            cuda("cuModuleGetFunction", byref(self.handle), module, kernel.name.encode())
        except CudaError as error:
            raise Unlaunchable(f"CUDA does not find the kernel {kernel.name}: {error}") from None
        self._check(kernel, parameters)
        self.name = kernel.name
        self.memory = [index for index, dtype in enumerate(kernel.dtypes) if dtype is None]
        pairs = zip(kernel.dtypes, parameters, strict=True)
        letters = [_letter(dtype) if dtype is not None else _UNSIGNED[parameter.size] for dtype, parameter in pairs]
        self.pack = struct.Struct("@" + "".join(letters))
        self.offsets = [
            struct.calcsize("@" + "".join(letters[: index + 1])) - struct.calcsize(letters[index])
            for index in range(len(letters))
        ]
        """The offset of each argument from the first, in bytes."""
        self.launch, self.overlaps = cuda_call(cuda.driver, "cuLaunchKernelEx"), int(form.overlaps)
        self.shared = form.shared.get(kernel.name, 0)
        """Bytes of dynamic shared memory that a launch sets beyond what the kernel's text declares."""
        self._lock, self._own = threading.Lock(), Ready(self, [0] * len(letters), ())

    def _check(self, kernel: Kernel, parameters: list[Parameter]) -> None:
        """Compare the parameters in the PTX with the arguments that a launch will pass."""
        sizes = [parameter.size for parameter in parameters]
        arguments = [8 if dtype is None else dtype.itemsize for dtype in kernel.dtypes]
        # A kernel parameter without a dtype is memory, or a NumPy scalar that has a dtype of its own.
        fits = len(sizes) == len(arguments) and all(
            size == expected or (dtype is None and size in _UNSIGNED)
            for size, expected, dtype in zip(sizes, arguments, kernel.dtypes, strict=True)
        )
        if not fits:
            raise Unlaunchable(f"its PTX takes parameters of {sizes} bytes for {kernel.name}, not {arguments}")
        spaces = {parameter.space for parameter in parameters} - {"global", ""}
        if spaces:
            raise Unlaunchable(f"{kernel.name} takes pointers to {', '.join(sorted(spaces))} memory, not to global")

    def numbers(self, arguments: list[Any]) -> list[Any]:
        """The arguments as ``pack`` takes them: NumPy scalars with a dtype of their own are passed as their bytes."""
        for index in self.memory:
            if isinstance(arguments[index], np.generic):
                arguments[index] = int.from_bytes(arguments[index].tobytes(), sys.byteorder)
        return arguments

    def ready(self, arguments: Sequence[Any], places: Sequence[tuple[int, int, int]]) -> Ready:
        """A Ready launch with these arguments, for many calls with other memory."""
        return Ready(self, arguments, places)

    def __call__(self, stream: int, arguments: list[Any], early: bool = True) -> int:
        """Launch on a stream of the current context, with memory as addresses; returns CUDA's status.

        With ``early`` the kernel may be launched before the preceding kernel has ended, for which it waits itself.
        """
        self.numbers(arguments)
        with self._lock:  # guards the argument buffer, which the driver copies before it returns
            self.pack.pack_into(self._own.buffer, 0, *arguments)
            return self._own(stream, (), early)


def function_of(cuda: Cuda, kernel: Kernel) -> Function:
    """The Function that launches a kernel on CUDA's streams, created once. Raises Unlaunchable."""
    function = kernel.streams
    if function is None:
        function = kernel.streams = Function(cuda, kernel)
    return function
