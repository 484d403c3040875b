"""A model's graph by torch.fx, with what torch.fx gets wrong without a word: writes in place, questions for types."""

from __future__ import annotations

import builtins
import collections
import contextlib
import operator
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..epilogue_chains import has_hooks

__all__ = ["trace", "written"]


class _Proxy(fx.Proxy):
    """Also ``y += x`` as the write that it is; torch.fx would make it a new tensor, which other names of y lack."""


def _in_place(name: str) -> Any:
    function = getattr(operator, name)

    def write(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})  # type: ignore[no-any-return]

    return write


for _name in ("iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior", "ixor", "ifloordiv", "imod"):
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


_NESTED = (tuple, list, dict)
_DICTIONARIES = (dict, collections.OrderedDict, fx.immutable_collections.immutable_dict)


class _Sized(_Proxy):
    """An argument whose sizes are known, for code that decides by them."""

    def __init__(self, node: fx.Node, tracer: Any, value: torch.Tensor) -> None:
        super().__init__(node, tracer)
        self.shape, self.ndim, self.dtype, self.device = value.shape, value.ndim, value.dtype, value.device
        self.size, self.dim, self.numel = value.size, value.dim, value.numel


class _Tracer(fx.Tracer):
    def __init__(self, tensors: dict[str, torch.Tensor] | None = None) -> None:
        super().__init__()
        self._tensors = tensors or {}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        if node.op == "placeholder" and node.target in self._tensors:
            return _Sized(node, self, self._tensors[str(node.target)])
        return _Proxy(node, self)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """With tuples, lists and dicts among the values as they are: torch.fx makes arguments of what is in them, and
        code that Python cannot read where these have defaults."""
        values = concrete_args or {}
        whole = {name: value for name, value in values.items() if isinstance(value, _NESTED)}
        others = {name: value for name, value in values.items() if name not in whole}
        function, given = super().create_args_for_root(root_fn, is_module, others or None)
        for place, each in enumerate(given):
            if isinstance(each, fx.Proxy) and str(each.node.target) in whole:
                given[place] = whole[str(each.node.target)]
        return function, given

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, dict) and type(a) not in _DICTIONARIES:  # transformers' ModelOutput would be a plain one
            raise fx.proxy.TraceError(f"it makes a {type(a).__name__}, which torch.fx does not keep")
        return super().create_arg(a)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        # Hooks must be called with tensors.
        ours = type(m).__module__.startswith("convdispatch.torch")
        script = isinstance(m, torch.jit.ScriptModule)
        return script or ours or has_hooks(m) or super().is_leaf_module(m, module_qualified_name)


_ASKING = threading.RLock()


def _isinstance(value: Any, kind: Any) -> bool:
    """As Python's; torch.fx's answer for a proxy, that it is no tensor, would send it the other way."""
    if isinstance(value, fx.Proxy) and isinstance(kind, type | tuple) and _has_tensor(kind):
        raise fx.proxy.TraceError("it asks whether an argument is a tensor, which is not known before it is called")
    return builtins.isinstance(value, kind)


def _has_tensor(kind: Any) -> bool:
    return any(map(_has_tensor, kind)) if isinstance(kind, tuple) else kind is torch.Tensor


@contextlib.contextmanager
def _asked(root: nn.Module) -> Iterator[None]:
    """While it lasts, the modules in which the parts' classes are written ask ``_isinstance``; one thread at a time."""
    homes = {type(part).__module__ for part in root.modules()}
    own = {home for home in homes if not home.startswith(("torch.nn.", "convdispatch."))}
    places = [vars(sys.modules[home]) for home in {*own, "torch._jit_internal"} if home in sys.modules]
    with _ASKING:
        places, is_tensor = [place for place in places if "isinstance" not in place], torch.is_tensor
        for place in places:
            place["isinstance"] = _isinstance
        torch.is_tensor = lambda value: _isinstance(value, torch.Tensor)
        try:
            yield
        finally:
            torch.is_tensor = is_tensor
            for place in places:
                place.pop("isinstance", None)


def written(func: Any, args: Any) -> Iterator[torch.Tensor]:
    """The tensors to which an operator writes."""
    for argument, given in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (each for each in tree_leaves(given) if isinstance(each, torch.Tensor))


class _Unwritten(TorchDispatchMode):
    """Refuses writes to a module's tensors."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._own = {each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.untyped_storage()._cdata in self._own for each in written(func, args)):
            raise ValueError("its forward writes to a part of it, which tracing would do once and no call again")
        return func(*args, **(kwargs or {}))


def trace(module: nn.Module, concrete: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> fx.Graph:
    """The graph of ``module`` with ``concrete`` values of arguments.

    Raises whatever the model's code does with proxies; ValueError for numbers that are drawn or made in it, and for
    writes to its own tensors, which would be done now and in no call; TraceError where it asks whether something is a
    tensor, which proxies cannot tell. Of arguments in ``tensors`` the sizes are those, and hold for the graph.
    """
    graph = _traced(module, concrete, _Tracer(tensors))
    if _constants(graph):  # computed of its buffers, as a frozen norm's factor: then let those be read in each call
        tracer = _Tracer(tensors)
        tracer.proxy_buffer_attributes = True
        graph = _traced(module, concrete, tracer)
    if _constants(graph):
        raise ValueError("its forward makes tensors of its own, which tracing would keep as constants")
    for node in list(graph.nodes):
        # torch.fx's own check of an argument that is None cannot be read from a file: it ends all later traces.
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "_assert_is_none":
            with graph.inserting_before(node):
                graph.call_function(
                    torch._assert, (graph.call_function(operator.eq, (node.args[0], None)), node.args[1])
                )
            graph.erase_node(node)
    for node in graph.nodes:
        if isinstance(node.type, str):  # an annotation that was not evaluated, which torch.fx cannot save
            node.type = None
    return graph


def _traced(module: nn.Module, concrete: dict[str, Any], tracer: _Tracer) -> fx.Graph:
    with _asked(module), _Unwritten(module), _attributes_kept(module):
        return tracer.trace(module, concrete_args=concrete or None)


@contextlib.contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Puts attributes of the parts back that tracing wrote, where it fails, and where no call of a graph would write
    them: raises TraceError then. What is computed of no argument may be written once, as tables are kept."""
    held = [vars(part) for part in module.modules()]
    held += [value for table in list(held) for value in table.values() if type(value) in _CONTAINERS]
    before = [(each, each.copy()) for each in held]
    kept = False
    try:
        yield
        for table, old in before:
            if name := _written(table, old):
                raise fx.proxy.TraceError(f"it writes {name}, which no call of a graph does")
        kept = True
    finally:
        for table, old in before:
            if not kept or _proxies(table):
                table.clear()
                (table.extend if isinstance(old, list) else table.update)(old)


_CONTAINERS = (list, *_DICTIONARIES[:2])


def _written(table: Any, old: Any) -> str | None:
    """What was written there that the next call would find otherwise, or another than the last."""
    if isinstance(old, list):
        same = len(table) == len(old) and all(map(operator.is_, table, old))
        return None if same else "to a list"
    for name in {**old, **table}:
        was, value = old.get(name), table.get(name)
        changed = was is not None and value is not was and not _equal(value, was)
        if changed or any(map(_of_arguments, _proxies(value))):
            return f"its attribute {name}"
    return None


def _proxies(value: Any) -> list[fx.Proxy]:
    return [each for each in tree_leaves(value) if builtins.isinstance(each, fx.Proxy)]


def _of_arguments(proxy: fx.Proxy) -> bool:
    """Whether it is computed of the model's arguments."""
    seen, waiting = set(), [proxy.node]
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            return True
        waiting += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
    return False


def _equal(value: Any, was: Any) -> bool:
    return type(value) is type(was) and isinstance(value, bool | int | float | str) and value == was


def _constants(graph: fx.Graph) -> bool:
    return any(node.op == "get_attr" and str(node.target).startswith("_tensor_constant") for node in graph.nodes)
