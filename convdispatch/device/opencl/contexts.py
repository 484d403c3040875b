"""Creates OpenCL contexts without Python's lock, so that others work in the 0.13 s that NVIDIA's driver takes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_uint, c_void_p
from typing import Any

import pyopencl as cl


def made_context(device: cl.Device) -> cl.Context:
    """A new context of one device. Raises pyopencl's errors."""
    create: Any
    try:  # clCreateContext of the OpenCL loader that pyopencl's own module is linked with
        create = ctypes.CDLL(cl._cl.__file__).clCreateContext
    except (AttributeError, OSError):
        return cl.Context([device])
    create.restype = c_void_p
    create.argtypes = (c_void_p, c_uint, POINTER(c_void_p), c_void_p, c_void_p, POINTER(c_int))
    handle = create(None, 1, (c_void_p * 1)(device.int_ptr), None, None, byref(c_int()))
    return cl.Context.from_int_ptr(handle, False) if handle else cl.Context([device])
