"""A fused model as one form for each set of inputs; layer by layer where that cannot be.

On the CPU a form is a recorded program: memory shared by lifetimes, no waits between operations, in PyTorch's
threads. On a GPU it is a CUDA graph. It is made where a call is plain inference, and holds as long as every layer and
weight is what it was when it was made.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ...api.errors import ConvDispatchError
from ...api.policy import policy
from ...calls.framework.fallback import Fallback
from ...calls.framework.host import cpu_device
from ...device import runtime
from .. import counting
from ..dispatch.routing import settings_in_force
from ..geometry import DTYPES, FORMATS
from ..settings import DEFAULT, math_of, policy_of, switches
from . import cuda_graphs
from .model_state import State, by_layers, served, watched

__all__ = ["FORMS", "Form", "Forms", "FusedModel"]

FORMS = 8
"""Sets of input shapes, types and settings for which a model's forms are made; others go layer by layer."""
_ASKED = 64


class FusedModel(fx.GraphModule):
    """What ``convert(model, fuse=True)`` makes of a model that torch.fx can trace."""

    # TorchScript would compile it.
    __jit_unused_properties__ = (*getattr(fx.GraphModule, "__jit_unused_properties__", ()), "forms")

    @property
    def forms(self) -> Forms:
        """The inference forms that were made so far; no part of the model's state, nor of its copies."""
        found = self.__dict__.get("_forms")
        if found is None:
            found = self.__dict__["_forms"] = Forms(self)
        return found  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """What a module has, then the numbers and texts of the model that was fused."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            attributes = self.__dict__.get("meta", {}).get("attributes", {})
            if name not in attributes:
                raise
            return copy.copy(attributes[name])

    def hold_unused(self) -> None:
        """Let parts of the model that was fused be its own too where its graph needs none of them."""
        for name, part in self.meta.get("unused", {}).items():
            self.add_submodule(name, part)

    def __deepcopy__(self, memo: Any) -> Any:
        made = super().__deepcopy__(memo)
        made.hold_unused()
        return made

    def recompile(self) -> Any:
        """As GraphModule's; forms of the old graph go."""
        self.__dict__.pop("_forms", None)
        return super().recompile()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """By a form where the call is plain inference, else by ``forward``, layer by layer."""
        if torch.compiler.is_compiling():
            return super().__call__(*inputs, **named)
        arguments = self.meta.get("arguments")
        if arguments is not None and (named or len(inputs) > 1):
            given = arguments.others(inputs, named)
            if given is not None:
                required, other = given
                if other:
                    return arguments(self, required, other)
                inputs, named = tuple(required.values()), {}
        if not named:
            form = self.forms.find(inputs)
            if form is not None:
                return form(*inputs)
        return super().__call__(*inputs, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class of the model from before, by which other arguments are traced, may not be there where it is read.
        return _revived, (
            *super().__reduce__(),
            {name: each for name, each in self.meta.items() if name not in ("arguments", "unused")},
        )


def _revived(function: Callable[..., Any], arguments: tuple[Any, ...], meta: dict[str, Any]) -> FusedModel:
    made = function(*arguments)
    model = FusedModel(made, made.graph, made.__class__.__name__)
    model.meta = meta
    return model


class Forms:
    """The forms of one model. Calls may come from several threads; one runs at a time."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._lock = threading.RLock()
        self._made: dict[Any, Any] = {}
        """Key: a callable, or the reason why there is none."""
        self._state: State | None = None
        self._asked: dict[Any, int] = {}
        """Calls on a GPU with inputs of a kind that has no graph yet."""
        self._forgotten = cuda_graphs.choices.forgotten
        self._pool: Any = None
        """The graphs' memory: they run one after the other."""
        self._small = False
        """Whether a graph hardly helps, so that calls on a GPU need not ask what else bears on one."""

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return _nothing, ()

    def found(self) -> dict[str, str]:
        """The form for each set of inputs, or why there is none, in words."""
        return {_words(key): made if isinstance(made, str) else made.words for key, made in self._made.items()}

    def find(self, inputs: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The form for inputs like these, made now where it is new; None where the model runs layer by layer."""
        leaves, spec = _flat(inputs)
        if not leaves or not isinstance(leaves[0], torch.Tensor):
            return None
        if (self._small and leaves[0].device.type == cuda_graphs.DEVICE) or watched():
            return None
        if leaves[0].device.type == cuda_graphs.DEVICE:
            return self._graph(leaves, spec) if cuda_graphs.served(leaves) else None
        return self._form(leaves, spec) if served(leaves) else None

    def _steady(self, leaves: Sequence[Any]) -> bool:
        """Whether the model is what it was, and its call plain inference."""
        state = self._state
        if state is None or not state.holds():
            with self._lock:
                self._state = self._new_state()
                self._made.clear()
                self._asked.clear()
                self._pool = None
            if state is not None:  # weights that change at each call are worth no form
                return False
            state = self._state
        learns = torch.is_grad_enabled() and (state.learns() or any(x.requires_grad for x in leaves))
        return not learns and not state.disturbed()

    def _new_state(self) -> State:
        return State(self._model)

    def _form(self, leaves: Sequence[Any], spec: TreeSpec | None) -> Callable[..., Any] | None:
        settings = settings_in_force() or DEFAULT
        if not self._steady(leaves) or settings.min_flops is not None:
            return None
        switched = switches(False)
        chosen = policy_of(settings, switched)
        math = math_of(settings, switched, DTYPES[self._dtype(leaves)])
        key = (_shapes(leaves), spec, math, chosen)
        made = self._made.get(key)
        if made is None:
            with self._lock:
                made = self._made.get(key)
                if made is None:
                    if len(self._made) >= FORMS:
                        return None
                    made = self._make(leaves, spec, math, chosen)
                    if made is not None:
                        self._made[key] = made
        return None if made is None or isinstance(made, str) else made

    def _dtype(self, leaves: Sequence[torch.Tensor]) -> torch.dtype:
        """The type of a call's numbers: the first input's that is no integers, else the weights'."""
        own = self._state.tensors if self._state is not None else []
        found = (x.dtype for x in (*leaves, *own) if x.dtype in DTYPES)
        return next(found, torch.get_default_dtype())

    def _graph(self, leaves: Sequence[Any], spec: TreeSpec | None) -> Callable[..., Any] | None:
        if not self._steady(leaves):
            return None
        if self._forgotten != cuda_graphs.choices.forgotten:
            with self._lock:
                self._made.clear()
                self._asked.clear()
                self._pool, self._forgotten = None, cuda_graphs.choices.forgotten
        settings = settings_in_force()
        policy = policy_of(settings or DEFAULT, switches(True))
        key = (_shapes(leaves), cuda_graphs.kind_of(leaves), spec, settings, switches(True), policy)
        made = self._made.get(key)
        if made is None:
            with self._lock:
                made = self._made.get(key) or self._captured(key, leaves, spec)
        return None if made is None or isinstance(made, str) else made

    def _captured(self, key: Any, leaves: Sequence[Any], spec: TreeSpec | None) -> Any:
        """A graph, or why there is none; None where it is too soon to tell, or where there are enough."""
        if len(self._asked) >= _ASKED:
            self._asked.clear()
        self._asked[key] = self._asked.get(key, 0) + 1
        if self._asked[key] < cuda_graphs.CALLS or len(self._made) >= FORMS:
            return None
        try:
            if self._pool is None:
                self._pool = cuda_graphs.pool()
            forward, own = self._forward(spec), self._state.tensors if self._state is not None else []
            self._made[key] = cuda_graphs.captured(forward, leaves, own, self._pool, self._lock)
        except cuda_graphs.Later:
            return None
        except cuda_graphs.Uncapturable as why:
            self._made[key], self._small = str(why), isinstance(why, cuda_graphs.TooSmall)
        return self._made[key]

    def _forward(self, spec: TreeSpec | None) -> Callable[..., Any]:
        """The model layer by layer, of flat inputs."""

        def forward(*given: Any) -> Any:
            return self._model.forward(*(given if spec is None else tree_unflatten(given, spec)))

        return forward

    def _make(self, inputs: Sequence[Any], spec: TreeSpec | None, math: str, chosen: Any) -> Any:
        from ... import inference
        from .aten import Missing, net_of

        try:
            queue = runtime.queue(cpu_device())
            forward = self._forward(spec)
            net = net_of(forward, inputs, queue, math, self._dtype(inputs))
            if net.lies_otherwise():
                with by_layers(), torch.no_grad():
                    net.lie_as(forward(*inputs))
            with policy(solver=chosen.solver, deterministic=chosen.deterministic), torch.inference_mode(False):
                fed = net.feeds(net.given(inputs))
                dtypes = [DTYPES[x.dtype] for x in fed]
                # Timing chooses the layout, and each process may find another one faster.
                layout = "nchw" if chosen.deterministic and fed[0].ndim == 4 else None
                shapes = [tuple(x.shape) for x in fed]
                more = {"queue": queue, "layout": layout, "recall": True, "threads": "pytorch"}
                made = inference.build(net, *shapes, dtype=dtypes, **more)
                return Form(made, self._lock, net)
        except (Missing, Fallback, ConvDispatchError) as error:
            return str(error).splitlines()[0]
        except Exception as error:  # make_fx raises what the model's code does when it asks for a value
            return f"it cannot be recorded: {type(error).__name__}: {str(error).strip().splitlines()[:1]}"


class Form:
    def __init__(self, net: Any, lock: Any, traced: Any) -> None:
        self._net, self._lock, self._traced = net, lock, traced
        self._layout, self._solvers = net.layout, _solvers(net)

    @property
    def words(self) -> str:
        return f"{self._net.layout or 'as traced'}, {self._net.commands} commands, {len(self._solvers)} convolutions"

    def __call__(self, *inputs: torch.Tensor) -> Any:
        with self._lock:
            leaves, _ = _flat(inputs)
            given = self._traced.given(leaves)
            computed = self._net(*(each.detach().contiguous() for each in self._traced.feeds(given)))
            if self._net.layout != self._layout:  # the net's other form was faster
                self._layout, self._solvers = self._net.layout, _solvers(self._net)
        counting.several("convolution", self._solvers)
        return self._traced.whole(computed, given)


def _solvers(net: Any) -> list[str]:
    return [layer.solver for layer in net.layers if layer.problem is not None]


def _flat(inputs: tuple[Any, ...]) -> tuple[Sequence[Any], TreeSpec | None]:
    """Tensors that a model takes, also where they come in lists; and their structure where it is another."""
    if all(type(each) is torch.Tensor for each in inputs):
        return inputs, None
    return tree_flatten(inputs)


def _shapes(leaves: Sequence[torch.Tensor]) -> Any:
    """What a form is made for: how answers lie depends on whether channels lie last."""
    return tuple((x.shape, x.dtype, not x.is_contiguous() and _channels_last(x)) for x in leaves)


def _channels_last(x: torch.Tensor) -> bool:
    return x.ndim in FORMATS and x.is_contiguous(memory_format=FORMATS[x.ndim])


def _nothing() -> None:
    return None


def _words(key: Any) -> str:
    others = next((str(each) for each in key if hasattr(each, "arguments")), "")
    return " ".join("x".join(map(str, shape)) for shape, *_ in key[0]) + others
