"""One kernel for any element-wise expression over any mix of strided and broadcast operands."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ..api.errors import InvalidArgument
from ..calls.arrays.operands import elements_overlap
from ..device.programs.kernels import Programs, without_numbers
from .codegen.expression import Formula, parse
from .codegen.kernel import Operand, Prepared, prepare
from .codegen.strides import broadcast, stretched
from .tensor import Tensor

_calls = Programs(family=without_numbers)


class _BoundFormula:
    """One formula over operands of known shapes, strides and types: everything that can be decided beforehand."""

    __slots__ = ("dtype", "formula", "places", "prepared", "scalars", "shape", "written")

    def __init__(self, text: str, given: dict[str, Any], out: Any, dtype: Any) -> None:
        self.formula = formula = parse(text)
        tensors = checked_tensors(formula, given)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.shape = broadcast(shapes)
        self.written = [name for name in formula.assigned if name in tensors]
        for name in self.written:
            if tensors[name].shape != self.shape:
                raise InvalidArgument(f"{name} is assigned and needs the shape {self.shape}, got {tensors[name].shape}")
        example = next(iter(tensors.values()))
        self.scalars = tuple(name for name, value in given.items() if not isinstance(value, Tensor))
        self.dtype = None
        if formula.result is not None:
            self.dtype = (
                np.dtype(dtype) if dtype is not None else out.dtype if out is not None else result_dtype(formula, given)
            )
            if out is not None and (out.shape != self.shape or (dtype is not None and out.dtype != self.dtype)):
                raise InvalidArgument(f"out must have shape {self.shape} and dtype {self.dtype}, got {out!r}")
        elif out is not None:
            raise InvalidArgument("out receives an expression's result; the formula ends with an assignment")
        operands = [
            operand_of(name, tensor, self.shape, name in formula.read, name in self.written)
            for name, tensor in tensors.items()
        ]
        if formula.result is not None:
            target = out if out is not None else Tensor(example.base_data, self.shape, self.dtype, example.queue)
            operands.append(operand_of("", target, self.shape, False, True))
        integral = all(isinstance(given[name], numbers.Integral) for name in self.scalars)
        self.prepared: Prepared | None = None
        if 0 not in self.shape:
            self.prepared = prepare(example.context, formula, self.shape, tuple(operands), self.scalars, integral)

    def __call__(self, given: dict[str, Any], out: Any) -> Any:
        queue, arguments, scalars = launch_arguments(given)
        if self.dtype is not None:
            if out is None:
                out = Tensor.empty(self.shape, self.dtype, queue)
            arguments += (out.base_data, out.offset // out.dtype.itemsize)
        if self.prepared is not None:
            self.prepared(queue, arguments + scalars)
        return out


def compute(
    expression: str, named: dict[str, Any], out: Tensor | None = None, dtype: Any = None
) -> tuple[_BoundFormula, Any]:
    """What ``apply`` computes, of a text over named operands, without a note on a tape: (what was decided, result)."""
    key = forms([expression, dtype], named, out)
    call = _calls.get(key)
    if call is None:
        call = _calls.make(key, lambda: _BoundFormula(expression, named, out, dtype))
    return call, call(named, out)


def forms(key: list[Any], named: dict[str, Any], written: Tensor | None) -> tuple[Any, ...]:
    """``key`` and all of the operands that a kept call depends on: shapes, strides, dtypes, alignment, devices."""
    last_queue = None
    for name, value in named.items():
        if isinstance(value, Tensor):
            # The context is read once per queue, because that call costs more than everything else in this loop.
            if value.queue is not last_queue:
                last_queue = value.queue
                key.append(last_queue.context)
            key += (name, value.shape, value.strides, value.dtype, value.offset & 15)
        else:
            key += (name, type(value))
    if written is not None:
        key += (written.shape, written.strides, written.dtype, written.offset & 15)
    return tuple(key)


def launch_arguments(operands: dict[str, Any]) -> tuple[Any, list[Any], list[Any]]:
    """The first tensor's queue, buffer and first element of each tensor, and the numbers."""
    queue: Any = None
    arguments: list[Any] = []
    scalars: list[Any] = []
    for value in operands.values():
        if isinstance(value, Tensor):
            queue = value.queue if queue is None else queue
            arguments += (value.base_data, value.offset // value.dtype.itemsize)
        else:
            scalars.append(value)
    return queue, arguments, scalars


def checked_tensors(formula: Formula, operands: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors among the operands. Raises InvalidArgument for operands that the formula does not read, or cannot."""
    tensors = {name: value for name, value in operands.items() if isinstance(value, Tensor)}
    unknown = formula.read - operands.keys()
    if unknown:
        raise InvalidArgument(
            f"{formula.text!r} reads {', '.join(sorted(unknown))}, but the operands are {', '.join(operands)}"
        )
    spare = operands.keys() - set(formula.names)
    if spare:
        raise InvalidArgument(f"{formula.text!r} does not use {', '.join(sorted(spare))}")
    if not tensors:
        raise InvalidArgument("a formula needs a tensor among the operands")
    for name, value in operands.items():
        if name in tensors:
            continue
        if not isinstance(value, numbers.Real):
            raise InvalidArgument(f"{name} must be a tensor or a number, got {type(value).__name__}")
        if name in formula.assigned:
            raise InvalidArgument(f"{name} is a number and cannot be assigned")
    if len({tensor.context for tensor in tensors.values()}) > 1:
        raise InvalidArgument("all operands must be on one device")
    return tensors


def result_dtype(formula: Formula, given: dict[str, Any]) -> np.dtype:
    """What a formula over tensors and numbers gives, by NumPy's rules for the tensors alone."""
    if formula.truth:
        return np.dtype(bool)
    dtypes = [value.dtype for value in given.values() if isinstance(value, Tensor)]
    floats = [dtype for dtype in dtypes if dtype.kind not in "iub"]
    if floats:
        widest = max(floats, key=lambda dtype: dtype.itemsize)
        names = {dtype.name for dtype in floats if dtype.itemsize == 2}
        return np.dtype(np.float32) if widest.itemsize == 2 and len(names) > 1 else widest
    is_integer = formula.integral and all(isinstance(v, Tensor | numbers.Integral) for v in given.values())
    return np.result_type(*dtypes) if is_integer else np.dtype(np.float32)


def operand_of(name: str, tensor: Tensor, shape: tuple[int, ...], read: bool, written: bool) -> Operand:
    """A tensor as the kernel sees it, stretched to ``shape``. Raises InvalidArgument where it cannot be written so."""
    itemsize = tensor.dtype.itemsize
    strides = stretched(tensor.shape, tensor.strides, shape)
    if any(step % itemsize for step in strides) or tensor.offset % itemsize:
        raise InvalidArgument(f"{name or 'out'} must lie at multiples of its element size, got {tensor.strides}")
    if written and elements_overlap(shape, strides, itemsize):
        raise InvalidArgument(f"{name or 'out'} is written, but its elements overlap, as a broadcast view's do")
    steps = tuple(step // itemsize for step in strides)
    return Operand(name, tensor.dtype, steps, read, written, tensor.offset % 16 == 0)
