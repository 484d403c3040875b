"""The tape: what was computed, in order, so that gradients can be computed backwards.

Inside ``with Tape() as tape:`` every differentiable operation that meets a Parameter, or something computed from one,
appends a note: its inputs, and a function from the result's gradient to theirs. ``tape.backward(loss)`` reads the
notes from the last to the first and writes each Parameter's ``grad``. A note is dropped as soon as it was read, and
its activations with it. Outside a block nothing is noted and nothing is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ..api.errors import InvalidArgument
from ..elementwise import apply, full
from ..elementwise.tensor import Parameter, Tensor, current_tape, paused, put_in_force

__all__ = ["Tape", "current_tape", "paused"]

_marks = itertools.count(1)
Backward = Callable[..., Sequence["Tensor | None"]]
_AT_ONCE = 8
"""The most gradients of one tensor that one kernel adds up."""


class Tape:
    """Notes of one forward pass; a context manager that puts itself in force."""

    def __init__(self) -> None:
        self._notes: list[tuple[int, tuple[int, ...], Backward]] = []
        self._parameters: dict[int, Parameter] = {}
        self._first = next(_marks)
        self._outer: Tape | None = None

    def __enter__(self) -> Tape:
        self._outer = put_in_force(self)
        return self

    def __exit__(self, *error: object) -> None:
        put_in_force(self._outer)
        if error[0] is not None:
            self._notes.clear()

    def __len__(self) -> int:
        return len(self._notes)

    def watch(self, tensor: Tensor) -> Tensor:
        """Note what is computed from ``tensor``, though no Parameter; ``backward(keep=...)`` gives its gradient."""
        if tensor.mark <= self._first:
            tensor.mark = next(_marks)
        return tensor

    def tracks(self, tensor: Any) -> bool:
        """Whether ``tensor`` needs a gradient: a Parameter, a watched tensor, or computed from these on this tape."""
        return tensor is not None and (tensor.mark > self._first or type(tensor) is Parameter)

    def record(self, result: Tensor, inputs: Sequence[Tensor | None], backward: Backward) -> None:
        """Note an operation.

        ``backward(gradient of the result)`` returns a gradient or None for each of ``inputs``; it is not called for a
        result on which the loss does not depend. It must not write to what it gets, and may return it.
        """
        marks = tuple(0 if tensor is None else self._mark(tensor) for tensor in inputs)
        result.mark = next(_marks)
        self._notes.append((result.mark, marks, backward))

    def _mark(self, tensor: Tensor) -> int:
        if type(tensor) is Parameter and self._parameters.get(tensor.mark) is not tensor:
            tensor.mark = next(_marks)
            self._parameters[tensor.mark] = tensor
        return tensor.mark if tensor.mark > self._first else 0

    def backward(
        self, result: Tensor, gradient: Tensor | None = None, *, accumulate: bool = False, keep: Sequence[Tensor] = ()
    ) -> list[Tensor | None]:
        """Set ``grad`` of every Parameter that ``result`` was computed from; the tape is empty afterwards.

        ``gradient`` is that of the result, and may be left out where the result is one number. ``accumulate`` adds to
        the gradients that are there. Returns the gradients of the tensors in ``keep``, which were watched or computed
        on this tape; None where the result does not depend on one.

        Raises InvalidArgument if the result was not computed on this tape.
        """
        if result.mark <= self._first:
            raise InvalidArgument("the result was not computed from a Parameter inside this tape's block")
        if gradient is None:
            if result.size != 1:
                raise InvalidArgument(f"backward starts from one number, got shape {result.shape}: pass its gradient")
            gradient = full(result.shape, 1.0, result.dtype, result.queue)
        elif gradient.shape != result.shape:
            raise InvalidArgument(f"the gradient must have the result's shape {result.shape}, got {gradient.shape}")
        kept_marks = {tensor.mark for tensor in keep}
        final: dict[int, Tensor] = {}
        gradients: dict[int, list[Tensor]] = {result.mark: [gradient]}
        outer_tape = put_in_force(None)
        try:
            while self._notes:
                result_mark, inputs, backward = self._notes.pop()
                dy = _sum(gradients.pop(result_mark, None))
                if dy is None:
                    continue
                if result_mark in kept_marks:
                    final[result_mark] = dy
                for mark, dx in zip(inputs, backward(dy), strict=True):
                    if dx is None or not mark:
                        continue
                    waiting = gradients.setdefault(mark, [])
                    waiting.append(dx)
                    if len(waiting) == _AT_ONCE:
                        gradients[mark] = [_sum(waiting)]
        finally:
            put_in_force(outer_tape)
            self._notes.clear()
        for mark, waiting in gradients.items():
            dx, parameter = _sum(waiting), self._parameters.get(mark)
            if parameter is not None:
                dx = dx if parameter.grad is None or not accumulate else apply("g + dx", g=parameter.grad, dx=dx)
                parameter.grad = dx
            final[mark] = dx
        return [final.get(tensor.mark) for tensor in keep]


def _sum(gradients: list[Tensor] | None) -> Tensor | None:
    """The sum of the gradients of one tensor's uses, in the order of their arrival, by one kernel."""
    if not gradients or len(gradients) == 1:
        return gradients[0] if gradients else None
    names = [f"g{i}" for i in range(len(gradients))]
    return apply(" + ".join(names), **dict(zip(names, gradients, strict=True)))
