"""Turns a convolution of ``jax.lax`` into a problem of this package, with the transformations of its operands.

``lax.conv_general_dilated`` is one operator for all three directions: jax writes a data gradient as a convolution of a
dilated left side with reversed weights, and a weight gradient as a convolution in which batch and channels are
exchanged, with groups of the batch. Each is recognised:

- ``lhs_dilation`` over 1: the data gradient (a transposed convolution), lhs its y, rhs its w reversed, the result x;
- channels of lhs before its batch, or groups of the batch: the weights' gradient, lhs its x, rhs its y;
- both: the weights' gradient of a transposed one, rhs its x, lhs its y, the result reversed;
- else the forward direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..api.dtypes import DTYPES
from ..api.errors import InvalidProblem
from ..api.problem import ConvProblem
from ..calls.framework.fallback import Fallback

_AXES = "dhw"


class Plan(NamedTuple):
    """How a convolution of lax is computed: ``problem`` reads two arrays and writes the third.

    Axes are those of lax. XLA transposes an array whose axes in memory are not in the problem's order.
    """

    problem: ConvProblem
    orders: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """The axes of lhs, rhs and the result, each from the outermost in memory to the innermost."""
    crop: tuple[tuple[int, int], ...] = ()
    """The number of elements cut off lhs at both ends of each spatial axis; empty for none."""
    swapped: bool = False
    """Whether rhs is the operand that the problem reads first."""
    reverse_rhs: bool = False
    reverse_out: bool = False
    regroup: int = 1
    """The number of groups whose channels are exchanged in rhs: that of a grouped data gradient, otherwise 1."""


class _Window(NamedTuple):
    """The window of the convolution along one spatial axis."""

    size: int
    kernel: int
    out: int
    stride: int
    low: int
    high: int
    lhs_dilation: int
    rhs_dilation: int


def plan_of(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], out_shape: Sequence[int], dtype: str, math_: str, **params: Any
) -> Plan:
    """The plan of ``lax.conv_general_dilated``'s parameters. Raises Fallback with the reason if XLA must compute it."""
    numbers = params["dimension_numbers"]
    lhs_spec, rhs_spec, out_spec = (tuple(spec) for spec in numbers)
    ndim = len(lhs_spec) - 2
    if ndim not in (1, 2, 3):
        raise Fallback(f"1 to 3 axes of space only, got {ndim}")
    if dtype not in DTYPES:
        raise Fallback(f"{', '.join(DTYPES)} only, got {dtype}")
    preferred = params.get("preferred_element_type")
    if preferred is not None and str(preferred) != dtype:
        raise Fallback(f"results of the operands' type only, got {dtype} to {preferred}")
    windows = [
        _Window(lhs_shape[a], rhs_shape[b], out_shape[c], stride, low, high, left, right)
        for a, b, c, stride, (low, high), left, right in zip(
            lhs_spec[2:],
            rhs_spec[2:],
            out_spec[2:],
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    ]
    if not all(map(math.prod, (lhs_shape, rhs_shape, out_shape))):
        raise Fallback("an array without elements")
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    weights = batches > 1 or (lhs_spec[1] < lhs_spec[0] and groups == 1)
    dilated = any(window.lhs_dilation > 1 for window in windows)
    kind = _READERS[weights, dilated]
    sizes = _Sizes(
        lhs_shape[lhs_spec[0]], lhs_shape[lhs_spec[1]], rhs_shape[rhs_spec[0]], rhs_shape[rhs_spec[1]], groups, batches
    )
    layout = "nhwc" if lhs_spec[0 if weights else 1] == len(lhs_spec) - 1 else "nchw"
    try:
        return kind(sizes, windows, (lhs_spec, rhs_spec, out_spec), {"dtype": dtype, "layout": layout, "math": math_})
    except InvalidProblem as error:
        raise Fallback(str(error)) from None


class _Sizes(NamedTuple):
    """Sizes: batch and features of lhs, output and input features of rhs, and the numbers of groups."""

    n: int
    c: int
    o: int
    i: int
    groups: int
    batches: int


def _forward(sizes: _Sizes, windows: Sequence[_Window], specs: Any, common: dict[str, Any]) -> Plan:
    numbers, crop = {"mb": sizes.n, "ic": sizes.c, "oc": sizes.o, "g": sizes.groups}, []
    for axis, w in _by_axis(windows):
        cut = max(0, -w.low), max(0, -w.high)
        crop.append(cut)
        numbers |= _axis(axis, w.size - sum(cut), w.kernel, w.stride, max(0, w.low), max(0, w.high), w.rhs_dilation)
    # The weights have input channels outermost: the data gradient of the opposite product reads them in place.
    opposite = _is_product(sizes, windows) and specs[1][1] < specs[1][0]
    if opposite:
        numbers |= {"ic": sizes.o, "oc": sizes.c}
    problem = ConvProblem(ndim=len(windows), direction="bwd_data" if opposite else "fwd", **numbers, **common)
    return Plan(problem, _orders(specs, common["layout"], (0, int(opposite), 0)), tuple(crop))


def _data(sizes: _Sizes, windows: Sequence[_Window], specs: Any, common: dict[str, Any]) -> Plan:
    if any(w.stride > 1 for w in windows):
        raise Fallback("no steps of a dilated left side only, got window_strides and lhs_dilation over 1")
    numbers: dict[str, Any] = {"mb": sizes.n, "ic": sizes.o, "oc": sizes.c, "g": sizes.groups}
    for axis, w in _by_axis(windows):
        reach, stride = w.rhs_dilation * (w.kernel - 1), w.lhs_dilation
        low, high = reach - w.low, reach - w.high
        high += 0 if high >= 0 else min(stride - 1, -high)  # Rounding down of the output size absorbs this padding.
        if low < 0 or high < 0:
            raise Fallback(f"a transposed convolution that reaches beyond its kernel, got padding {(w.low, w.high)}")
        numbers |= _axis(axis, w.out, w.kernel, stride, low, high, w.rhs_dilation)
    problem = ConvProblem(ndim=len(windows), direction="bwd_data", **numbers, **common)
    _check_size(problem, [w.size for w in windows])
    orders = _orders(specs, common["layout"], (0, int(sizes.groups == 1), 0))
    return Plan(problem, orders, reverse_rhs=True, regroup=sizes.groups)


def _weights(sizes: _Sizes, windows: Sequence[_Window], specs: Any, common: dict[str, Any]) -> Plan:
    """lhs is x with its channels as batch, rhs the gradient of y, the result that of w."""
    numbers: dict[str, Any] = {"mb": sizes.c, "ic": sizes.n, "oc": sizes.o, "g": sizes.batches}
    crop = []
    for axis, w in _by_axis(windows):
        cut = max(0, -w.low)
        size, low = w.size - cut, max(0, w.low)
        # Y must have as many positions as rhs: the far end of x is padded or cut accordingly.
        need = w.rhs_dilation * (w.kernel - 1) + w.stride * (w.out - 1) + 1 - size - low
        # Elements of x behind the last one that is read; fewer than one step of them are lost by rounding down.
        cut_far = max(0, -need - (w.rhs_dilation - 1))
        crop.append((cut, cut_far))
        numbers |= _axis(axis, size - cut_far, w.out, w.rhs_dilation, low, max(0, need), w.stride)
    # The result has input channels outermost in memory, as if x and y were exchanged.
    swapped = sizes.batches == 1 and _is_product(sizes, [w._replace(kernel=w.out) for w in windows])
    swapped = swapped and specs[2][0] < specs[2][1]
    if swapped:
        numbers |= {"ic": sizes.o, "oc": sizes.n}
    problem = ConvProblem(ndim=len(windows), direction="bwd_weights", **numbers, **common)
    _check_size(problem, [w.kernel for w in windows])
    return Plan(problem, _orders(specs, common["layout"], (1, 1, int(not swapped))), tuple(crop), swapped)


def _weights_of_transposed(sizes: _Sizes, windows: Sequence[_Window], specs: Any, common: dict[str, Any]) -> Plan:
    """rhs is x, lhs the gradient of y, each with its channels as batch; the result is w's, reversed."""
    if sizes.batches > 1:
        raise Fallback("groups in the weights' gradient of a transposed convolution")
    if any(w.rhs_dilation > 1 for w in windows):
        raise Fallback("lhs_dilation and rhs_dilation over 1 where channels come before the batch")
    numbers: dict[str, Any] = {"mb": sizes.c, "ic": sizes.o, "oc": sizes.n, "g": 1}
    for axis, w in _by_axis(windows):
        low = w.stride * (w.out - 1) - w.low
        need = w.lhs_dilation * (w.size - 1) + w.stride * (w.out - 1) + 1 - w.kernel - low
        if low < 0 or need < 1 - w.lhs_dilation:
            raise Fallback(f"a transposed convolution that reaches beyond its kernel, got padding {(w.low, w.high)}")
        numbers |= _axis(axis, w.kernel, w.out, w.lhs_dilation, low, max(0, need), w.stride)
    problem = ConvProblem(ndim=len(windows), direction="bwd_weights", **numbers, **common)
    _check_size(problem, [w.size for w in windows])
    # The result's batch axis is the batch of lhs, here oc; its feature axis is the output features of rhs, here ic.
    return Plan(problem, _orders(specs, common["layout"], (1, 1, 0)), swapped=True, reverse_out=True)


_READERS = {
    (False, False): _forward,
    (False, True): _data,
    (True, False): _weights,
    (True, True): _weights_of_transposed,
}
"""The function that reads a convolution, by whether it is a weights' gradient and whether lhs is dilated."""


def _is_product(sizes: _Sizes, windows: Sequence[_Window]) -> bool:
    """Whether each pixel is multiplied by one matrix: a 1x1 kernel that neither steps nor pads."""
    plain = all(w.kernel == w.stride == w.rhs_dilation == 1 and w.low == w.high == 0 for w in windows)
    return plain and sizes.groups == 1


def _by_axis(windows: Sequence[_Window]) -> Any:
    return zip(_AXES[3 - len(windows) :], windows, strict=True)


def _axis(axis: str, size: int, kernel: int, stride: int, low: int, high: int, dilation: int) -> dict[str, int]:
    return {
        f"i{axis}": size, f"k{axis}": kernel, f"s{axis}": stride, f"p{axis}": low, f"p{axis}_r": high,
        f"d{axis}": dilation,
    }  # fmt: skip


def _check_size(problem: ConvProblem, sizes: Sequence[int]) -> None:
    """Check that the operand that is read as y has y's size. Raises Fallback."""
    y_sizes = [getattr(problem, "o" + axis) for axis in _AXES[3 - problem.ndim :]]
    if y_sizes != list(sizes):
        raise Fallback(f"the geometry is no gradient's: its y would be {y_sizes}, got {list(sizes)}")


def _orders(specs: Any, layout: str, turned: tuple[int, int, int]) -> Any:
    """Axes in memory: batch or output channels first, those of ``turned`` arrays the second of lax's."""
    orders = []
    for spec, is_turned in zip(specs, turned, strict=True):
        outer, inner = (spec[1], spec[0]) if is_turned else (spec[0], spec[1])
        orders.append((outer, *spec[2:], inner) if layout == "nhwc" else (outer, inner, *spec[2:]))
    return tuple(orders)
