"""Dropout (Srivastava et al. 2014): the mask is never stored, its counters are drawn again for the gradient."""

from __future__ import annotations

import numpy as np
import pyopencl as cl

from ..api.dtypes import storage_macros
from ..api.errors import InvalidArgument
from ..device.programs.kernels import Launch, build, keeps_programs, kernel_text
from ..device.tracing import operation
from ..elementwise import Generator
from ..elementwise.tensor import Tensor
from .convolution import dense
from .tape import current_tape


@operation
def dropout(x: Tensor, p: float, generator: Generator) -> Tensor:
    """Each element set to 0 with probability ``p``, the others divided by ``1 - p``; advances ``generator``.

    Raises InvalidArgument for a probability outside [0, 1).
    """
    if not 0 <= p < 1:
        raise InvalidArgument(f"a probability of dropout is 0 or more and below 1, got {p}")
    if not p or not x.size:
        return x
    tape, dense_x = current_tape(), dense(x)
    y = Tensor.empty(x.shape, x.dtype, x.queue)
    blocks = -(-x.size // 4)
    first_counter, seed = generator.advance(blocks, x.queue), generator.seed
    launch = _launch(x.context, x.dtype.name, blocks)
    numbers = (np.int64(x.size), np.uint64(seed), first_counter, np.float32(p), np.float32(1 / (1 - p)))
    launch(x.queue, (dense_x.base_data, np.int64(dense_x.offset // x.dtype.itemsize), y.base_data, *numbers))
    if tape is not None and tape.tracks(x):

        def backward(dy: Tensor) -> tuple[Tensor]:
            dy, dx = dense(dy), Tensor.empty(dy.shape, dy.dtype, dy.queue)
            launch(dy.queue, (dy.base_data, np.int64(dy.offset // dy.dtype.itemsize), dx.base_data, *numbers))
            return (dx,)

        tape.record(y, (x,), backward)
    return y


@keeps_programs
def _launch(context: cl.Context, dtype: str, blocks: int) -> Launch:
    text = storage_macros(dtype) + kernel_text("convdispatch.elementwise", "random.cl")
    text += kernel_text("convdispatch.nn", "dropout.cl")
    names = ("x", "offset", "y", "n", "seed", "first", "p", "scale")
    dtypes = (None, np.int64, None, np.int64, np.uint64, np.uint64, np.float32, np.float32)
    work = (-(-blocks // 256) * 256,)
    return Launch(build(context, text), "dropout", work, (256,), " ".join(names), names=names, dtypes=dtypes)
