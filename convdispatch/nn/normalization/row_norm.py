"""Rows by their own statistics in one kernel: what group, instance and layer norms are of contiguous tensors."""

from __future__ import annotations

import math

import numpy as np
import pyopencl as cl

from ...api.activations import activation_macro
from ...api.dtypes import storage_macros
from ...api.policy import current_policy
from ...device import runtime
from ...device.programs.kernels import Launch, build, config_macros, keeps_programs, kernel_text
from ...elementwise.tensor import Tensor
from ..convolution import dense
from ..tape import current_tape

GROUP_ELEMENTS = 2048
"""The most elements of the rows that one work group of a CPU computes if each row has fewer: a group of one row of 40
elements took 41 ns, a row among 32 takes 15."""
MIN_GROUPS = 32
"""The least number of work groups that a CPU's rows are divided into, if there are as many rows."""
_ITEMS = 64
_FEW = 1 << 13
"""The number of elements of a tensor of few rows from which several launches are faster than one work group per row."""


def rows_of_a_group(rows: int, width: int) -> int:
    """The rows that one work group of a CPU computes: a divisor of their number."""
    most = max(1, min(GROUP_ELEMENTS // width, rows // MIN_GROUPS))
    return next(count for count in range(most, 0, -1) if rows % count == 0)


def row_norm(
    x: Tensor,
    width: int,
    each: int,
    affine: tuple[Tensor | None, Tensor | None],
    epsilon: float,
    activation: str | None,
) -> Tensor | None:
    """The activation of rows of ``width`` elements, less their mean, over their standard deviation, times scale plus
    shift, which are ``affine``.

    ``each`` neighbours share an element of scale and shift, whose rows follow each other and begin again. None where
    that is no kernel of one launch: gradients are recorded, types differ, or the rows are too few for the device.
    """
    tape, parameters = current_tape(), (x, *affine)
    if tape is not None and any(t is not None and tape.tracks(t) for t in parameters):
        return None
    if not x.size or any(t is not None and (t.dtype != x.dtype or t.size % (width // each)) for t in parameters[1:]):
        return None
    rows, channels = x.size // width, max((t.size for t in parameters[1:] if t is not None), default=width // each)
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        return None
    info = runtime.device_info(x.queue.device)
    if rows < info.compute_units and x.size > _FEW and not current_policy().is_invariant:
        return None
    # x takes the argument of a missing scale or shift, which the kernel does not read.
    arrays = [x if t is None else dense(t) for t in parameters]
    y = Tensor.empty(x.shape, x.dtype, x.queue)
    flags = (*(t is not None for t in affine), activation)
    launch = _row_norm(x.context, x.dtype.name, width, rows, each, channels * each // width, *flags, float(epsilon))
    memory_and_offsets = [part for t in arrays for part in (t.base_data, np.int64(t.offset // t.dtype.itemsize))]
    launch(x.queue, (*memory_and_offsets, y.base_data))
    return y


@keeps_programs
def _row_norm(
    context: cl.Context,
    dtype: str,
    width: int,
    rows: int,
    each: int,
    groups: int,
    scaled: bool,
    shifted: bool,
    activation: str | None,
    epsilon: float,
) -> Launch:
    gpu = runtime.device_info(context.devices[0]).type != "cpu"
    vectors = not gpu and dtype == "float32"
    group_rows = rows_of_a_group(rows, width) if vectors else 1
    items = 1 if vectors else min(256 if gpu else _ITEMS, 1 << max(5, math.ceil(math.log2(width / 4))))
    values = {
        "width": width,
        "each": each,
        "groups": groups,
        "items": items,
        "vectors": vectors,
        "rows": group_rows,
        "scaled": scaled,
        "shifted": shifted,
        "epsilon": f"{epsilon!r}{'' if dtype == 'float64' else 'f'}",
    }
    macros = storage_macros(dtype) + config_macros(values) + activation_macro(activation)
    program = build(context, macros + kernel_text(__package__, "row_norm.cl"))
    names = ("x", "x_offset", "scale", "scale_offset", "shift", "shift_offset", "y")
    return Launch(program, "row_norm", (rows // group_rows * items,), (items,), " ".join(names), names=names)
