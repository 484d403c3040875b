"""Batch norm while training in one kernel each way, or two where channels are few: GPUs, channels first, float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyopencl as cl

from ...device import runtime
from ...device.programs.kernels import Launch, build, config_macros, keeps_programs, kernel_text
from ...elementwise.tensor import Tensor
from ..convolution import dense
from ..tape import Tape

MIN_PIXELS = 8
"""The least contiguous pixels of a channel for which the batch-norm kernel, which reads along them, is used."""
CHANNEL_GROUP_ITEMS = 512
"""The most work items of a work group that computes a whole channel."""
SHARE_GROUP_ITEMS = 256
"""The most work items of a work group that computes a part of a channel."""
ONE_GROUP_VALUES = 1 << 14
"""The number of values of a channel up to which one work group computes it."""
SHARED_VALUES = 1 << 16
"""The number of values of a channel beyond which several work groups share it."""
GROUPS_PER_UNIT = 16
"""The number of work groups for each compute unit if channels are shared."""


class _Form(NamedTuple):
    """The values that the kernels' source text depends on."""

    mb: int
    channels: int
    pixels: int
    relu: bool
    residual: bool
    keep: bool
    """Whether the residual's gradient is computed, because it is required and differs from dy."""
    backward: bool
    wide: bool
    """Whether every tensor, and every row of it, is aligned to 16 bytes."""


def takes(x: Tensor, axis: int, vectors: Sequence[Tensor], residual: Tensor | None, tape: Tape | None) -> bool:
    """Return whether the kernels here support these operands; ``vectors`` are scale, shift and running statistics."""
    if runtime.device_info(x.queue.device).type == "cpu" or axis != 1:
        return False
    operands = (x, *vectors) if residual is None else (x, residual, *vectors)
    if any(tensor.dtype != np.float32 or not tensor.contiguous for tensor in operands):
        return False
    if residual is not None and residual.shape != x.shape:
        return False
    if tape is not None and not tape.tracks(x) and any(tape.tracks(tensor) for tensor in operands):
        return False  # Gradients of scale and shift without that of x are rare, and are computed by other kernels.
    return math.prod(x.shape[2:]) >= MIN_PIXELS and x.shape[0] * math.prod(x.shape[2:]) < 2**31


def normalise(
    x: Tensor,
    vectors: Sequence[Tensor],
    residual: Tensor | None,
    numbers: tuple[float, float],
    relu: bool,
    tape: Tape | None,
) -> Tensor:
    """Batch norm with operands that ``takes`` takes, recorded on ``tape``; ``numbers`` are momentum and epsilon."""
    scale, shift, *_ = vectors
    mb, channels = x.shape[:2]
    keep = relu and tape is not None and tape.tracks(residual)
    form = _Form(mb, channels, math.prod(x.shape[2:]), relu, residual is not None, keep, False, False)
    y = Tensor.empty(x.shape, x.dtype, x.queue)
    stats = runtime.allocate(x.queue, 3 * channels * 4)
    tensors = [x] if residual is None else [x, residual]
    operands = [*(part for tensor in (x, *vectors) for part in _place(tensor)), *map(np.float32, numbers)]
    epilogue = [] if residual is None else _place(residual)
    _run(form, x.queue, _place(x), operands, [*epilogue, stats, y.base_data], tensors)
    if tape is None or not tape.tracks(x):
        return y
    # relu's slope follows from x, which backward reads anyway; y is kept only if a residual was added.
    result = y.base_data if relu and residual is not None else stats

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        dy = dense(dy)
        dx, dres = Tensor.empty(x.shape, x.dtype, x.queue), None
        dscale, dshift = (_target(tape, tensor) for tensor in (scale, shift))
        if keep:
            dres = Tensor.empty(x.shape, x.dtype, x.queue)
        operands = [*_place(dy), *_place(x), *_place(shift), stats, result, stats if dres is None else dres.base_data]
        outputs = [*_place(dscale), *_place(dshift), dx.base_data]
        _run(form._replace(backward=True), x.queue, operands, operands, outputs, [dy, x])
        return dx, dscale, dshift, dres if keep else dy if tape.tracks(residual) else None

    tape.record(y, (x, scale, shift, residual), backward)
    return y


def _place(tensor: Tensor) -> list:
    return [tensor.base_data, np.int64(tensor.offset // tensor.dtype.itemsize)]


def _target(tape: Tape, vector: Tensor) -> Tensor:
    """Return the tensor to which the gradient of a vector is written."""
    sink = tape.sink(vector) if tape.tracks(vector) else None
    return sink if sink is not None and sink.contiguous else Tensor.empty(vector.shape, vector.dtype, vector.queue)


def _run(
    form: _Form, queue: cl.CommandQueue, summed: list, operands: list, outputs: list, tensors: Sequence[Tensor]
) -> None:
    """Sums, where a kernel of their own makes them, and what follows from them."""
    wide = form.pixels % 4 == 0 and all(tensor.offset % 16 == 0 for tensor in tensors)
    sums, final_launch, partial = _launches(queue.context, form._replace(wide=wide))
    if sums is None:
        final_launch(queue, (*operands, *outputs))
        return
    memory = runtime.allocate(queue, partial)
    sums(queue, (*summed, memory))
    final_launch(queue, (*operands, memory, *outputs))


@keeps_programs
def _launches(context: cl.Context, form: _Form) -> tuple[Launch | None, Launch, int]:
    """The kernel of sums, where there is one, the last one, and the bytes of what lies between."""
    info = runtime.device_info(context.devices[0])
    vector_count = form.mb * form.pixels // (4 if form.wide else 1)
    splits, parts = _shares(form.mb * form.pixels, vector_count, form.channels, info.compute_units)
    group = 1 << (min(SHARE_GROUP_ITEMS if splits else CHANNEL_GROUP_ITEMS, info.max_work_group_size).bit_length() - 1)
    group = min(group, 1 << (vector_count // 2).bit_length())
    splits = min(splits, group)
    values = form._asdict() | {"wide": 4 if form.wide else 1, "group": group, "splits": splits, "parts": parts}
    program = build(context, config_macros(values) + kernel_text(__package__, "batch_norm.cl"))
    name = "batch_norm_backward" if form.backward else "batch_norm"

    def launch(name: str, groups: int, count: int) -> Launch:
        names = [f"a{i}" for i in range(count)]
        return Launch(program, name, (form.channels * groups * group,), (group,), names, names=names)

    summed, output_count = (9, 5) if form.backward else (2, 2 + 2 * form.residual)
    operands = summed if form.backward else 12
    if not splits:
        return None, launch(name, 1, operands + output_count), 0
    sums, final_launch = launch(f"{name}_sums", splits, summed + 1), launch(name, parts, operands + 1 + output_count)
    return sums, final_launch, 8 * form.channels * splits


def _shares(values: int, vector_count: int, channels: int, units: int) -> tuple[int, int]:
    """Groups that sum a channel, 0 where the one that does the rest sums too; groups that do the rest."""
    if values <= ONE_GROUP_VALUES or (values <= SHARED_VALUES and 2 * channels >= units):
        return 0, 1
    busy = 4 * SHARE_GROUP_ITEMS  # A group has at least four values for each of its work items.
    wanted_shares = -(-GROUPS_PER_UNIT * units // channels)
    return max(1, min(wanted_shares, vector_count // busy, SHARE_GROUP_ITEMS)), max(1, vector_count // busy)
