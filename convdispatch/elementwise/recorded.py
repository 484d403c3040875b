"""``apply``, ``reduce`` and ``mean``: formulas over tensors, computed by cached kernels and recorded on the active
tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..api.errors import InvalidArgument
from ..device.tracing import operation
from .apply import compute
from .codegen.expression import parse
from .reductions import combine
from .tensor import Tensor, current_tape


@operation
def apply(expression: str, *, out: Tensor | None = None, dtype: Any = None, **named: Any) -> Any:
    """Compute ``expression`` for every element, in one kernel that is compiled once and cached.

    ``expression`` is text over named operands, ``apply("max(x, 0) * s", x=x, s=0.5)``. Operands are tensors, of any
    strides, that broadcast as in NumPy, and numbers. The result is a new tensor, or ``out``, which may be a view and
    may be an operand. Its dtype is ``dtype``, or what NumPy would give the tensors (numbers do not count; ``/`` and
    functions make floats of integers). A text may be statements, ``"v = m * v + g; p = p - r * v"``: a tensor that is
    assigned is written in place, other assigned names are temporary, and the call returns None unless the last
    statement is an expression.

    Float16 and bfloat16 are computed in float32. Results are recorded on the tape in force.

    Raises InvalidArgument for what is no formula, names that do not fit, and shapes that do not.
    """
    call, result = compute(expression, named, out, dtype)
    tape = current_tape()
    if tape is not None:
        _record_elements(tape, call, named, result)
    return result


@operation
def reduce(
    operation: str,
    expression: str,
    axes: int | Sequence[int] | None = None,
    *,
    keepdims: bool = False,
    dtype: Any = None,
    **operands: Any,
) -> Any:
    """Combine an expression's values over ``axes`` (all when None): ``reduce("sum", "x * y", (0, 2), x=x, y=y)``.

    ``operation`` is sum, prod, mean, max or min. Operands are tensors and numbers, as ``apply`` takes them. The result
    is of ``dtype``, or of what NumPy would give the tensors; sums and products of integers are int64. A sum of floats
    is taken in partial sums, of float32 for float16 and bfloat16. Recorded on the tape in force, except prod, max and
    min.

    Raises InvalidArgument for axes, names or shapes that do not fit.
    """
    call, result = combine(operation, expression, operands, axes, keepdims, dtype)
    tape = current_tape()
    if tape is not None:
        _record_sums(tape, call, operation, operands, result)
    return result


@operation
def mean(x: Tensor, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
    """The mean over ``axes``."""
    return reduce("mean", "x", axes, keepdims=keepdims, x=x)


def _record_elements(tape: Any, call: Any, named: dict[str, Any], result: Any) -> None:
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
    forms = {name: (named[name].shape, named[name].dtype) for name in slopes}
    needed = {
        name: {other: value for other, value in named.items() if other in parse(slope).names}
        for name, slope in slopes.items()
    }

    def backward(dy: Tensor) -> list[Tensor]:
        return [_pull(dy, slope, *forms[name], needed[name]) for name, slope in slopes.items()]

    tape.record(result, inputs, backward)


def _record_sums(tape: Any, call: Any, operation: str, given: dict[str, Any], result: Tensor) -> None:
    tracked = [name for name, value in given.items() if isinstance(value, Tensor) and tape.tracks(value)]
    if not tracked:
        return
    if operation in ("prod", "max", "min"):
        raise InvalidArgument(f"reduce({operation!r}) has no gradient here; use it outside the tape's block")
    keep = tuple(1 if a in call.axes else size for a, size in enumerate(call.shape))
    forms = {name: (given[name].shape, given[name].dtype) for name in tracked}

    def backward(dy: Tensor) -> list[Tensor | None]:
        wide, gradients = dy.reshape(keep).expand(call.shape), list[Tensor | None]()
        for name in tracked:
            slope = call.formula.derivative(name)
            if slope is not None and call.scale != 1.0:
                slope = f"({slope}) * {call.scale!r}"
            used = {n: v for n, v in given.items() if slope is not None and n in parse(slope).names}
            gradients.append(None if slope is None else _pull(wide, slope, *forms[name], used))
        return gradients

    tape.record(result, [given[name] for name in tracked], backward)


def _pull(dy: Tensor, slope: str, shape: tuple[int, ...], dtype: Any, operands: dict[str, Any]) -> Tensor:
    """The gradient of an operand of ``shape`` and ``dtype`` whose slope is known: dy times slope, summed over what was
    repeated."""
    if slope == "1" and dy.shape == shape and dy.dtype == dtype:
        return dy
    text, given = ("dy_", {"dy_": dy}) if slope == "1" else (f"dy_ * ({slope})", {"dy_": dy, **operands})
    if dy.shape == shape:
        return apply(text, dtype=dtype, **given)
    axes = _repeated(dy.shape, shape)
    return reduce("sum", text, axes, keepdims=True, dtype=dtype, **given).reshape(shape)


def sum_to(dy: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of what was expanded from ``shape``: the sum over what was repeated."""
    return reduce("sum", "x", _repeated(dy.shape, shape), x=dy).reshape(shape)


def _repeated(wide: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of ``wide`` along which ``shape`` was repeated."""
    extra = len(wide) - len(shape)
    return tuple(a for a in range(len(wide)) if a < extra or (shape[a - extra] == 1 and wide[a] != 1))
