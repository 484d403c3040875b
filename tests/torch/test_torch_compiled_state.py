"""What a model's code reads and writes of Python's state: compiled models do as the model itself, at each call."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import random
import sys
import threading
import types
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch_checks import error  # noqa: E402 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402

nn, F = torch.nn, torch.nn.functional
DOORS = {
    "convert": lambda model: ct.convert(model, fuse=True),
    "backend": lambda model: torch.compile(model, backend="convdispatch"),
}


@dataclasses.dataclass
class Config:
    gain: float = 1.0
    levels: list = dataclasses.field(default_factory=lambda: [1.0])


class Mode(enum.Enum):
    PLAIN = 1
    TRIPLE = 3


class Slots:
    __slots__ = ("gain",)


class Doubling:
    """A descriptor."""

    gain = 1.0

    def __get__(self, instance, owner):
        return self.gain


class Net(nn.Module):
    factor = 1.0
    described = Doubling()

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.register_buffer("table", torch.ones(4, 1, 1))
        self.body, self.gain, self.on, self.mode = body, 1.0, False, Mode.PLAIN
        self.config, self.slots, self.kept, self.array = Config(), Slots(), {}, np.ones(1)
        self.slots.gain = 1.0

    @property
    def twofold(self):
        return self.gain * 2

    def scaled(self, y):
        return y * self.factor

    def layers(self, x):
        return self.two(F.relu(self.norm(self.one(x))))

    def forward(self, x):
        return self.body(self, self.layers(x))


GLOBAL, LIST, DICT, SPACE, TENSOR = 1.0, [1.0], {"gain": 1.0}, types.SimpleNamespace(gain=1.0), torch.ones(())
DEQUE, ORDERED = collections.deque([1.0]), collections.OrderedDict(a=1.0)
VARIABLE = contextvars.ContextVar("gain", default=1.0)
MODULE = types.ModuleType("a_sibling_file")
MODULE.gain, MODULE.config = 1.0, Config()
MODULE.scaled = lambda y: y * MODULE.gain
sys.modules["a_sibling_file"] = MODULE


def scaled(y):
    return y * GLOBAL


def tripled(y):
    return y * 3


def by_default(m, y, levels=LIST):
    return y * levels[0]


def closed():
    gain = 1.0

    def body(m, y):
        return y * gain

    def change(m):
        nonlocal gain
        gain = 3.0

    return body, change


def by_method(m, y):
    return m.scaled(y)


def written(name):
    return lambda m: globals().update({name: 3.0})


# The body of a model, and what changes what it reads: results are three times as large after it.
READS = {
    "a global": (lambda m, y: y * GLOBAL, written("GLOBAL")),
    "a function's global": (lambda m, y: scaled(y), written("GLOBAL")),
    "a global list": (lambda m, y: y * LIST[0], lambda m: LIST.__setitem__(0, 3.0)),
    "a list's length": (lambda m, y: y * (2 * len(LIST) - 1), lambda m: LIST.append(2.0)),
    "a dictionary": (lambda m, y: y * DICT["gain"], lambda m: DICT.update(gain=3.0)),
    "a dictionary's get": (lambda m, y: y * DICT.get("more", 1.0), lambda m: DICT.update(more=3.0)),
    "a dictionary's order": (
        lambda m, y: y * next(iter(DICT.values())),
        lambda m: (DICT.clear(), DICT.update(other=3.0, gain=1.0)),
    ),
    "an ordered dictionary": (lambda m, y: y * ORDERED["a"], lambda m: ORDERED.update(a=3.0)),
    "a deque": (lambda m, y: y * DEQUE[0], lambda m: DEQUE.appendleft(3.0)),
    "a namespace": (lambda m, y: y * SPACE.gain, lambda m: setattr(SPACE, "gain", 3.0)),
    "a global tensor": (lambda m, y: y * TENSOR, lambda m: TENSOR.fill_(3.0)),
    "another global tensor": (lambda m, y: y * TENSOR, lambda m: globals().update(TENSOR=torch.tensor(3.0))),
    "a global tensor's data": (lambda m, y: y * TENSOR, lambda m: TENSOR.data.mul_(3.0)),
    "a function": (lambda m, y: scaled(y), lambda m: globals().update(scaled=tripled)),
    "a default": (by_default, lambda m: LIST.__setitem__(0, 3.0)),
    "a closure": closed,
    "a partial": (lambda m, y: functools.partial(torch.mul, other=GLOBAL)(y), written("GLOBAL")),
    "a module's attribute": (lambda m, y: y * MODULE.gain, lambda m: setattr(MODULE, "gain", 3.0)),
    "a module's object": (lambda m, y: y * MODULE.config.gain, lambda m: setattr(MODULE.config, "gain", 3.0)),
    "a module's function": (lambda m, y: MODULE.scaled(y), lambda m: setattr(MODULE, "gain", 3.0)),
    "an import in forward": (
        lambda m, y: y * __import__("a_sibling_file").gain,
        lambda m: setattr(MODULE, "gain", 3.0),
    ),
    "an attribute": (lambda m, y: y * m.gain, lambda m: setattr(m, "gain", 3.0)),
    "a switch": (lambda m, y: y * 3 if m.on else y, lambda m: setattr(m, "on", True)),
    "a property": (lambda m, y: y * m.twofold, lambda m: setattr(m, "gain", 3.0)),
    "a descriptor": (lambda m, y: y * m.described, lambda m: setattr(Doubling, "gain", 3.0)),
    "a class attribute": (lambda m, y: y * m.factor, lambda m: setattr(Net, "factor", 3.0)),
    "a method's attribute": (by_method, lambda m: setattr(Net, "factor", 3.0)),
    "a dataclass": (lambda m, y: y * m.config.gain, lambda m: setattr(m.config, "gain", 3.0)),
    "a dataclass's list": (lambda m, y: y * m.config.levels[0], lambda m: m.config.levels.__setitem__(0, 3.0)),
    "an enumeration": (lambda m, y: y * m.mode.value, lambda m: setattr(m, "mode", Mode.TRIPLE)),
    "slots": (lambda m, y: y * m.slots.gain, lambda m: setattr(m.slots, "gain", 3.0)),
    "an array": (lambda m, y: y * float(m.array[0]), lambda m: m.array.fill(3.0)),
    "parts": (lambda m, y: y * (2 * len([*m.children()]) - 5), lambda m: m.add_module("more", nn.ReLU())),
    "a buffer": (lambda m, y: y * m.table, lambda m: m.table.fill_(3.0)),
    "a buffer's data": (lambda m, y: y * m.table, lambda m: m.table.data[:].mul_(3.0)),
    "a buffer by NumPy": (lambda m, y: y * m.table, lambda m: m.table.numpy().__imul__(3.0)),
    "another buffer": (lambda m, y: y * m.table, lambda m: setattr(m, "table", torch.full((4, 1, 1), 3.0))),
    "a context variable": (lambda m, y: y * VARIABLE.get(), lambda m: VARIABLE.set(3.0)),
    "an environment of PyTorch's": (
        lambda m, y: y * (3 if torch.are_deterministic_algorithms_enabled() else 1),
        lambda m: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for name in ("GLOBAL", "scaled", "TENSOR"):
        monkeypatch.setitem(globals(), name, globals()[name])
    for holder in (SPACE, MODULE, MODULE.config, Doubling):
        monkeypatch.setattr(holder, "gain", 1.0)
    monkeypatch.setattr(Net, "factor", 1.0)
    LIST[:] = [1.0]
    DICT.clear()
    DICT.update(gain=1.0)
    DEQUE.clear()
    DEQUE.append(1.0)
    ORDERED.update(a=1.0)
    TENSOR.fill_(1.0)
    before = VARIABLE.set(1.0)
    yield
    VARIABLE.reset(before)
    TENSOR.fill_(1.0)
    torch.use_deterministic_algorithms(False)
    torch.compiler.reset()


def picture(seed=0):
    return torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def written_to(door, compiled, model):
    """The model whose attributes the compiled one reads."""
    return compiled if door == "convert" else model


ONCE = {"a list's length", "a dictionary's order", "a deque", "a global tensor's data"}
"""Changes of what all models share, which are made once."""


@pytest.mark.parametrize("door", ["convert", pytest.param("backend", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", READS)
def test_what_the_code_reads(name, door):
    found = READS[name]
    body, change = found() if callable(found) else found
    own, model = (Net(body).eval().requires_grad_(False) for _ in range(2))
    compiled, x = DOORS[door](model), picture()
    with torch.no_grad():
        before = own(x)
        for _ in range(2):
            assert error(compiled(x), before) < 1e-5
        change(own)
        if own(x).allclose(before):
            raise AssertionError("the test changes nothing")
        if name not in ONCE:
            change(written_to(door, compiled, model))
        for _ in range(2):
            assert error(compiled(x), own(x)) < 1e-5


@functools.lru_cache
def cached(n):
    return torch.linspace(0, 1, n)


def of_function(n):
    if n not in of_function.kept:
        of_function.kept[n] = torch.linspace(0, 1, n)
    return of_function.kept[n]


of_function.kept = {}


def kept_in(holder):
    def find(n):
        if getattr(holder, "grid", None) is None:
            holder.grid = torch.linspace(0, 1, n)
        return holder.grid

    return find


def kept_weakly():
    table, owners = weakref.WeakKeyDictionary(), [Slots]

    def find(n):
        if owners[0] not in table:
            table[owners[0]] = torch.linspace(0, 1, n)
        return table[owners[0]]

    return find


CACHES = {
    "functools.lru_cache": lambda: cached,
    "a function's attribute": lambda: of_function,
    "threading.local": lambda: kept_in(threading.local()),
    "an object": lambda: kept_in(types.SimpleNamespace()),
    "a module": lambda: kept_in(MODULE),
    "a class": lambda: kept_in(type("Holder", (), {})),
    "a weak dictionary": kept_weakly,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", CACHES)
def test_caches_hold_tensors_with_numbers(name, door):
    find = CACHES[name]()
    model = Net(lambda m, y: y + find(y.shape[-1])).eval().requires_grad_(False)
    compiled, x = DOORS[door](copy.deepcopy(model)), picture()
    with torch.no_grad():
        results = [each(x) for each in (compiled, compiled, model, compiled)]
    assert all(type(each) is torch.Tensor for each in results)
    assert type(find(6)) is torch.Tensor
    assert max(error(each, results[2]) for each in results) < 1e-5
    with contextlib.suppress(AttributeError):
        del MODULE.grid


SEEN = []


def collects(m, y):
    SEEN.append(y)
    return y


def counts(m, y):
    m.gain += 1
    return y * m.gain


def replaces_a_buffer(m, y):
    m.table = m.table + 1
    return y * m.table


def writes_a_buffer(m, y):
    m.table += 1
    return y * m.table


def keeps(m, y):
    m.kept["last"] = y
    return y * len(m.kept)


def generates(m, y):
    return sum(y * each for each in (n for n in range(3)))


def catches(m, y):
    try:
        if y.shape[-1] > 2:
            raise ValueError("large")
        return y
    except ValueError:
        return y * 2
    finally:
        m.gain += 1


@contextlib.contextmanager
def doubled(m):
    m.gain *= 2
    yield m.gain
    m.gain /= 2


def in_a_context(m, y):
    with doubled(m) as gain:
        return y * gain


def draws(module):
    return lambda m, y: (
        y * {"random": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(())}[module]()
    )


WRITES = {
    "a list that collects": collects,
    "a counter": counts,
    "another buffer": replaces_a_buffer,
    "a buffer": writes_a_buffer,
    "a dictionary": keeps,
    "a generator": generates,
    "an exception": catches,
    "a context manager": in_a_context,
    "random": draws("random"),
    "torch": draws("torch"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", WRITES)
def test_what_the_code_writes_at_each_call(name, door):
    own, model = (Net(WRITES[name]).eval().requires_grad_(False) for _ in range(2))
    compiled = DOORS[door](model)
    for turn in range(4):
        results = []
        for each in (compiled, own):
            random.seed(turn)
            torch.manual_seed(turn)
            SEEN.clear()
            with torch.no_grad():
                results.append(each(picture(turn)))
            assert len(SEEN) == (name == "a list that collects")
            assert all(type(y) is torch.Tensor for y in SEEN)
        assert error(*results) < 1e-5
    state = written_to(door, compiled, model)
    assert state.gain == own.gain
    assert torch.equal(state.table, own.table)
    assert type(state.table) is torch.Tensor
