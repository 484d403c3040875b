"""Reductions of strided tensors, and of formulas over them, without the formula's values ever being stored."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..device.tracing import operation
from ..tape import current_tape
from ..tensor import Tensor
from .apply import _operand, _pull, _result
from .expression import parse
from .reduction_kernel import OPERATIONS, Reduction, plan
from .strides import broadcast

__all__ = ["mean", "reduce"]

_LIMIT = 4096
_calls: dict[Any, _Call] = {}


class _Call:
    """One reduction over operands of known shapes, strides and types."""

    __slots__ = ("axes", "dtypes", "formulas", "reduction", "scale", "shape", "short")

    def __init__(
        self, operation: str, texts: tuple[str, ...], axes: Any, keepdims: bool, given: dict[str, Any], store: Any
    ) -> None:
        if operation not in (*OPERATIONS, "mean"):
            raise InvalidArgument(f"reduce knows {', '.join((*OPERATIONS, 'mean'))}, got {operation!r}")
        self.formulas = formulas = tuple(parse(text) for text in texts)
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        names = {name for formula in formulas for name in formula.names}
        for formula in formulas:
            if formula.result is None or set(formula.assigned) & tensors.keys():
                raise InvalidArgument(f"reduce takes expressions that assign no operand, got {formula.text!r}")
            unknown = [name for name in formula.read if name not in given]
            if unknown:
                raise InvalidArgument(f"{formula.text!r} reads {', '.join(unknown)}; operands are {', '.join(given)}")
        if not tensors or given.keys() - names:
            raise InvalidArgument(f"reduce needs tensors, each used by {texts}; got {', '.join(given) or 'none'}")
        self.shape = shape = broadcast({name: tensor.shape for name, tensor in tensors.items()})
        if store is not None and store.shape != shape:
            raise InvalidArgument(f"store must have the operands' shape {shape}, got {store.shape}")
        self.axes = _axes(axes, len(shape))
        keep = tuple(1 if a in self.axes else size for a, size in enumerate(shape))
        self.short = keep if keepdims else tuple(size for a, size in enumerate(shape) if a not in self.axes)
        count = math.prod(shape[a] for a in self.axes)
        if not count and operation != "sum" and math.prod(self.short):
            raise InvalidArgument(f"{operation} needs at least one element, got shape {shape} over axes {self.axes}")
        self.scale = 1.0 / max(1, count) if operation == "mean" else 1.0
        self.dtypes = tuple(_kind(operation, formula, given) for formula in formulas)
        scalars = tuple(name for name, value in given.items() if not isinstance(value, Tensor))
        integral = operation != "mean" and all(isinstance(given[name], numbers.Integral) for name in scalars)
        self.reduction: Reduction | None = None
        if math.prod(shape):
            operands = tuple(_operand(name, tensor, shape, True, False) for name, tensor in tensors.items())
            operands += () if store is None else (_operand("", store, shape, False, True),)
            context = next(iter(tensors.values())).context
            kind = "sum" if operation == "mean" else operation
            self.reduction = plan(
                context, kind, formulas, shape, self.axes, operands, scalars, self.dtypes, self.scale, integral
            )


@operation
def reduce(
    operation: str,
    expression: str | Sequence[str],
    axes: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
    out: Tensor | Sequence[Tensor] | None = None,
    store: Tensor | None = None,
    **operands: Any,
) -> Any:
    """Combine an expression's values over ``axes`` (all when None): ``reduce("sum", "x * y", (0, 2), x=x, y=y)``.

    ``operation`` is sum, mean, max or min. Operands are tensors and numbers, as ``apply`` takes them. Several
    expressions, given as a tuple, are reduced in one pass, and a list of tensors is returned. ``out`` holds contiguous
    tensors for the results. ``store``, a tensor of the operands' shape that shares no memory with them, gets the first
    expression's values; no gradient goes through it. A sum of floats is taken in partial sums, of float32 for float16
    and bfloat16; sums of integers are int64. Recorded on the tape in force, except max and min.

    Raises InvalidArgument for axes, names or shapes that do not fit.
    """
    texts = (expression,) if isinstance(expression, str) else tuple(expression)
    key: list[Any] = [operation, texts, tuple(axes) if isinstance(axes, list) else axes, keepdims]
    known = None
    for name, value in operands.items():
        if isinstance(value, Tensor):
            if value.queue is not known:  # asking a queue for its context costs more than all else here
                known = value.queue
                key.append(known.context)
            key += (name, value.shape, value.strides, value.dtype, value.offset & 15)
        else:
            key += (name, type(value))
    if store is not None:
        key += (store.shape, store.strides, store.dtype, store.offset & 15)
    key = tuple(key)  # type: ignore[assignment]
    call = _calls.get(key)
    if call is None:
        if len(_calls) >= _LIMIT:
            _calls.clear()
        call = _calls[key] = _Call(operation, texts, axes, keepdims, operands, store)
    queue, arguments, scalars = None, [], []
    for value in operands.values():
        if isinstance(value, Tensor):
            queue = value.queue if queue is None else queue
            arguments += (value.base_data, value.offset // value.dtype.itemsize)
        else:
            scalars.append(value)
    if store is not None:
        arguments += (store.base_data, store.offset // store.dtype.itemsize)
    if out is None:
        results = [Tensor.empty(call.short, dtype, queue) for dtype in call.dtypes]
    else:
        results = [out] if isinstance(out, Tensor) else list(out)
        for given, dtype in zip(results, call.dtypes, strict=True):
            if given.shape != call.short or given.dtype != dtype or not given.contiguous:
                raise InvalidArgument(f"out must be a contiguous {dtype} tensor of shape {call.short}, got {given!r}")
    targets = [part for result in results for part in (result.base_data, result.offset // result.dtype.itemsize)]
    if call.reduction is not None:
        call.reduction(queue, arguments + scalars, targets)
    elif results[0].size:
        from .filling import fill

        for result in results:
            fill(result, 0)
    tape = current_tape()
    if tape is not None:
        _record(tape, call, operation, operands, results)
    return results[0] if isinstance(expression, str) else results


@operation
def mean(x: Tensor, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """The mean over ``axes``."""
    return reduce("mean", "x", axes, keepdims=keepdims, x=x)


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(ndim))
    try:
        given = tuple(map(operator.index, (axes,) if hasattr(axes, "__index__") else axes))
    except TypeError:
        raise InvalidArgument(f"axes must be integers, got {axes!r}") from None
    positive = tuple(axis + ndim if axis < 0 else axis for axis in given)
    if any(not 0 <= axis < ndim for axis in positive) or len(set(positive)) != len(positive):
        raise InvalidArgument(f"axes must be different ones among {ndim}, got {axes!r}")
    return positive


def _kind(operation: str, formula: Any, given: dict[str, Any]) -> np.dtype:
    dtype = _result(formula, given)
    if dtype.kind not in "iub":
        return dtype
    if operation == "mean":
        return np.dtype(np.float32)
    return np.dtype(np.int64) if operation == "sum" else dtype


def _record(tape: Any, call: _Call, operation: str, given: dict[str, Any], results: list[Tensor]) -> None:
    tracked = [name for name, value in given.items() if isinstance(value, Tensor) and tape.tracks(value)]
    if not tracked:
        return
    if operation in ("max", "min"):
        raise InvalidArgument(f"reduce({operation!r}) has no gradient here; use it outside the tape's block")
    keep = tuple(1 if a in call.axes else size for a, size in enumerate(call.shape))
    shapes = {name: given[name].shape for name in tracked}

    def backward(*dys: Tensor | None) -> list[Tensor | None]:
        total: list[Tensor | None] = []
        for name in tracked:
            sums = []
            for formula, dy in zip(call.formulas, dys, strict=True):
                slope = formula.derivative(name) if name in formula.names else None
                if dy is None or slope is None:
                    continue
                if call.scale != 1.0:
                    slope = f"({slope}) * {call.scale!r}"
                wide = dy.reshape(keep).expand(call.shape)
                used = {n: v for n, v in given.items() if n in parse(slope).names}
                sums.append(_pull(wide, slope, shapes[name], used))
            total.append(sums[0] if len(sums) == 1 else sum(sums[1:], sums[0]) if sums else None)
        return total

    tape.record(results, [given[name] for name in tracked], backward)
