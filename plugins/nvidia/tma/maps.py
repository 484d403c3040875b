"""Tensor maps: descriptions, for Hopper's copy engine (TMA), of a tensor in memory and of a box of it.

A map is 128 bytes that only CUDA's driver can write, by the host functions ``cuTensorMapEncode*``. Maps are encoded for
a placeholder address, and the kernel stores its own pointer in them, because OpenCL does not reveal addresses. Sizes
are from the innermost axis on; a box reads zeros outside of the tensor.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from convdispatch.api import DTYPES, BuildFailed, DeviceInfo

WORDS = 16
"""64-bit words of a tensor map."""
_PLACEHOLDER_ADDRESS = 1 << 20
_TYPES = {"float16": 6, "bfloat16": 9, "float32": 11}
"""Numbers of CUDA's ``CUtensorMapDataType``; the type for float32 rounds to TF32 when it copies."""
_FLOAT32 = 7
"""CU_TENSOR_MAP_DATA_TYPE_FLOAT32, which copies all bits."""
_NO_INTERLEAVE = 0
_PROMOTE_256 = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B: the L2 cache fetches 256 bytes
_ZEROS = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros outside of the tensor
_SWIZZLES = {64: 2, 128: 3}
"""Numbers of CUDA's ``CUtensorMapSwizzle`` by the bytes of a row of a box."""
NEAREST_CORNER = {2: -128, 3: -16}
"""Lower bound of an im2col map's corners, in pixels, by its number of spatial axes: two have 8 bits each, three 5."""
FARTHEST_CORNER = {2: 127, 3: 15}
"""Upper bound of an im2col map's corners, in pixels."""
MAX_OFFSET = {2: 255, 3: 31}
"""Most pixels from the first tap to another tap along an axis of an im2col map."""
MAX_STEP = 8
"""Largest step of an im2col map along an axis, in pixels."""


@functools.lru_cache(maxsize=1)
def _driver() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """(CUDA's driver, the device's primary context), which encoding a tensor map needs; None without CUDA."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuTensorMapEncodeTiled, driver.cuTensorMapEncodeIm2col  # noqa: B018 raises if the driver is too old
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
            return None
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return None
    except (OSError, AttributeError):
        return None
    return driver, context


def missing(device: DeviceInfo) -> str | None:
    """The reason why tensor maps cannot be encoded on this machine, or None. A device that is only described (it has no
    platform) needs none, because nothing is launched there."""
    return (
        None
        if not device.platform or _driver()
        else "needs CUDA's driver, version 12 or later, and a device of its, for tensor maps"
    )


def _array(kind: type, values: Sequence[int]) -> ctypes.Array:
    return (kind * max(1, len(values)))(*values)


@dataclass(frozen=True)
class Map:
    """Base of tensor maps of a dense tensor with ``sizes``."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def _strides(self) -> list[int]:
        """Strides in bytes along every axis but the innermost."""
        steps = [DTYPES[self.dtype].itemsize]
        for size in self.sizes[:-1]:
            steps.append(steps[-1] * size)
        return steps[1:]

    @property
    def number_type(self) -> int:
        """The number of the elements' CUtensorMapDataType."""
        return _TYPES[self.dtype]

    def encode(self) -> tuple[int, ...]:
        """The map's words. Without CUDA's driver they are zeros, which suffice for the text of a device that is only
        described. Raises BuildFailed if the driver refuses the map."""
        driver_and_context = _driver()
        if driver_and_context is None:
            return (0,) * WORDS
        driver, context = driver_and_context
        block = ctypes.create_string_buffer(WORDS * 8 + 64)
        address = -(-ctypes.addressof(block) // 64) * 64  # cuTensorMapEncode needs an address that is a multiple of 64
        common = (ctypes.c_void_p(address), self.number_type, len(self.sizes), ctypes.c_void_p(_PLACEHOLDER_ADDRESS),
                  _array(ctypes.c_uint64, self.sizes), _array(ctypes.c_uint64, self._strides))  # fmt: skip
        driver.cuCtxPushCurrent_v2(context)
        try:
            status = self._encode(driver, common)
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        if status:
            raise BuildFailed(f"the driver refuses the tensor map {self} with error {status}", "")
        return tuple((ctypes.c_uint64 * WORDS).from_address(address))

    def _encode(self, driver: ctypes.CDLL, common: tuple) -> int:
        raise NotImplementedError

    def _encode_options(self, row: int) -> tuple[int, ...]:
        """The last arguments of cuTensorMapEncode, for boxes whose rows have ``row`` elements."""
        return (_NO_INTERLEAVE, _SWIZZLES[row * DTYPES[self.dtype].itemsize], _PROMOTE_256, _ZEROS)


@dataclass(frozen=True)
class Tiled(Map):
    """A tiled map: boxes of ``box`` elements along each axis."""

    box: tuple[int, ...] = ()

    def _encode(self, driver: ctypes.CDLL, common: tuple) -> int:
        box, ones = _array(ctypes.c_uint32, self.box), _array(ctypes.c_uint32, [1] * len(self.sizes))
        return int(driver.cuTensorMapEncodeTiled(*common, box, ones, *self._encode_options(self.box[0])))


@dataclass(frozen=True)
class Im2col(Map):
    """An im2col map: columns of ``pixels`` pixels by ``channels`` channels of a tensor (channels, w, h, images), or of
    one whose images are videos, (channels, w, h, d, images).

    The columns' pixels of a row are at ``lower``, ``lower + step``, ... to at most ``size - 1 + upper``; the next ones
    are in the next row, after the last row in the next frame or image. A tap is an offset that is added to all
    positions.
    """

    lower: tuple[int, ...] = (0, 0)
    """First pixel along (w, h) or (w, h, d), as all tuples of this class but the sizes."""
    upper: tuple[int, ...] = (0, 0)
    step: tuple[int, ...] = (1, 1)
    pixels: int = 64
    channels: int = 64
    unrounded: bool = False
    """Whether float32 numbers keep their bits, which a norm needs; TF32's are rounded as they are copied."""

    @property
    def number_type(self) -> int:
        return _FLOAT32 if self.unrounded and self.dtype == "float32" else super().number_type

    @property
    def places(self) -> tuple[int, ...]:
        """(pixels per row, rows, and of a video frames) of an image that the map's columns have."""
        axes = zip(self.sizes[1:-1], self.lower, self.upper, self.step, strict=True)
        return tuple((size - 1 + upper - lower) // step + 1 for size, lower, upper, step in axes)

    def _encode(self, driver: ctypes.CDLL, common: tuple) -> int:
        corners = (_array(ctypes.c_int, self.lower), _array(ctypes.c_int, self.upper))
        steps = _array(ctypes.c_uint32, (1, *self.step, 1))
        return int(
            driver.cuTensorMapEncodeIm2col(
                *common, *corners, self.channels, self.pixels, steps, *self._encode_options(self.channels)
            )
        )


def encoded(maps: Sequence[Map], emulate: bool) -> list[tuple[int, ...]]:
    """The 64-bit words of tensor maps; zeros in tests where plain C replaces the copy engine."""
    return [(0,) * WORDS if emulate else each.encode() for each in maps]
