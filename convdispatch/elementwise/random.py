"""Random tensors, by the counter-based generator Philox 4x32-10 that pyopencl brings (Salmon et al. 2011)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.commands.interface import Kernel
from ..device.commands.queues import commands_of
from ..device.programs.kernels import build, kernel_text
from .apply import compute
from .tensor import Tensor


class Generator:
    """A stream of random numbers on one queue; the same seed gives the same numbers on any device.

    ``state`` is the next counter: set it to come back to a place in the stream.
    """

    def __init__(self, seed: int = 0, queue: cl.CommandQueue | None = None) -> None:
        self.queue = queue or runtime.queue()
        self.seed, self.state = int(seed) & (2**64 - 1), 0

    def uniform(self, shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: Any = np.float32) -> Tensor:
        """Evenly from ``low`` to below ``high``."""
        return self._fill("uniform", shape, dtype, low, high - low)

    def normal(
        self, shape: Sequence[int], mean: float = 0.0, deviation: float = 1.0, dtype: Any = np.float32
    ) -> Tensor:
        """Normally distributed, by Box and Muller's transform."""
        return self._fill("normal", shape, dtype, mean, deviation)

    def advance(self, blocks: int) -> int:
        """Reserve ``blocks`` counters, of four random numbers each, and return the first one."""
        first = self.state
        self.state += blocks
        return first

    def _fill(self, kernel: str, shape: Sequence[int], dtype: Any, low: float, scale: float) -> Tensor:
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise InvalidArgument(f"random numbers are float32 or float64, got {dtype}")
        shape = tuple(shape)
        size = math.prod(shape)
        result = Tensor.empty(shape, np.float32, self.queue)
        if size:
            blocks = -(-size // 4)
            first = self.advance(blocks)
            kernel_of = random_kernel(self.queue.context, kernel, blocks)
            commands_of(self.queue).launch(kernel_of, (result.base_data, size, self.seed, first, low, scale))
        return result if dtype == np.float32 else result.astype(dtype)


@functools.lru_cache(maxsize=256)
def random_kernel(context: cl.Context, name: str, blocks: int) -> Kernel:
    """A kernel of random.cl for ``blocks`` counters; it takes memory, size, seed, first counter, low and scale."""
    group = 256 if runtime.device_info(context.devices[0]).type != "cpu" else 64
    program = build(context, kernel_text("convdispatch.elementwise", "random.cl"))
    dtypes = [None, np.uint64, np.uint64, np.uint64, np.float32, np.float32]
    return Kernel(program, name, (-(-blocks // group) * group,), (group,), dtypes)


def fill(tensor: Tensor, value: float) -> Tensor:
    """Set every element, of a view too; returns the tensor."""
    if not tensor.size:
        return tensor
    if tensor.contiguous:
        pattern = np.array(value, tensor.dtype)
        runtime.fill(tensor.queue, tensor.base_data, pattern, tensor.offset, tensor.nbytes)
    else:
        compute("x = value", {"x": tensor, "value": float(value)})
    return tensor


def full(shape: Sequence[int], value: float, dtype: Any = np.float32, queue: cl.CommandQueue | None = None) -> Tensor:
    """Return a new tensor filled with one value."""
    return fill(Tensor.empty(shape, dtype, queue), value)


def zeros(shape: Sequence[int], dtype: Any = np.float32, queue: cl.CommandQueue | None = None) -> Tensor:
    """Return a new tensor of zeros."""
    return full(shape, 0, dtype, queue)
