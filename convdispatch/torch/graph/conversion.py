"""convert: replaces a model's layers by ours in place; or with ``fuse=True`` returns a copy that Dynamo compiles for
us."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from ...api.errors import ConvDispatchWarning, InvalidArgument
from ...device.garbage import collection_put_off
from ..dynamo_frames import unseen
from ..modules import swap

RECOMPILE_LIMIT = 64
"""The number of graphs that Dynamo makes of one converted module before it runs the module's own code; PyTorch's
default is 8."""

_MODULE_CALL = nn.Module.__call__
MAX_HOOK_CHANGES = 4
"""How many times a converted module is recompiled because hooks on its parts changed; then it runs its own code."""


def convert(model: nn.Module, *, fuse: bool = False) -> nn.Module:
    """Replace ``nn.Conv1d`` to ``nn.ConvTranspose3d`` in ``model`` by layers of the same parameters that call
    ``torch.ops.convdispatch.convolution``; changes the model, and returns it.

    Layers of classes derived from these are left: what they changed would be lost.

    With ``fuse=True`` the result is a copy of the model, for inference: its layers are replaced as above, its weights
    do not learn, and its calls are compiled by ``torch.compile(backend="convdispatch")``, which folds batch norms and
    fuses what follows a convolution. A module of the copy that is called by itself, as by a method other than
    ``forward``, is compiled by itself. ``fusion(model)`` says what became of the graphs. An exported program
    (``torch.export``), or its module, may be given too; one that PT2E quantized runs in integers. What Dynamo cannot
    capture runs layer by layer.

    Raises InvalidArgument where ``model`` is to be fused in training mode: batch norms would use the batch's own
    statistics, so call ``model.eval()`` first; and for another ``fuse``.
    """
    if not isinstance(fuse, bool):
        raise InvalidArgument(f"fuse must be False or True, got {fuse!r}")
    if fuse:
        with collection_put_off():
            return _compiled_copy(model)
    for module in list(model.modules()):
        swap(module)
    return model


def _compiled_copy(model: Any) -> nn.Module:
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"convert takes a torch.nn.Module, or with fuse=True an ExportedProgram, got {type(model).__name__}"
        )
    if getattr(model, "training", False) and not _is_exported(model):  # a frozen ScriptModule has no such attribute
        raise InvalidArgument(
            "convert(fuse=True) takes a model in eval mode, for batch norms to be folded: call model.eval() first, or "
            "convert(model) to keep them"
        )
    if any(map(torch.nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
        raise InvalidArgument(
            "convert(fuse=True) takes layers that know their sizes: call it once, as model(x), before"
        )
    with torch.inference_mode(False), torch.no_grad():
        compiled_model = copied(model)
        for parameter in compiled_model.parameters():
            parameter.requires_grad_(False)
    script = isinstance(compiled_model, torch.jit.ScriptModule)
    if script or (not _is_exported(compiled_model) and not any(map(_is_convolution, compiled_model.modules()))):
        why = "it is a ScriptModule" if script else "it holds no layer of PyTorch's convolutions, of its very classes"
        warnings.warn(
            f"nothing of the model could be fused: {why}",
            ConvDispatchWarning,
            stacklevel=3,
        )
    for module in list(compiled_model.modules()):
        if isinstance(module, torch.jit.ScriptModule):
            continue
        holds_layers = any(map(_is_convolution, module.modules())) or _is_exported(module)
        is_layer = swap(module)
        if module is compiled_model or (
            holds_layers and not is_layer and type(module).forward is not nn.Module.forward
        ):
            _let_compile(module)
    return compiled_model


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model, also if its last call left non-leaf tensors in it, as ``weight_norm`` and pruning do: PyTorch
    refuses to copy those."""
    attributes = (value for part in model.modules() for value in vars(part).values())
    computed = (value for value in attributes if isinstance(value, torch.Tensor) and not value.is_leaf)
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, _ConvNd) or "Conv" in type(module).__name__


def _is_exported(model: nn.Module) -> bool:
    """Whether a graph consists of aten's operators, whose arguments say themselves whether they run as in training."""
    return isinstance(model, torch.fx.GraphModule) and any(
        isinstance(node.target, torch._ops.OpOverload) for node in model.graph.nodes
    )


class Compiled:
    """A base class before a module's own class: a call outside of a compiled graph is compiled by our back end.

    A copy or a file of the module holds nothing of it, and is compiled anew at its first call.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        """Run no ``__init_subclass__`` of the module's own class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result, computed by compiled graphs."""
        if not torch.compiler.is_compiling():
            state = self.__dict__.get("_compiled_state")
            if state is None:
                state = self.__dict__.setdefault("_compiled_state", unseen(_State, self))
            if not state.ready():
                return self._call_impl(*args, **kwargs)  # type: ignore[attr-defined]
            # While another thread traces with torch.fx, Module.__call__ is the tracer's function.
            if nn.Module.__call__ is _MODULE_CALL or not any(
                isinstance(x, fx.Proxy) for x in (*args, *kwargs.values())
            ):
                return self._compiled_call_impl(*args, **kwargs)  # type: ignore[attr-defined]
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def __getstate__(self) -> Any:
        state = super().__getstate__()  # type: ignore[misc]
        state.pop("_compiled_state", None)
        return state

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        kind = type(self)
        # The class is created at run time, so pickle cannot import it.
        if isinstance(reduced, tuple) and reduced[1] == (kind,):
            return _revived, (kind.__mro__[2],), *reduced[2:]
        return reduced


class _State:
    """The compiled call of one module, and the hooks on its parts, which Dynamo does not check again at a call."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        # Imported here because it imports all operators of forms, which a first training step does not need.
        from ..compile.backend import Backend

        self.backend = Backend()
        weakref.finalize(module, self.backend.free)
        self._registered = -1
        self._hooks: Any = None
        self._changes = 0
        self._lock = threading.Lock()

    def ready(self) -> bool:
        """Whether the module's call is compiled; a module whose hooks change again and again runs its own code."""
        module = self._module()
        if module is None or _is_traced():
            return False
        registered = torch.utils.hooks.RemovableHandle.next_id
        if module._compiled_call_impl is None or self._hooks or registered != self._registered:
            with self._lock:
                unseen(self._look_at_hooks, module, registered)
        return self._changes <= MAX_HOOK_CHANGES

    def _look_at_hooks(self, module: nn.Module, registered: int) -> None:
        self._registered, hooks = registered, _hooks_of(module)
        if module._compiled_call_impl is None or hooks != self._hooks:
            self._changes += 1
            self._hooks = hooks
            self.backend.graphs.clear()
            self.backend.breaks.clear()
            module._compiled_call_impl = torch.compile(_frame_of(module), backend=self.backend, **_options())

    def __deepcopy__(self, memo: Any) -> None:
        return None


def _frame_of(module: nn.Module) -> Callable[..., Any]:
    """What Dynamo compiles of a module: its ``_call_impl``, or a function around it if the module's class is PyTorch's
    own, as ``nn.Sequential``, or ours: Dynamo inlines methods of those only from other functions."""
    call = module._call_impl
    if not str(type(module).forward.__module__).startswith(("torch.", "convdispatch.")):
        return call

    def call_module(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return call_module


def _is_traced() -> bool:
    """Whether the call is recorded or transformed by other means than Dynamo: TorchScript, torch.fx, functorch."""
    recorded = torch._C._get_tracing_state() or torch._C._is_torch_function_mode_enabled()
    return bool(recorded) or torch._C._functorch.peek_interpreter_stack() is not None


def _hooks_of(module: nn.Module) -> tuple[Any, ...]:
    """The ids of the hooks on a module's parts; empty if there are none."""
    hook_ids = []
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks):
            if hooks:
                hook_ids.append((id(hooks), tuple(hooks)))
    return tuple(hook_ids)


def _revived(kind: type) -> Any:
    return kind.__new__(_compiled_class(kind))


@functools.cache
def _compiled_class(kind: type) -> type:
    """A subclass of the same name whose calls are compiled."""
    words = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (Compiled, kind), words)


def _let_compile(module: nn.Module) -> None:
    try:
        module.__class__ = _compiled_class(type(module))
    except TypeError:  # a class with slots or another layout stays uncompiled
        return


@functools.cache
def _options() -> dict[str, Any]:
    """Options that separate the graphs of one module from others' of its class, as far as this PyTorch has them."""
    known = inspect.signature(torch.compile).parameters
    wanted = {"isolate_recompiles": True, "recompile_limit": RECOMPILE_LIMIT}
    return {name: value for name, value in wanted.items() if name in known}
