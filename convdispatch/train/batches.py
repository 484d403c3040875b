"""Batches on the device: the whole data set is in its memory as bytes, and one kernel gathers a batch."""

from __future__ import annotations

import math

import numpy as np
import pyopencl as cl

from ..device.programs.kernels import Launch, build, config_macros, kernel_text
from ..elementwise.tensor import Tensor


class Batches:
    """Pictures and labels on a queue's device; ``take`` gathers a batch without waiting."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, scale: float, queue: cl.CommandQueue) -> None:
        self.images = Tensor.from_numpy(np.ascontiguousarray(images, np.uint8), queue)
        self.labels = Tensor.from_numpy(labels.astype(np.int32), queue)
        self.scale, self.queue = np.float32(scale), queue
        width = math.prod(images.shape[1:])
        macros = config_macros({"width": width, "rows": len(images)})
        self._program = build(queue.context, macros + kernel_text("convdispatch.train", "take.cl"))
        self._width, self._launches = width, dict[int, tuple[Launch, Launch]]()

    def __len__(self) -> int:
        return self.images.shape[0]

    def order(self, rows: np.ndarray) -> Tensor:
        """An order of rows in device memory, for ``take``."""
        return Tensor.from_numpy(rows.astype(np.int32), self.queue)

    def take(self, order: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
        """``(pictures, labels)`` of ``order[start:start + count]``; pictures are float32, 0 to 1."""
        x = Tensor.empty((count, *self.images.shape[1:]), np.float32, self.queue)
        y = Tensor.empty((count,), np.int32, self.queue)
        if count not in self._launches:
            names = ("x", "rows", "first", "scale", "y")
            self._launches[count] = (
                Launch(self._program, "take", (self._width, count), None, " ".join(names), names=names),
                Launch(self._program, "take_labels", (count,), None, "x rows first y", names=names),
            )
        pictures, labels = self._launches[count]
        first = np.int64(start)
        pictures(self.queue, (self.images.base_data, order.base_data, first, self.scale, x.base_data))
        labels(self.queue, (self.labels.base_data, order.base_data, first, None, y.base_data))
        return x, y
