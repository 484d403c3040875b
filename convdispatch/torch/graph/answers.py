"""Objects that a model answers, as transformers' caches of keys and values: opened to what is in them.

An object of plain Python that a call made, and that nobody but its answer knows, is its class and its fields. So a
record may answer another one of the same class, with fields of the same names that hold its own tensors. So it may of
a tensor that has attributes, as Keras gives one the logits that it was made of.

Answers that share memory, as parts of one tensor do, share it here too (``Views``).
"""

from __future__ import annotations

import collections
import operator
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import register_pytree_node, tree_flatten, tree_unflatten

__all__ = ["Views", "attributes", "copies", "marks", "opened"]

_LEAVES = (torch.Tensor, bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
_FIXED = (type, types.FunctionType, types.BuiltinFunctionType)
_CUSTOM = ("__reduce__", "__reduce_ex__", "__getstate__", "__new__")
_DEPTH = 8


class _Plain:
    """What an object of Python is in memory, without slots or parts in C."""


class _Opened:
    """An object's fields, by name; as a pytree's node it is made anew of others."""

    def __init__(self, kind: type, fixed: dict[str, Any], fields: dict[str, Any]) -> None:
        self.kind, self.fixed, self.fields = kind, fixed, fields


def _flatten(opened: _Opened) -> tuple[list[Any], Any]:
    return list(opened.fields.values()), (opened.kind, tuple(opened.fields), tuple(opened.fixed.items()))


def _object(values: Any, context: Any) -> Any:
    kind, names, fixed = context
    made = object.__new__(kind)
    vars(made).update(zip(names, values, strict=True))
    vars(made).update(fixed)
    return made


register_pytree_node(_Opened, _flatten, _object)


class _Marked:
    """A tensor and what attributes hold that somebody gave it; as a pytree's node it gives them to another tensor."""

    def __init__(self, tensor: torch.Tensor, fields: dict[str, Any]) -> None:
        self.tensor, self.fields = tensor, fields


def _tensor(values: Any, names: Any) -> Any:
    tensor, *fields = values
    vars(tensor).update(zip(names, fields, strict=True))
    return tensor


register_pytree_node(_Marked, lambda marked: ([marked.tensor, *marked.fields.values()], tuple(marked.fields)), _tensor)


def marks(x: torch.Tensor) -> set[str]:
    """Attributes that somebody gave a tensor; those for torch.compile, as caches have, say nothing to eager code."""
    return {name for name in vars(x) if not name.startswith("_dynamo_")}


def attributes(answer: Any) -> dict[int, set[str]]:
    """By the id of a tensor, its attributes that an ``opened`` answer gives."""
    found = tree_flatten(answer, is_leaf=lambda each: isinstance(each, _Marked))[0]
    given = {id(each.tensor): set(each.fields) for each in found if isinstance(each, _Marked)}
    for each in found:
        if isinstance(each, _Marked):
            for field in each.fields.values():
                given |= attributes(field)
    return given


class Views:
    """Of a graph's ``answers`` those that show one memory: each is a view of a ``root``, by PyTorch's own operators."""

    def __init__(self, answers: Sequence[fx.Node]) -> None:
        """Raises ValueError where a view of the root as it lies here cannot be taken."""
        chains = {node: _chain(node) for node in answers}
        roots = collections.Counter(chain[0] for chain in chains.values())
        self._chains = {node: chain for node, chain in chains.items() if roots[chain[0]] > 1}
        with torch.no_grad():
            for node, chain in self._chains.items():
                root = chain[0].meta["val"]
                found = self(node, {chain[0]: torch.empty(root.shape, dtype=root.dtype, device="meta")})
                if found.shape != node.meta["val"].shape:
                    raise ValueError(f"{node} has another shape")

    def root(self, node: fx.Node) -> fx.Node:
        """What must be computed for an answer: itself where it shares memory with no other."""
        return self._chains[node][0] if node in self._chains else node

    def __call__(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        """An answer, ``known`` being the roots; what lies between is added, so that one tensor stays one."""
        for each in self._chains.get(node, ()):
            if each not in known:
                args, kwargs = fx.map_arg((each.args, each.kwargs), lambda part: known[part])
                known[each] = each.target(*args, **kwargs)  # type: ignore[operator]
        return known[node]


def copies(parts: list[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """Tensors in one memory, by their ids, copied to another one that they share as here."""
    if len(parts) == 1:
        return [(id(parts[0]), parts[0].clone())]
    whole = torch.empty(0, dtype=parts[0].dtype, device=parts[0].device).set_(parts[0].untyped_storage()).clone()
    return [(id(each), whole.as_strided(each.shape, each.stride(), each.storage_offset())) for each in parts]


def _chain(node: fx.Node) -> list[fx.Node]:
    """From the tensor whose memory a node shows to the node itself."""
    chain = [node]
    while len(chain[0].all_input_nodes) == 1 and _shows(chain[0]):
        chain.insert(0, chain[0].all_input_nodes[0])
    return chain


def _shows(node: fx.Node) -> bool:
    """Whether it is a view, or one of those that an operator makes."""
    if node.target is operator.getitem:
        return _shows(node.args[0])  # type: ignore[arg-type]
    return node.op == "call_function" and bool(getattr(node.target, "is_view", False))


class _Unknown(Exception):
    """An object stays what it is."""


def opened(call: Callable[[], Any], like: torch.Tensor | None = None) -> Any:
    """What ``call()`` answers, where objects that nobody else knows are nodes of a pytree, and tensors with attributes:
    ``tree_unflatten`` makes objects of their kind again. Others stay, and are leaves. Attributes that ``like`` has
    are nobody's, as those of fake tensors."""
    leaves, spec = tree_flatten(call())  # the answer itself is gone then, unless somebody keeps it
    own = set() if like is None else marks(like)
    if all(isinstance(each, _LEAVES) and not (isinstance(each, torch.Tensor) and marks(each) - own) for each in leaves):
        return tree_unflatten(leaves, spec)
    found: list[Any] = []
    try:
        values = [_open(each, found, _DEPTH, own) for each in leaves]
    except _Unknown:
        return tree_unflatten(leaves, spec)
    if any(count != _ALONE for count in _references(found)):
        return tree_unflatten(leaves, spec)
    return tree_unflatten(values, spec)


def _open(value: Any, found: list[Any], depth: int, own: set[str]) -> Any:
    """A value with its objects opened; they, and lists and dicts in them, are added to ``found``."""
    given = marks(value) - own if isinstance(value, torch.Tensor) else ()
    if isinstance(value, _LEAVES) and not given:
        return value
    if not depth or any(each is value for each in found):  # what is reached twice would be made twice
        raise _Unknown
    if given:
        fields = {name: each for name, each in vars(value).items() if name in given}
        return _Marked(value, {name: _open(each, found, depth - 1, own) for name, each in fields.items()})
    kind = type(value)
    if kind is tuple:
        return tuple(_open(each, found, depth - 1, own) for each in value)
    found.append(value)
    if kind is list:
        return [_open(each, found, depth - 1, own) for each in value]
    if kind is dict and all(type(key) in (str, int) for key in value):
        return {key: _open(each, found, depth - 1, own) for key, each in value.items()}
    if not _is_plain(value):
        raise _Unknown
    found.append(vars(value))
    fixed = {name: each for name, each in vars(value).items() if isinstance(each, _FIXED)}
    return _Opened(
        kind,
        fixed,
        {name: _open(each, found, depth - 1, own) for name, each in vars(value).items() if name not in fixed},
    )


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind.__basicsize__ != _Plain.__basicsize__ or any(vars(each).get("__slots__") for each in kind.__mro__):
        return False
    if isinstance(value, torch.nn.Module) or hasattr(kind, "__del__") or hasattr(kind, "__setstate__"):
        return False
    own = all(getattr(kind, name) is getattr(_Plain, name) for name in _CUSTOM)
    return own and not weakref.getweakrefcount(value)


def _references(found: Sequence[Any]) -> list[int]:
    """To each, also from where it was found and from this list. The collector would not see frozen ones."""
    return [sys.getrefcount(each) for each in found]


_probe = [_Plain()]
_ALONE = _references([_probe[0]])[0]
"""To what a list holds and nobody else."""
