"""OpenCL contexts, made without Python's lock: NVIDIA's driver takes 0.13 s for one, in which others work."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyopencl as cl


def made_context(device: cl.Device) -> cl.Context:
    """A context of one device. Raises what pyopencl raises."""
    import pyopencl as cl

    create: Any
    try:  # clCreateContext of the OpenCL loader that pyopencl's own module is linked with
        create = ctypes.CDLL(cl._cl.__file__).clCreateContext
    except (AttributeError, OSError):
        return cl.Context([device])
    create.restype = c_void_p
    create.argtypes = (c_void_p, c_uint, POINTER(c_void_p), c_void_p, c_void_p, POINTER(c_int))
    made = create(None, 1, (c_void_p * 1)(device.int_ptr), None, None, byref(c_int()))
    return cl.Context.from_int_ptr(made, False) if made else cl.Context([device])
