"""What the code of modules does with their parts beside calling them.

A part that torch.fx traces whole keeps its forward alone, and its layers have taken in what follows them there. Code
that stays and calls ``self.backbone.features(x)`` or ``self.backbone.conv1(x)``, or goes through a Sequential's layers
one by one, needs the part as its class has it. The code is read, not run, and names decide: where something else has an
attribute of the same name, a part is fused in smaller parts than it might be.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any, NamedTuple

from torch import nn

__all__ = ["NONE", "Uses", "uses_of"]

_LISTING = {"children", "named_children", "modules", "named_modules", "get_submodule", "_modules"}
_BUILTINS = {"enumerate", "iter", "len", "list", "reversed", "tuple", "zip"}
_ASKED = ("LOAD_CONST", "IS_OP", "POP_JUMP", "TO_BOOL", "UNARY_NOT", "COPY")
"""What follows a part that is only asked for: whether there is one."""
_WINDOW = 5
"""Instructions in which an index lies: ``part[first:last]``."""


class Uses(NamedTuple):
    names: frozenset[str]
    """Attributes that are read of anything but the module whose code it is."""
    listed: frozenset[str]
    """Attributes that are gone through, indexed or given another name, of anything."""

    def of(self, module: nn.Module, name: str, kept: frozenset[str]) -> set[str]:
        """What of ``module``, a part called ``name``, is used so; its attributes in ``kept`` do not count."""
        kinds = [kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.nn.")]
        methods = (types.FunctionType, staticmethod, classmethod)
        own = {name for kind in kinds for name, value in vars(kind).items() if isinstance(value, methods)}
        found = self.names & ((own | set(module._modules)) - kept) | self.names & _LISTING
        return found | ({"layers one by one"} if isinstance(module, nn.Sequential) and name in self.listed else set())


NONE = Uses(frozenset(), frozenset())


def uses_of(module: nn.Module, more: Uses = NONE) -> Uses:
    """What a module's forward does, with its other methods and the functions of its package that are called there;
    and ``more``."""
    names, listed = set(more.names), set(more.listed)
    waiting, seen = [(vars(module).get("forward", type(module).forward), True)], set()
    while waiting:
        function, of_class = waiting.pop()
        function = getattr(function, "__func__", function)
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        read = _read(function.__code__)
        names |= read.others if of_class else read.others - _LISTING  # transformers' look for hooks lists all modules
        listed |= read.listed
        kinds = [vars(kind) for kind in type(module).__mro__ if not kind.__module__.startswith("torch.nn.")]
        waiting += [(each[name], True) for each in kinds for name in read.own | read.others if name in each]
        called = [function.__globals__.get(name) for name in read.named]
        waiting += [(each, False) for each in called if isinstance(each, types.FunctionType) and _kin(each, function)]
    return Uses(frozenset(names), frozenset(listed))


def _kin(one: Any, other: Any) -> bool:
    homes = [(each.__module__ or "").partition(".")[0] for each in (one, other)]
    return homes[0] == homes[1] and homes[0] != "torch"


class _Read(NamedTuple):
    own: set[str]
    others: set[str]
    listed: set[str]
    named: set[str]


@functools.lru_cache(4096)
def _read(code: types.CodeType) -> _Read:
    """Attributes read of ``self``, of others, those listed, and names of globals; also of functions inside."""
    read = _Read(set(), set(), set(), set())
    lines, end = list(dis.get_instructions(code)), 0
    for at, each in enumerate(lines):
        if each.offset < end:
            continue
        if each.opname == "LOAD_ATTR" and each.argval == "training":  # a fused model is in eval mode
            end = next((j.argval for j in lines[at + 1 : at + 3] if j.opname.endswith("IF_FALSE")), 0)
        if each.opname == "LOAD_GLOBAL":
            read.named.add(each.argval)
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            (read.own if at and _is_self(lines[at - 1]) else read.others).add(each.argval)
            if each.opname == "LOAD_ATTR" and _listed(lines[at + 1 : at + 1 + _WINDOW], read.named):
                read.listed.add(each.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for mine, inner in zip(read, _read(constant), strict=True):
                mine |= inner
    return read


def _is_self(line: dis.Instruction) -> bool:
    name = line.argval[-1] if isinstance(line.argval, tuple) else line.argval  # of two loads in one
    return line.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and name == "self"


def _listed(after: list[dis.Instruction], named: set[str]) -> bool:
    """Whether what was read is gone through, indexed, named anew, or given to a function that goes through it."""
    if after[0].opname.startswith(("GET_ITER", "STORE_FAST")):
        return True
    for each in after:
        if each.opname in ("BINARY_SUBSCR", "BINARY_SLICE") or (each.opname == "BINARY_OP" and each.argrepr == "[]"):
            return True
        if "CALL" in each.opname or "JUMP" in each.opname:
            break
    return bool(named & _BUILTINS) and not after[0].opname.startswith(_ASKED)
