"""What the self-test's families share: random values on a queue, gradients, layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convdispatch.nn.tape import Tape
from convdispatch.tensor import Tensor

Found = Iterator[tuple[str, np.ndarray, np.ndarray]]
"""What it is, what the device gave, what is right."""


class Bench:
    """Random values on one queue, and how layouts and gradients are taken."""

    def __init__(self, queue: Any, seed: int) -> None:
        self.queue, self.rng = queue, np.random.default_rng(seed)

    def draw(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Normal numbers, rounded to the dtype."""
        return self.rng.standard_normal(shape).astype(dtype)

    def put(self, array: np.ndarray, layout: str = "nchw") -> Tensor:
        """A tensor, an array of images moved to the layout."""
        return Tensor.from_numpy(np.ascontiguousarray(in_layout(array, layout)), self.queue)

    def gradients(
        self, of: Callable[..., Tensor], inputs: list[Tensor], dy: Callable[[tuple[int, ...]], Tensor]
    ) -> Any:
        """The result of ``of(*inputs)`` and the gradients of its inputs, for ``dy`` made of the result's shape."""
        with Tape() as tape:
            for tensor in inputs:
                tape.watch(tensor)
            y = of(*inputs)
            given = dy(y.shape)
        return y, tape.backward(y, given, keep=inputs)


def in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """Images ``[mb, c, h, w]`` as the layout has them."""
    return np.moveaxis(array, 1, -1) if layout == "nhwc" else array
