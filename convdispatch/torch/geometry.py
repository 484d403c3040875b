"""Converts the arguments of ``aten::convolution`` into the problems of its forward and its two gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..api import dtypes
from ..api.errors import InvalidArgument
from ..api.problem import ConvProblem
from ..calls.arguments import describe, transposed_shape

DTYPES = {getattr(torch, row.array_name): name for name, row in dtypes.DTYPES.items()}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_TRANSPOSED = {"forward": "bwd_data", "data": "fwd", "weights": "bwd_weights"}
PLAIN: tuple[Any, ...] = (None, False, None, False)
"""The parts of a plain convolution's problem beside a bias: activation, residual, norm and sums."""
ADDED: tuple[Any, ...] = (None, True, None, False)
"""Of weights' gradients: they are added to what the result holds."""
_PLAIN = {"forward": "fwd", "data": "bwd_data", "weights": "bwd_weights"}


def for_each_axis(values: Any, ndim: int) -> list[int]:
    """A number for each of ``ndim`` axes: one number, by itself or in a sequence, applies to all."""
    numbers = [values] if isinstance(values, int | torch.SymInt) else list(values)
    return numbers * ndim if len(numbers) == 1 else numbers


class Geometry(NamedTuple):
    """The arguments of ``aten::convolution`` that are not tensors; a sequence of one number applies to all axes.

    ``padding`` may also hold the zeros before each axis and behind them those after each axis, as our operator
    ``fused_convolution`` takes them; see ``padded``."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Geometry:
        """The geometry from the operator's own arguments."""
        return cls(tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups)

    def rows(self, ndim: int) -> list[int]:
        """The number of zeros to append to a transposed convolution's input along each axis, for an ``output_padding``
        that reaches beyond what a convolution's rounding down absorbs. Raises InvalidArgument for one that PyTorch
        refuses."""
        if not self.transposed or not any(self.output_padding):
            return [0] * ndim

        lists = (for_each_axis(each, ndim) for each in (self.output_padding, self.stride, self.padding, self.dilation))
        rows = []
        for extra, step, pad, spacing in zip(*lists, strict=True):
            if extra >= max(step, spacing):
                raise InvalidArgument(
                    "output_padding must be smaller than the stride or the dilation, "
                    f"got {extra} for {step} and {spacing}"
                )
            rows.append(max(0, extra - pad) // max(step, 1) if extra >= step else 0)
        return rows

    def without(self, rows: Sequence[int]) -> Geometry:
        """The geometry for an input to which these rows of zeros have been appended."""
        extra, steps = (for_each_axis(each, len(rows)) for each in (self.output_padding, self.stride))
        output_padding = tuple(each - count * step for each, count, step in zip(extra, rows, steps, strict=True))
        return self._replace(output_padding=output_padding)


def whole(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int], bool, Sequence[int], int]:
    """The geometry of a convolution that is not transposed, in the order of ``aten::convolution``'s arguments."""
    return stride, padding, dilation, False, [0] * len(stride), groups


def roles(part: str, transposed: bool) -> tuple[str, tuple[str, str, str]]:
    """The direction, and the names of x, w and y, of a part: ``forward``, ``data`` (input's gradient) or ``weights``.

    A transposed convolution is the backward-data of a plain one, so its input is that one's y.
    """
    if transposed:
        output_name, input_name = ("output", "input") if part == "forward" else ("grad_output", "input")
        return _TRANSPOSED[part], (output_name, "weight", input_name)
    return _PLAIN[part], ("input", "weight", "output" if part == "forward" else "grad_output")


def format_of(x: torch.Tensor, w: torch.Tensor, bias: Any, geometry: Geometry) -> Any:
    """The memory format of PyTorch's result; None if it cannot be known for such a tensor."""
    with_bias = None if bias is None else [w.shape[0]]
    stride, padding, dilation, transposed, extra, groups = geometry
    stride, padding, dilation, extra = (for_each_axis(each, x.ndim - 2) for each in (stride, padding, dilation, extra))  # type: ignore[assignment]
    arguments = stride, padding[: x.ndim - 2], dilation, transposed, extra, groups, with_bias
    backend = torch._C._select_conv_backend(x, w, bias, *arguments)
    return torch._C._conv_determine_backend_memory_format(x, w, backend)


def has_sides(padding: Sequence[int], ndim: int) -> bool:
    """Whether a convolution's padding of ``ndim`` axes has a number for each side of each axis."""
    return len(padding) == 2 * ndim


def padded(x: torch.Tensor, geometry: Sequence[Any]) -> tuple[torch.Tensor, Sequence[Any]]:
    """The input and the geometry for an operator of PyTorch's, whose padding has no sides: where there are any, zeros
    are copied round the input."""
    ndim, padding = x.ndim - 2, geometry[1]
    if not has_sides(padding, ndim):
        return x, geometry
    stride, _, *rest = geometry
    return torch.ops.aten.constant_pad_nd.default(x, by_axis(padding)), (stride, [0] * ndim, *rest)


def by_axis(padding: Sequence[int]) -> list[int]:
    """A padding with sides as ``torch.nn.functional.pad`` takes it: both sides of the last axis, of the one before."""
    ndim = len(padding) // 2
    return [side for axis in reversed(range(ndim)) for side in (padding[axis], padding[ndim + axis])]


def problem_of(
    part: str,
    geometry: Geometry,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    grad_shape: Sequence[int] | None,
    dtype: str,
    *,
    last: bool,
    math: str,
    bias: bool = False,
    constant: bool = False,
    after: tuple[Any, ...] = PLAIN,
) -> ConvProblem:
    """The problem of one part of a convolution; ``last``: tensors are channels last; ``after``: see PLAIN.

    Raises InvalidArgument, InvalidProblem, by the operator's own names.
    """
    layout = "nhwc" if last else "nchw"
    order = _last_order if last else tuple
    stride, padding, dilation, transposed, output_padding, groups = geometry
    stride, padding, dilation, output_padding = (
        values[0] if len(values) == 1 else values for values in (stride, padding, dilation, output_padding)
    )
    x, w = order(input_shape), order(weight_shape)
    direction, names = roles(part, transposed)
    pads: Any = padding
    ndim = len(x) - 2
    if not isinstance(padding, int) and has_sides(padding, ndim):
        pads = list(zip(padding[:ndim], padding[ndim:], strict=True))
    if transposed:
        common = {"stride": stride, "dilation": dilation, "groups": groups, "layout": layout}
        shape, pads, _ = transposed_shape(x, w, padding=padding, output_padding=output_padding, **common)
        x, y = shape, x
        if grad_shape is not None and order(grad_shape) != x:
            raise InvalidArgument(f"grad_output must have shape {x}, got {order(grad_shape)}")
    else:
        y = None if grad_shape is None else order(grad_shape)
    activation, residual, norm, sums = after
    adds = part == "weights" and residual
    problem = describe(
        direction,
        x,
        w,
        y,
        dtype,
        stride=stride,
        padding=pads,
        dilation=dilation,
        groups=groups,
        layout=layout,
        math=math,
        names=names,
        bias=bias,
        constant_weights=constant,
        activation=activation,
        residual=residual and not adds,
        norm=norm,
        sums=sums,
    )
    return problem.replace(accumulate=True) if adds else problem


def _last_order(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])
