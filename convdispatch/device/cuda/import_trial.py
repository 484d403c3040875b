"""Imports one large block of CUDA's memory and ends; runs in a child process, because on some hosts the import crashes.

Its setup is the ``device``, by its address; its exit status is what came of it.
"""

from __future__ import annotations

import os
import sys

from ..child import questions
from ..cuda_driver import CudaError, cuda_of
from ..memory.cuda_imports import NO_MEMORY, REFUSED, opencl_buffer
from ..runtime import context, find_device

LARGE = 512 << 20
"""Bytes of the block that the trial imports."""


def attempt(address: str) -> None:
    """Import a large block on the device of an address, and end this process."""
    device = find_device(address)
    cuda = cuda_of(device)
    if cuda is None:
        raise CudaError(f"{device.name.strip()} is not CUDA's")
    try:
        shared = cuda.shared(LARGE)
    except CudaError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(NO_MEMORY)
    try:
        opencl_buffer(context(device), shared)
    except CudaError:
        os._exit(REFUSED)
    os._exit(0)  # end without exit handlers: drivers may crash in theirs, and only the import is on trial


if __name__ == "__main__":
    attempt(next(questions())["device"])
