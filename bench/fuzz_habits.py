"""What a model's code does beside its layers: it reads and writes Python's state, enters contexts, draws numbers.

A habit is a function ``(model, y, x, other)`` that a model calls between its layers: ``y`` is what the layers computed
so far, ``x`` and ``other`` are the model's inputs. ``READS`` are habits whose state is set between two calls, by
``set_state``. State of this file that a habit writes is in ``SHARED``; ``reset`` makes everything as at the start.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

F = nn.functional
__all__ = ["HABITS", "READS", "SHARED", "Refused", "fake_tensors_in_caches", "reset", "set_state"]


class Refused(ValueError):
    """What a model raises by itself."""


@dataclasses.dataclass
class Config:
    """An object that holds state."""

    gain: float = 1.0
    levels: list[float] = dataclasses.field(default_factory=lambda: [1.0])


class Mode(enum.Enum):
    """Members whose values are read."""

    ONE, TWO, THREE = 1.0, 2.0, 3.0


class Slots:
    """An object without a dictionary."""

    __slots__ = ("gain",)


class Doubling:
    """A descriptor."""

    gain = 1.0

    def __get__(self, instance: Any, owner: Any) -> float:
        return self.gain


class State:
    """A class whose attributes, descriptor and property are read."""

    factor, described = 1.0, Doubling()
    __slots__ = ("_gain",)

    @property
    def gain(self) -> float:
        """A property."""
        return getattr(self, "_gain", 1.0)


GAIN, TENSOR, ARRAY, LIST = 1.0, torch.ones(()), np.ones(1), [1.0]
DICTIONARY: dict[str, float] = {}
USER_DICTIONARY: collections.UserDict[str, float] = collections.UserDict()
DEQUE = collections.deque([1.0])
ORDERED = collections.OrderedDict(a=1.0, b=0.5)
SLOTS = Slots()
NAMESPACE, CONFIG, STATE, LOCAL = types.SimpleNamespace(gain=1.0), Config(), State(), threading.local()
VARIABLE = contextvars.ContextVar("gain", default=1.0)
WEAK: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
SIBLING: Any = types.ModuleType("fuzz_sibling")
SIBLING.config = Config()
SIBLING.scaled = lambda y: y * SIBLING.config.gain
sys.modules["fuzz_sibling"] = SIBLING
SHARED: dict[str, Any] = {}
"""What habits write beside the model."""


def _closure() -> tuple[Callable[..., Any], Callable[..., Any]]:
    gain = 1.0

    def change(value: float) -> None:
        nonlocal gain
        gain = value

    return lambda: gain, change


_closed, _change_closed = _closure()


def _by_default(y: torch.Tensor, levels: list[float] = LIST) -> torch.Tensor:
    return y * levels[0]


def _scaled(y: torch.Tensor) -> torch.Tensor:
    return y * GAIN


def _attributed(y: torch.Tensor) -> torch.Tensor:
    return y * _attributed.gain  # type: ignore[attr-defined,no-any-return]


READS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a global": (lambda m, y: y * GAIN, lambda m, v: globals().update(GAIN=v)),
    "a partial": (lambda m, y: functools.partial(torch.mul, other=GAIN)(y), lambda m, v: globals().update(GAIN=v)),
    "a function's global": (lambda m, y: _scaled(y), lambda m, v: globals().update(GAIN=v)),
    "a list": (lambda m, y: y * LIST[0], lambda m, v: LIST.__setitem__(0, v)),
    "a length": (lambda m, y: y * len(LIST), lambda m, v: LIST.__setitem__(slice(1, None), [2.0] * int(v))),
    "a default": (lambda m, y: _by_default(y), lambda m, v: LIST.__setitem__(0, v)),
    "a dictionary": (lambda m, y: y * DICTIONARY.get("gain", 1.0), lambda m, v: DICTIONARY.update(gain=v)),
    "a UserDict": (lambda m, y: y * USER_DICTIONARY.get("gain", 1.0), lambda m, v: USER_DICTIONARY.update(gain=v)),
    "a dictionary's order": (lambda m, y: y * next(iter(ORDERED.values())),
                             lambda m, v: ORDERED.update({"a": v}) or ORDERED.move_to_end("a", last=v == 3)),
    "slots": (lambda m, y: y * SLOTS.gain, lambda m, v: setattr(SLOTS, "gain", v)),
    "an enumeration": (lambda m, y: y * getattr(m, "mode", Mode.ONE).value, lambda m, v: setattr(m, "mode", Mode(v))),
    "a deque": (lambda m, y: y * DEQUE[0], lambda m, v: DEQUE.__setitem__(0, v)),
    "a namespace": (lambda m, y: y * NAMESPACE.gain, lambda m, v: setattr(NAMESPACE, "gain", v)),
    "a dataclass": (lambda m, y: y * CONFIG.gain, lambda m, v: setattr(CONFIG, "gain", v)),
    "a dataclass's list": (lambda m, y: y * CONFIG.levels[0], lambda m, v: CONFIG.levels.__setitem__(0, v)),
    "a property": (lambda m, y: y * STATE.gain, lambda m, v: setattr(STATE, "_gain", v)),
    "a class": (lambda m, y: y * STATE.factor, lambda m, v: setattr(State, "factor", v)),
    "a descriptor": (lambda m, y: y * STATE.described, lambda m, v: setattr(Doubling, "gain", v)),
    "a model's class": (lambda m, y: y * m.factor, lambda m, v: setattr(type(m).__mro__[-3], "factor", v)),
    "thread locals": (lambda m, y: y * getattr(LOCAL, "gain", 1.0), lambda m, v: setattr(LOCAL, "gain", v)),
    "a context variable": (lambda m, y: y * VARIABLE.get(), lambda m, v: VARIABLE.set(v) and None),
    "an environment variable": (lambda m, y: y * float(os.environ.get("FUZZ_GAIN", "1")),
                                lambda m, v: os.environ.__setitem__("FUZZ_GAIN", str(v))),
    "a sibling module": (lambda m, y: y * SIBLING.config.gain, lambda m, v: setattr(SIBLING.config, "gain", v)),
    "a sibling's function": (lambda m, y: SIBLING.scaled(y), lambda m, v: setattr(SIBLING.config, "gain", v)),
    "another function": (lambda m, y: SIBLING.scaled(y), lambda m, v: setattr(SIBLING, "scaled", lambda y: y * v)),
    "an import": (lambda m, y: y * __import__("fuzz_sibling").config.gain,
                  lambda m, v: setattr(SIBLING.config, "gain", v)),
    "a closure": (lambda m, y: y * _closed(), lambda m, v: _change_closed(v)),
    "a function's attribute": (lambda m, y: _attributed(y), lambda m, v: setattr(_attributed, "gain", v)),
    "a global tensor": (lambda m, y: y * TENSOR, lambda m, v: TENSOR.fill_(v)),
    "a global tensor's data": (lambda m, y: y * TENSOR, lambda m, v: TENSOR.data.fill_(v)),
    "another global tensor": (lambda m, y: y * TENSOR, lambda m, v: globals().update(TENSOR=torch.tensor(v))),
    "a global array": (lambda m, y: y * float(ARRAY[0]), lambda m, v: ARRAY.fill(v)),
    "an attribute": (lambda m, y: y * m.gain, lambda m, v: setattr(m, "gain", v)),
    "a switch": (lambda m, y: y * 3 if m.gain != 1 else y, lambda m, v: setattr(m, "gain", v)),
    "a new attribute": (lambda m, y: y * getattr(m, "later", 1.0), lambda m, v: setattr(m, "later", v)),
    "a part's attribute": (lambda m, y: y * getattr(m.layers[0], "gain", 1.0),
                           lambda m, v: setattr(m.layers[0], "gain", v)),
    "a buffer": (lambda m, y: y * m.table[0], lambda m, v: m.table.fill_(v)),
    "a buffer's row": (lambda m, y: y * m.table[1], lambda m, v: m.table.data[1].fill_(v)),
    "a buffer by NumPy": (lambda m, y: y * m.table[2], lambda m, v: m.table.numpy().fill(v)),
    "another buffer": (lambda m, y: y * m.table[0], lambda m, v: setattr(m, "table", torch.full_like(m.table, v))),
    "the parts": (lambda m, y: y * len([*m.children()]), lambda m, v: m.add_module(f"more{v:.0f}", nn.Identity())),
    "deterministic algorithms": (lambda m, y: y * (3 if torch.are_deterministic_algorithms_enabled() else 1),
                                 lambda m, v: torch.use_deterministic_algorithms(v != 1, warn_only=True)),
}  # fmt: skip
"""The habit, which takes the model and ``y``, and what sets its state to a number."""


# --- what is asked of tensors and modes -----------------------------------------------------------------------------

BRANCHES: dict[str, Callable[..., Any]] = {
    "type in a set": lambda m, x: x.dtype in {torch.float32, torch.float16},
    "the type's name": lambda m, x: "float32" in str(x.dtype),
    "a size in a set": lambda m, x: x.shape[-1] in {5, 8, 16},
    "square": lambda m, x: len(set(x.shape[2:])) == 1,
    "a size in words": lambda m, x: f"{x.shape[-1]}" == "8",
    "the class": lambda m, x: type(x) is torch.Tensor,
    "gradients": lambda m, x: x.requires_grad,
    "contiguity": lambda m, x: x.is_contiguous(),
    "stride": lambda m, x: x.stride(0) % 3 == 0,
    "the batch": lambda m, x: x.shape[0] == 1,
    "a value": lambda m, x: bool(x.sum() > 0),
    "item": lambda m, x: x.flatten()[:1].sum().item() > 0,
    "grad mode": lambda m, x: torch.is_grad_enabled(),
    "inference mode": lambda m, x: torch.is_inference_mode_enabled(),
    "autocast": lambda m, x: torch.is_autocast_enabled("cpu"),
    "training": lambda m, x: m.training,
    "a leaf": lambda m, x: x.is_leaf,
    "a weight's gradients": lambda m, x: next(m.parameters()).requires_grad,
    "hooks": lambda m, x: bool(m.layers[0]._forward_hooks),
    "compiling": lambda m, x: hasattr(x, "keys") or callable(x),
}


# --- caches ---------------------------------------------------------------------------------------------------------


@functools.lru_cache
def _cached(size: int) -> torch.Tensor:
    return torch.linspace(0, 1, size)


def _grid_in(table: Any, key: Any, size: int) -> torch.Tensor:
    if key not in table or table[key].shape[0] != size:
        table[key] = torch.linspace(0, 1, size)
    return table[key]  # type: ignore[no-any-return]


CACHES: dict[str, Callable[..., torch.Tensor]] = {
    "functools": lambda m, n: _cached(n),
    "a function's attribute": lambda m, n: _grid_in(_grid_in.__dict__, "grid", n),
    "a module": lambda m, n: _grid_in(SIBLING.__dict__, "grid", n),
    "a model": lambda m, n: _grid_in(m.__dict__, "_grid", n),
    "thread locals": lambda m, n: _grid_in(LOCAL.__dict__, "grid", n),
    "a weak dictionary": lambda m, n: _grid_in(WEAK, State, n),
    "a UserDict": lambda m, n: _grid_in(USER_DICTIONARY, "grid", n),
    "a namespace": lambda m, n: _grid_in(NAMESPACE.__dict__, "grid", n),
}


def fake_tensors_in_caches() -> list[str]:
    """Which caches hold tensors without numbers."""
    tables = _grid_in.__dict__, SIBLING.__dict__, LOCAL.__dict__, WEAK, USER_DICTIONARY, NAMESPACE.__dict__
    found = [value for table in tables for value in dict(table).values()]
    found += [_cached(size) for size in range(20) if _cached.cache_info().currsize]
    return [str(value) for value in found + SHARED["seen"] if isinstance(value, FakeTensor)]


# --- what is done ---------------------------------------------------------------------------------------------------


def _counts(m: Any, y: Any, x: Any, other: Any) -> Any:
    m.count += 1
    SHARED["count"] += 1
    return y * (m.count + SHARED["count"])


def _writes_input(m: Any, y: Any, x: Any, other: Any) -> Any:
    with torch.no_grad():
        x.detach().mul_(2)
    return y + x.mean()


def _writes_view(m: Any, y: Any, x: Any, other: Any) -> Any:
    y = y.clone()
    y[:, :1].mul_(2)
    y.flatten()[0] = 1.0
    return y


def _refuses(m: Any, y: Any, x: Any, other: Any) -> Any:
    if m.gain == 3.0:
        raise Refused("gain is 3")
    return y


def _catches(m: Any, y: Any, x: Any, other: Any) -> Any:
    try:
        if y.shape[-1] > 2:
            raise Refused("large")
        return y
    except Refused:
        return y * 2
    finally:
        m.count += 1


@contextlib.contextmanager
def _doubled(m: Any) -> Any:
    m.count *= 2
    yield m.count
    m.count //= 2


def _in_own_context(m: Any, y: Any, x: Any, other: Any) -> Any:
    with _doubled(m) as count:
        return y * count


def _within(context: Callable[[], Any]) -> Callable[..., Any]:
    def run(m: Any, y: Any, x: Any, other: Any) -> Any:
        with context():
            z = m.extra(x)
        return y + z.float().mean().to(y.dtype)

    return run


def _twice_given(m: Any, y: Any, x: Any, other: Any) -> Any:
    if not isinstance(other, torch.Tensor) or other.ndim == 0:
        return y
    return y * (2 if other is x else 1) + m.extra(x).mean() - 2 * m.extra(other).mean()


def _gradient_inside(m: Any, y: Any, x: Any, other: Any) -> Any:
    with torch.enable_grad():
        inner = x.detach().clone().requires_grad_()
        return y + torch.autograd.grad(m.extra(inner).square().sum(), inner)[0].mean()


@torch.no_grad()
def _decorated(m: Any, y: Any, x: Any, other: Any) -> Any:
    return y * m.extra(x).sigmoid().mean()


def _functional(m: Any, y: Any, x: Any, other: Any) -> Any:
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.ndim]
    weight = m.extra.weight / m.extra.weight.norm()
    return y + convolve(x, weight, m.extra.bias).mean() + convolve(x, weight * m.gain).mean()


HABITS: dict[str, Callable[..., Any]] = {
    **{f"reads {n}": (lambda m, y, x, other, read=read: read(m, y)) for n, (read, _) in READS.items()},
    **{f"asks {n}": (lambda m, y, x, other, ask=ask: y * 3 if ask(m, x) else y) for n, ask in BRANCHES.items()},
    **{f"caches in {n}": (lambda m, y, x, other, find=find: y + find(m, y.shape[-1])) for n, find in CACHES.items()},
    "collects": lambda m, y, x, other: SHARED["seen"].append(y.detach()) or y,
    "counts": _counts,
    "writes a buffer": lambda m, y, x, other: y * m.table.add_(1)[0],
    "replaces a buffer": lambda m, y, x, other: setattr(m, "table", m.table + 1) or y * m.table[0],
    "writes its input": _writes_input,
    "writes a view": _writes_view,
    "catches": _catches,
    "refuses": _refuses,
    "asserts": lambda m, y, x, other: (
        torch._assert_async(x.abs().sum() < m.table[0, 0] * 1e9 - 2e9 * (m.gain == 3.0)) or y),
    "a context of its own": _in_own_context,
    "no_grad": _within(torch.no_grad),
    "enable_grad": _within(torch.enable_grad),
    "inference_mode": _within(torch.inference_mode),
    "grad as asked": _within(lambda: torch.set_grad_enabled(LIST[0] == 1.0)),
    "autocast": _within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "no autocast": _within(lambda: torch.autocast("cpu", enabled=False)),
    "decorated": _decorated,
    "a gradient inside": _gradient_inside,
    "given twice": _twice_given,
    "scales": lambda m, y, x, other: (
        y if other is None or (isinstance(other, torch.Tensor) and other.ndim) else y * other),
    "reads weights": lambda m, y, x, other: (
        y * (1 + next(m.layers[0].parameters(), m.table).mean()) + m.extra.weight.flatten()[0]),
    "functional": _functional,
    "random": lambda m, y, x, other: y * random.random(),
    "NumPy's random": lambda m, y, x, other: y * float(np.random.rand()),
    "torch.rand": lambda m, y, x, other: y * torch.rand(()),
    "torch.rand's item": lambda m, y, x, other: y * torch.rand(()).item(),
    "dropout": lambda m, y, x, other: F.dropout(y, 0.3, m.training) + F.dropout(x, 0.5).mean(),
    "a generator": lambda m, y, x, other: sum(y * each for each in (n for n in range(3))),
    "calls a layer again": lambda m, y, x, other: y + m.extra(x).mean() + m.extra.forward(x * 2).mean(),
    "detaches": lambda m, y, x, other: y + y.detach() * 2,
    "tolist": lambda m, y, x, other: y * sum(m.table.flatten().tolist()),
    "returns a view of the input": lambda m, y, x, other: (y, x[:, :1], x) if isinstance(y, torch.Tensor) else y,
    "returns one twice": lambda m, y, x, other: {"y": y, "again": y, "part": y[:, :1]},
    "returns values": lambda m, y, x, other: [y, y.shape[0], None, "w", y.argmax(1).float().mean() * 0, y.abs().sum()],
}  # fmt: skip


def set_state(model: Any, name: str, value: float) -> None:
    """Set what "reads NAME" reads; for other habits what some of them read of the model."""
    change = READS.get(name.removeprefix("reads "), READS["an attribute"])[1]
    with torch.no_grad():
        change(model, value)


def reset() -> None:
    """All state of this file as at the start."""
    globals().update(GAIN=1.0, TENSOR=torch.ones(()))
    LIST[:], ARRAY[:] = [1.0], 1.0
    for table in (DICTIONARY, USER_DICTIONARY, WEAK, LOCAL.__dict__, _grid_in.__dict__):
        table.clear()
    ORDERED.update(a=1.0)
    ORDERED.move_to_end("a", last=False)
    SLOTS.gain = 1.0
    DEQUE[0] = NAMESPACE.gain = CONFIG.gain = STATE._gain = State.factor = Doubling.gain = SIBLING.config.gain = 1.0
    CONFIG.levels[:] = [1.0]
    SIBLING.scaled = lambda y: y * SIBLING.config.gain
    for holder in (NAMESPACE, SIBLING):
        holder.__dict__.pop("grid", None)
    VARIABLE.set(1.0)
    os.environ.pop("FUZZ_GAIN", None)
    _change_closed(1.0)
    _attributed.gain = 1.0  # type: ignore[attr-defined]
    _cached.cache_clear()
    torch.use_deterministic_algorithms(False)
    SHARED.clear()
    SHARED.update(seen=[], count=0)


def shared() -> dict[str, Any]:
    """A copy of what habits have written, to put back by ``SHARED.update``."""
    return {name: copy.copy(value) for name, value in SHARED.items()}
