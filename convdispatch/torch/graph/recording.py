"""Modules that torch.fx cannot trace, recorded as they run: a form for each set of inputs and other arguments.

What such a module does depends on numbers of arguments, sizes and None, which are known at a call. So it runs on fake
tensors there, and what it did is a form (on a GPU a CUDA graph), kept by the tensors' shapes, types and strides, by all
other arguments, and by what its code may read beside (``python_state``). A form is used where:

- nothing of it depends on values, is drawn at random, or is written to inputs, weights or Python's attributes;
- its answer is what the module itself answers, once with the inputs for which it is made;
- the call is inference: no gradients, no training, no hooks, and no argument but tensors, numbers, texts and None.

Everywhere else the module runs as it is written, and its parts are asked in turn.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from . import cuda_graphs

from .forms import FORMS, Forms
from .model_state import State, by_layers, served, watched
from .python_state import PythonState, drawn_numbers, drawn_since

__all__ = ["Recorded", "Records", "record"]

VALUES = 2
"""Values of numbers, as a diffusion's step, for which a module is recorded; with more of them its parts are."""
CHANGES = 8
"""Calls in a row that find the module changed, after which it is not asked again."""
RECORDS = 32
"""Forms that are made for a module in all its life."""
WRITES = 3
"""Calls that may write attributes, as modules do that keep what the first call computes."""
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)


class Given(NamedTuple):
    """A call's arguments but for the tensors' values."""

    spec: TreeSpec
    leaves: tuple[Any, ...]
    """Of a tensor its number; of others the type, as True is 1, and the value."""
    kinds: tuple[Any, ...]
    modes: tuple[Any, ...]
    opens: bool
    """Whether objects that are answered are opened."""

    def arguments(self, tensors: Sequence[torch.Tensor]) -> Any:
        """``(args, kwargs)`` with these tensors."""
        return tree_unflatten(self.flat(tensors), self.spec)

    def flat(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The leaves of ``arguments``."""
        return [tensors[each] if isinstance(each, int) else each[1] for each in self.leaves]

    def __str__(self) -> str:
        said = (repr(each[1]) for each in self.leaves if not isinstance(each, int) and each[1] is not None)
        return "".join(f", {each}" for each in said)


class Recorded:
    """Before a module's own class: ``__call__`` by a record where one serves."""

    def __init_subclass__(cls, **more: Any) -> None:
        """Nothing of what the module's class does for its own."""

    @property
    def records(self) -> Records:
        """This module's; a copy has its own."""
        found = self.__dict__.get("_records")
        if found is None or found.model is not self:
            found = self.__dict__["_records"] = Records(self)
        return found  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """By a form where the call is plain inference, else as it is written."""
        if not torch.compiler.is_compiling():
            found = self.records.recorded(args, kwargs)
            if found is not None:
                form, tensors = found
                return form(*tensors)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = super().__reduce_ex__(protocol)
        kind = type(self)
        if isinstance(made, tuple) and made[1] == (kind,):  # no file knows this class
            return _revived, (kind.__mro__[2],), *made[2:]
        return made


def _revived(kind: type) -> Any:
    return kind.__new__(_recorded(kind))


@functools.cache
def _recorded(kind: type) -> type:
    """The class of the same name that records."""
    words = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (Recorded, kind), words)


def record(module: nn.Module) -> None:
    """Let a module be recorded at its calls; one that has no parts, or cannot have another class, stays."""
    if isinstance(module, torch.jit.ScriptModule) or not module._modules or type(module).forward is _NONE:
        return
    try:
        module.__class__ = _recorded(type(module))
    except TypeError:
        return
    _ = module.records  # type: ignore[attr-defined]


_NONE = nn.Module.forward


class Records(Forms):
    """The forms of one module that is recorded."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._values: dict[Any, set[Any]] = {}
        self._changes = self._records = self._writes = 0
        self._unrecorded: dict[str, str] = {}
        """By the reason why calls were not recorded, the tensors' shapes of the first."""

    def found(self) -> dict[str, str]:
        """As ``Forms.found``, and calls that were not recorded, with the reason."""
        others = {f"{shapes}, {why.partition(':')[0]}": why for why, shapes in self._unrecorded.items()}
        return super().found() | others

    def _not_recorded(self, why: str, leaves: Sequence[Any]) -> None:
        if why not in self._unrecorded and len(self._unrecorded) < FORMS:
            shapes = ("x".join(map(str, x.shape)) for x in leaves if isinstance(x, torch.Tensor))
            self._unrecorded[why] = " ".join(shapes)

    @property
    def model(self) -> Any:
        """Whose calls these are."""
        return self._model

    def recorded(self, args: Any, kwargs: Any) -> tuple[Callable[..., Any], list[torch.Tensor]] | None:
        """What serves a call, and the tensors to give it; None where the module runs as it is written."""
        model = self._model
        if torch.is_grad_enabled() or model.training or self._changes > CHANGES or watched():
            return None
        if os.environ.get(cuda_graphs.SWITCH) == "0":
            return None
        leaves, spec = tree_flatten((args, kwargs))
        tensors: list[torch.Tensor] = []
        held: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if marks(leaf):  # fake tensors have none
                    return self._not_recorded("given a tensor with attributes of Python's: it runs by layers", leaves)
                place = next((place for place, each in enumerate(tensors) if each is leaf), len(tensors))
                if place == len(tensors):
                    tensors.append(leaf)
                held.append(place)
            elif isinstance(leaf, _PLAIN):
                held.append((type(leaf), leaf) if leaf or not isinstance(leaf, float) else (float, leaf, str(leaf)))
            else:
                why = f"given a {type(leaf).__name__}: it runs by layers, for a call may change such an object"
                return self._not_recorded(why, leaves)
        if not tensors or any(x.requires_grad for x in tensors):
            return None
        on_gpu = tensors[0].device.type == cuda_graphs.DEVICE
        if not (cuda_graphs.served(tensors) if on_gpu else served(tensors)):
            return None
        modes = torch.is_inference_mode_enabled(), torch.get_default_dtype()
        given = Given(spec, tuple(held), tuple(x.stride() for x in tensors), modes, not on_gpu)
        if not self._few_values(given):
            return self._not_recorded(f"given other numbers: it is recorded for {VALUES} values of them", leaves)
        form = self._graph(tensors, given) if on_gpu else self._form(tensors, given)
        if form is None and self._state is not None and self._python().too_large:
            return self._not_recorded("reading many values: its code may read more than a look is worth", leaves)
        return None if form is None else (form, tensors)

    def _few_values(self, given: Given) -> bool:
        numbers = tuple(each[1] for each in given.leaves if isinstance(each, tuple) and each[0] in (int, float))
        if not numbers:
            return True
        others = tuple(
            each if isinstance(each, int) or each[0] not in (int, float) else each[0] for each in given.leaves
        )
        known = self._values.setdefault((given.spec, others), set())
        if numbers in known:
            return True
        if len(known) >= VALUES or len(self._values) > RECORDS:
            return False
        known.add(numbers)
        return True

    def _new_state(self) -> State:
        return State(self._model, PythonState(self._model))

    def _steady(self, leaves: Sequence[Any]) -> bool:
        before = self._state
        steady = super()._steady(leaves)
        state = self._state
        self._changes = 0 if state is before or before is None else self._changes + 1
        return steady and state is not None and state.python is not None and not state.python.too_large

    def _forward(self, spec: Any) -> Callable[..., Any]:
        def forward(*tensors: Any) -> Any:
            given = spec.arguments(tensors)
            call = functools.partial(self._model, *given[0], **given[1])
            with by_layers():
                answer = opened(call, tensors[0]) if spec.opens else call()
            leaves, same = tree_flatten(given)
            if same != spec.spec or not all(map(operator.is_, leaves, spec.flat(tensors))):
                raise cuda_graphs.Uncapturable("it writes to a list or a dictionary that it is given")
            return answer

        return forward

    def _make(self, inputs: Sequence[Any], spec: Any, math: str, chosen: Any) -> Any:
        if self._records >= RECORDS:
            return "it was recorded often enough"
        forward, python = self._forward(spec), self._python()
        python.begin()
        with torch.inference_mode(False), torch.no_grad():
            try:
                drawn = drawn_numbers()
                cuda_graphs.look(forward, inputs)
                if drawn_since(drawn):
                    raise cuda_graphs.Uncapturable("it draws random numbers of Python's or NumPy's")
                made = super()._make(inputs, spec, math, chosen)
            except cuda_graphs.Uncapturable as why:
                made = str(why)
            finally:
                written = python.restored()
        if written is not None:
            return self._later(written)
        if not isinstance(made, str):
            self._records += 1
            own, structure = tree_flatten(forward(*inputs))
            got, same = tree_flatten(opened(functools.partial(made, *inputs), inputs[0]))
            if structure != same or not _alike(own, got):
                return "its record answers other numbers than a call"
        return made

    def _captured(self, key: Any, leaves: Sequence[Any], spec: Any) -> Any:
        if self._records >= RECORDS:
            return None
        python = self._python()
        python.begin()
        try:
            made = super()._captured(key, leaves, spec)
        finally:
            written = python.restored()
        if written is not None:
            self._made.pop(key, None)
            made = self._later(written)
            if made is not None:
                self._made[key] = made
        self._records += made is not None and not isinstance(made, str)
        return made

    def _python(self) -> PythonState:
        assert self._state is not None
        assert self._state.python is not None
        return self._state.python

    def _later(self, written: str) -> str | None:
        """None where a later call may write no more, else why there is no record."""
        self._writes += 1
        return f"it writes {written}" if self._writes >= WRITES else None


def _alike(own: Sequence[Any], got: Sequence[Any]) -> bool:
    for one, other in zip(own, got, strict=True):
        if isinstance(one, torch.Tensor):
            if not isinstance(other, torch.Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
                return False
        elif type(one) is not type(other) or one != other:
            return False
    return cuda_graphs.alike(own, got)
