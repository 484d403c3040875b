"""Means over windows of integers of 8 bits that stand for numbers, in integers again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...api.dtypes import INTEGERS
from ...device import runtime
from ...device.programs.kernels import Launch, build, config_macros, define, keeps_programs, kernel_text
from ...device.tracing import operation
from ...tensor import Tensor
from ..convolution import dense
from ..quantized import dequantize, quantize
from .pooling2d import avg_pool, windows_of

if TYPE_CHECKING:
    import pyopencl as cl

Form = tuple[float, int, str]
"""Scale, zero point and dtype of integers."""


@operation
def quantized_avg_pool(
    x: Tensor,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    *,
    x_form: Form,
    y_form: Form,
    dilation: Any = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "nchw",
) -> Tensor:
    """``quantize(avg_pool(dequantize(x)))``, on CPUs with channels last in one step. Raises as ``avg_pool``."""
    geometry = {"dilation": dilation, "ceil_mode": ceil_mode, "layout": layout}
    if layout == "nchw" or runtime.device_info(x.queue.device).type != "cpu":
        numbers = dequantize(x, *x_form[:2])
        means = avg_pool(numbers, kernel, stride, padding, count_include_pad=count_include_pad, **geometry)
        return quantize(means, *y_form)  # type: ignore[no-any-return]
    windows = windows_of(x, layout, kernel, stride, padding, dilation, ceil_mode)
    values = {**windows, "count_pad": int(count_include_pad)}
    given = dense(x)
    y = Tensor.empty((x.shape[0], values["oh"], values["ow"], x.shape[3]), y_form[2], x.queue)
    if y.size:
        launch = _launch(x.context, x.shape[0], x.shape[3], x_form, y_form, tuple(sorted(values.items())))
        launch(x.queue, (given.base_data, np.int64(given.offset), y.base_data))
    return y


@keeps_programs
def _launch(
    context: cl.Context, mb: int, channels: int, x_form: Form, y_form: Form, items: tuple[tuple[str, int], ...]
) -> Launch:
    values, limits = dict(items), np.iinfo(y_form[2])
    macros = {
        "mb": mb, "channels": channels, "nhwc": True, "average": True, "sum": False, "flat": False, "planes": False,
        "bytes": False, "gated": False, "index": "ulong", "lanes": next(n for n in (16, 8, 4, 1) if n <= channels),
        "low": limits.min - y_form[1], "high": limits.max - y_form[1],
        "zero": x_form[1], "y_zero": y_form[1], **values,
    }  # fmt: skip
    kinds = define(REAL=INTEGERS[x_form[2]].storage, RESULT=INTEGERS[y_form[2]].storage, ACC="float")
    scales = define(
        **{name: f"{float(np.float32(form[0])).hex()}f" for name, form in (("SCALE", x_form), ("Y_SCALE", y_form))}
    )
    text = "".join(kernel_text(__package__, file) for file in ("pool_windows.cl", "pool_bytes.cl"))
    names = ("x", "offset", "y")
    return Launch(build(context, kinds + scales + config_macros(macros) + text), "pool", (mb * values["oh"],), (1,),
                  "x offset y", names=names, dtypes=[None, np.int64, None])  # fmt: skip
