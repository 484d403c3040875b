"""ATen's argmax and argmin, table look-ups by such indices, and distances of rows, by convdispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...elementwise import apply, argmax, reduce, take
from ...elementwise.tensor import Tensor
from ...nn import functional
from .operator_table import operator
from .quantized import Missing


def _places(x: Any, axis: int | None, keepdim: bool, largest: bool) -> Tensor:
    if axis is None:
        y = argmax(functional.view(x, (x.size,)), 0, largest=largest)
        return functional.view(y, (1,) * x.ndim) if keepdim else y
    return argmax(x, axis, keepdims=keepdim, largest=largest)  # type: ignore[no-any-return]


@operator("aten.argmax.default")
def _argmax(net: Any, x: Any, axis: int | None = None, keepdim: bool = False) -> Tensor:
    return _places(x, axis, keepdim, True)


@operator("aten.argmin.default")
def _argmin(net: Any, x: Any, axis: int | None = None, keepdim: bool = False) -> Tensor:
    return _places(x, axis, keepdim, False)


class _Extremes(Sequence[Tensor]):
    """The largest or smallest values along an axis; their indices are computed only on access."""

    def __init__(self, x: Tensor, axis: int, keepdim: bool, largest: bool) -> None:
        self._given = x, axis % x.ndim, keepdim, largest

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: Any) -> Any:
        x, axis, keepdim, largest = self._given
        if number:
            return _places(x, axis, keepdim, largest)
        return reduce("max" if largest else "min", "x", (axis,), keepdims=keepdim, x=x)


@operator("aten.max.dim")
def _max(net: Any, x: Any, axis: int, keepdim: bool = False) -> _Extremes:
    return _Extremes(x, axis, keepdim, True)


@operator("aten.min.dim")
def _min(net: Any, x: Any, axis: int, keepdim: bool = False) -> _Extremes:
    return _Extremes(x, axis, keepdim, False)


@operator("aten.embedding.default")
def _embedding(net: Any, table: Any, places: Any, *rest: Any) -> Tensor:
    """Rows of a table at computed indices. Indices of extremes along the table's rows are always within the table."""
    return take(net.put(table), places, 0)  # type: ignore[no-any-return]


@operator("aten._euclidean_dist.default")
def _distances_by_products(net: Any, x: Any, y: Any) -> Tensor:
    """``sqrt(|x|^2 + |y|^2 - 2 x y^T)`` of rows, which PyTorch uses if there are many rows."""
    x, y = net.put(x), net.put(y)
    x_squares, y_squares = (reduce("sum", "square(v)", (-1,), keepdims=True, v=each) for each in (x, y))
    products = functional.matmul(x, y.transpose(*range(y.ndim - 2), -1, -2))
    square = apply("a + b - 2 * p", a=x_squares, b=y_squares.transpose(*range(y_squares.ndim - 2), -1, -2), p=products)
    return apply("sqrt(where(s < 0, 0, s))", s=square)


@operator("aten._cdist_forward.default")
def _distances(net: Any, x: Any, y: Any, order: float, mode: Any = None) -> Tensor:
    if order not in (1, 2):
        raise Missing(f"distances of the order {order}")
    x, y = net.put(x)[..., :, None, :], net.put(y)[..., None, :, :]
    if order == 1:
        return reduce("sum", "abs(x - y)", (-1,), x=x, y=y)
    return apply("sqrt(s)", s=reduce("sum", "square(x - y)", (-1,), x=x, y=y))
