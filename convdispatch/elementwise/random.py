"""Random tensors, by the counter-based generator Philox 4x32-10 that pyopencl brings (Salmon et al. 2011)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api.errors import InvalidArgument
from ..device import runtime
from ..device.recording import recording_of
from .tensor import Tensor

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = ["Generator"]


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

    def advance(self, blocks: int, queue: Any = None) -> Any:
        """Set ``blocks`` counters aside, four numbers each; the first of them.

        For work on ``queue`` that is captured: what a kernel takes in its place, so that each replay does this anew.
        """
        recording = recording_of(queue)
        if recording is not None:
            return recording.late(lambda: self.advance(blocks))
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
            launch = random_kernel(self.queue.context, kernel)
            first = self.advance(blocks, self.queue)
            launch.run(self.queue, blocks, result.base_data, size, self.seed, first, low, scale)
        return result if dtype == np.float32 else result.astype(dtype)


def random_kernel(context: cl.Context, name: str) -> _RandomKernel:
    """A kernel of random.cl, built once a context."""
    key = (context, name)
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = _RandomKernel(context, name)
    return found


_kernels: dict[Any, _RandomKernel] = {}


class _RandomKernel:
    def __init__(self, context: cl.Context, name: str) -> None:
        import threading

        import pyopencl as cl

        from ..device.kernels import build, kernel_text

        self._program = build(context, kernel_text("convdispatch.elementwise", "random.cl"))
        self._name, self._kernel = name, cl.Kernel(self._program, name)
        self._dtypes = [None, np.uint64, np.uint64, np.uint64, np.float32, np.float32]
        self._kernel.set_scalar_arg_dtypes(self._dtypes)
        self._lock = threading.Lock()
        gpu = runtime.device_info(context.devices[0]).type != "cpu"
        self._group = 256 if gpu else 64

    def run(
        self, queue: Any, blocks: int, target: Any, size: int, seed: int, first: Any, low: float, scale: float
    ) -> None:
        work = -(-blocks // self._group) * self._group
        recording = recording_of(queue)
        if recording is not None:
            given = (target, size, seed, first, low, scale)
            recording.launch(self._program, self._name, self._dtypes, (work,), (self._group,), given)
            return
        with self._lock:
            self._kernel(queue, (work,), (self._group,), target, size, seed, first, low, scale)
