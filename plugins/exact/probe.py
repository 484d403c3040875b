"""Checks once per device that its fma() rounds once, in every range, and that it keeps subnormal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from convdispatch.api import PluginError, build, proven, storage_macros

_TEXT = """
#pragma OPENCL FP_CONTRACT OFF
kernel void probe(global const ACC *a, global ACC *y) {
  const size_t i = get_global_id(0);
  y[i] = fma(a[3 * i], a[3 * i + 1], a[3 * i + 2]);
  y[get_global_size(0) + i] = a[3 * i] + a[3 * i + 2];
}
"""


def require(context: Any, dtype: str) -> None:
    """Raises PluginError where the context's device fails."""
    failure = proven(__package__, f"fma of {dtype}", context.devices[0], lambda: _failure(context, dtype))
    if failure is not None:
        raise PluginError(failure)


def cases(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Triples (a, b, c), and their fma and a + c. Sums that two roundings get wrong, subnormal sums and operands."""
    ulp, least = (2.0**-23, 2.0**-149) if dtype == "float32" else (2.0**-52, 2.0**-1074)
    edge = least / ulp  # the smallest normal number
    triples = [
        (1 + ulp, 1 + ulp, -(1 + 2 * ulp), ulp * ulp),
        (1 + ulp, 1 - ulp, -1.0, -ulp * ulp),
        (1 + ulp, 1 + ulp / 2 * 2, 2 / ulp**2, 2 / ulp**2),
        # A tie that the product's last bit breaks, which an intermediate rounding loses.
        (1 + ulp, 2.0**-1 * ulp * (1 - ulp), 1.0, 1.0),
        (1 + ulp, 2.0**-1 * ulp, 1.0, 1 + ulp),
        (edge, 0.5, least, edge / 2 + least),
        (least, 1.0, 0.0, least),
        (3 * least, 0.5, 0.0, 2 * least),
        (edge, -ulp, 2 * least, least),
        (-edge, edge, 0.0, -0.0),
    ]
    table = np.array(triples, dtype)
    with np.errstate(all="ignore"):
        sums = np.concatenate([table[:, 3], table[:, 0] + table[:, 2]])
    return np.ascontiguousarray(table[:, :3]), sums


def _failure(context: Any, dtype: str) -> str | None:
    triples, wanted = cases(dtype)
    got = np.empty_like(wanted)
    program = build(context, storage_macros(dtype) + _TEXT)
    flags, queue = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, cl.CommandQueue(context)
    buffers = [cl.Buffer(context, flags, hostbuf=each) for each in (triples, got)]
    cl.Kernel(program, "probe")(queue, (len(triples),), None, *buffers)
    cl.enqueue_copy(queue, got, buffers[1])
    wrong = np.flatnonzero(got.view(f"u{got.itemsize}") != wanted.view(f"u{wanted.itemsize}"))
    if not wrong.size:
        return None
    which = int(wrong[0])
    a, b, c = triples[which % len(triples)]
    what = f"fma({a!r}, {b!r}, {c!r})" if which < len(triples) else f"{a!r} + {c!r}"
    return f"a fused multiply-add that rounds once and keeps subnormal numbers only, got {got[which]!r} for {what}"
