"""apply: one kernel for any element-wise expression over any mix of strided and broadcast operands."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..device.tracing import operation
from ..tape import current_tape
from ..tensor import Tensor
from .expression import Formula, parse
from .kernel import Operand, Prepared, prepare
from .strides import broadcast, stretched
from .symbols import trace

__all__ = ["apply"]

_LIMIT = 8192
_calls: dict[Any, _Call] = {}


class _Call:
    """One formula over operands of known shapes, strides and types: everything that can be decided beforehand."""

    __slots__ = ("dtype", "formula", "places", "prepared", "scalars", "shape", "written")

    def __init__(self, text: str, given: dict[str, Any], out: Any, dtype: Any) -> None:
        self.formula = formula = parse(text)
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        _check(formula, given, tensors, text)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.shape = broadcast(shapes)
        self.written = [name for name in formula.assigned if name in tensors]
        for name in self.written:
            if tensors[name].shape != self.shape:
                raise InvalidArgument(f"{name} is assigned and needs the shape {self.shape}, got {tensors[name].shape}")
        first = next(iter(tensors.values()))
        self.scalars = tuple(name for name, value in given.items() if not isinstance(value, Tensor))
        self.dtype = None
        if formula.result is not None:
            self.dtype = (
                np.dtype(dtype) if dtype is not None else out.dtype if out is not None else _result(formula, given)
            )
            if out is not None and (out.shape != self.shape or (dtype is not None and out.dtype != self.dtype)):
                raise InvalidArgument(f"out must have shape {self.shape} and dtype {self.dtype}, got {out!r}")
        elif out is not None:
            raise InvalidArgument("out receives an expression's result; the formula ends with an assignment")
        operands = [
            _operand(name, tensor, self.shape, name in formula.read, name in self.written)
            for name, tensor in tensors.items()
        ]
        if formula.result is not None:
            target = out if out is not None else Tensor(first.base_data, self.shape, self.dtype, first.queue)
            operands.append(_operand("", target, self.shape, False, True))
        integral = all(isinstance(given[name], numbers.Integral) for name in self.scalars)
        self.prepared: Prepared | None = None
        if 0 not in self.shape:
            self.prepared = prepare(first.context, formula, self.shape, tuple(operands), self.scalars, integral)

    def __call__(self, given: dict[str, Any], out: Any) -> Any:
        lead = None
        arguments: list[Any] = []
        scalars: list[Any] = []
        for value in given.values():
            if isinstance(value, Tensor):
                lead = value if lead is None else lead
                arguments += (value.base_data, value.offset // value.dtype.itemsize)
            else:
                scalars.append(value)
        if self.dtype is not None:
            if out is None:
                out = Tensor.empty(self.shape, self.dtype, lead.queue)
            arguments += (out.base_data, out.offset // out.dtype.itemsize)
        if self.prepared is not None:
            self.prepared(lead.queue, arguments + scalars)
        return out


@operation
def apply(
    expression: str | Callable[..., Any], *operands: Any, out: Tensor | None = None, dtype: Any = None, **named: Any
) -> Any:
    """Compute ``expression`` for every element, in one kernel that is compiled once and kept.

    ``expression`` is text over named operands, ``apply("max(x, 0) * s", x=x, s=0.5)``, or a Python function of element
    values, ``apply(lambda x, y: x * y + 1, x, y)``. Operands are tensors, of any strides, that broadcast as in NumPy,
    and numbers. The result is a new tensor, or ``out``, which may be a view and may be an operand. Its dtype is
    ``dtype``, or what NumPy would give the tensors (numbers do not count; ``/`` and functions make floats of
    integers). A text may be statements, ``"v = m * v + g; p = p - r * v"``: a tensor that is assigned is written in
    place, other assigned names are temporary, and the call returns None unless the last statement is an expression.

    Float16 and bfloat16 are computed in float32. Results are recorded on the tape in force.

    Raises InvalidArgument for what is no formula, names that do not fit, and shapes that do not.
    """
    if type(expression) is not str:
        expression, names = trace(expression)
        named = dict(zip(names, operands, strict=True)) if not named and len(operands) == len(names) else {}
        if not named:
            raise InvalidArgument(f"the function takes {', '.join(names) or 'nothing'}, got {len(operands)} operands")
    elif operands:
        raise InvalidArgument("operands of a text are passed by name: apply('x + y', x=..., y=...)")
    key: list[Any] = [expression, dtype]
    known = None
    for name, value in named.items():
        if isinstance(value, Tensor):
            if value.queue is not known:  # asking a queue for its context costs more than all else here
                known = value.queue
                key.append(known.context)
            key += (name, value.shape, value.strides, value.dtype, value.offset & 15)
        else:
            key += (name, type(value))
    if out is not None:
        key += (out.shape, out.strides, out.dtype, out.offset & 15)
    key = tuple(key)  # type: ignore[assignment]
    call = _calls.get(key)
    if call is None:
        if len(_calls) >= _LIMIT:
            _calls.clear()
        call = _calls[key] = _Call(expression, named, out, dtype)
    result = call(named, out)
    tape = current_tape()
    if tape is not None:
        _record(tape, call, named, result)
    return result


def _check(formula: Formula, given: dict[str, Any], tensors: dict[str, Tensor], text: str) -> None:
    unknown = [name for name in formula.read if name not in given]
    if unknown:
        raise InvalidArgument(f"{text!r} reads {', '.join(sorted(unknown))}, but the operands are {', '.join(given)}")
    spare = [name for name in given if name not in formula.names]
    if spare:
        raise InvalidArgument(f"{text!r} does not use {', '.join(spare)}")
    if not tensors:
        raise InvalidArgument("apply needs a tensor among the operands")
    for name, value in given.items():
        if name in tensors:
            continue
        if not isinstance(value, numbers.Real):
            raise InvalidArgument(f"{name} must be a tensor or a number, got {type(value).__name__}")
        if name in formula.assigned:
            raise InvalidArgument(f"{name} is a number and cannot be assigned")
    contexts = {id(tensor.context) for tensor in tensors.values()}
    if len(contexts) > 1 and len({tensor.context for tensor in tensors.values()}) > 1:
        raise InvalidArgument("all operands must be on one device")


def _result(formula: Formula, given: dict[str, Any]) -> np.dtype:
    if formula.truth:
        return np.dtype(bool)
    dtypes = [value.dtype for value in given.values() if isinstance(value, Tensor)]
    floats = [dtype for dtype in dtypes if dtype.kind not in "iub"]
    if floats:
        widest = max(floats, key=lambda dtype: dtype.itemsize)
        names = {dtype.name for dtype in floats if dtype.itemsize == 2}
        return np.dtype(np.float32) if widest.itemsize == 2 and len(names) > 1 else widest
    whole = formula.integral and all(isinstance(v, Tensor | numbers.Integral) for v in given.values())
    return np.result_type(*dtypes) if whole else np.dtype(np.float32)


def _operand(name: str, tensor: Tensor, shape: tuple[int, ...], read: bool, written: bool) -> Operand:
    itemsize = tensor.dtype.itemsize
    strides = stretched(tensor.shape, tensor.strides, shape)
    if any(step % itemsize for step in strides) or tensor.offset % itemsize:
        raise InvalidArgument(f"{name or 'out'} must lie at multiples of its element size, got {tensor.strides}")
    if written and any(step == 0 and size > 1 for step, size in zip(strides, shape, strict=True)):
        raise InvalidArgument(f"{name or 'out'} is written, but its elements overlap (a stride of 0)")
    steps = tuple(step // itemsize for step in strides)
    return Operand(name, tensor.dtype, steps, read, written, tensor.offset % 16 == 0)


def _record(tape: Any, call: _Call, named: dict[str, Any], result: Any) -> None:
    tracked = [name for name, value in named.items() if isinstance(value, Tensor) and tape.tracks(value)]
    if not tracked:
        return
    if call.written or result is None:
        raise InvalidArgument(
            f"{call.formula.text!r} writes in place, which a tape cannot undo; leave the tape's block or use a result"
        )
    formula, slopes = call.formula, {}
    for name in tracked:
        slope = formula.derivative(name)
        if slope is not None:
            slopes[name] = slope
    inputs = [named[name] for name in slopes]
    shapes = {name: named[name].shape for name in slopes}
    needed = {
        name: {other: value for other, value in named.items() if other in parse(slope).names}
        for name, slope in slopes.items()
    }

    def backward(dy: Tensor) -> list[Tensor]:
        return [_pull(dy, slope, shapes[name], needed[name]) for name, slope in slopes.items()]

    tape.record(result, inputs, backward)


def _pull(dy: Tensor, slope: str, shape: tuple[int, ...], operands: dict[str, Any]) -> Tensor:
    """The gradient of an operand of ``shape`` whose slope is known: dy times slope, summed over what was repeated."""
    if slope == "1" and dy.shape == shape:
        return dy
    text, given = ("dy_", {"dy_": dy}) if slope == "1" else (f"dy_ * ({slope})", {"dy_": dy, **operands})
    if dy.shape == shape:
        return apply(text, **given)
    from .reductions import reduce

    extra = dy.ndim - len(shape)
    axes = tuple(a for a in range(dy.ndim) if a < extra or (shape[a - extra] == 1 and dy.shape[a] != 1))
    return reduce("sum", text, axes, **given).reshape(shape)
