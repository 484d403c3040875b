"""What the code of a recorded model reads and writes beside its attributes: a record ends, or is not made."""

from __future__ import annotations

import contextvars
import math
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from test_torch_recorded import Net, alike, made, picture, records  # noqa: E402 (torch is asked for first)

from convdispatch.torch.fusion.model_state import State  # noqa: E402
from convdispatch.torch.fusion.python_state import PythonState  # noqa: E402

SETTINGS, LEVELS, FACTOR = {"scale": 2.0}, [1.0], torch.tensor(2.0)
FIELDS = types.SimpleNamespace(scale=2.0)


class Defaults:
    scale = 2.0


class Slots:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


class Shared(Net):
    table = {"scale": 2.0}  # noqa: RUF012 (it is written)

    def doubled(self, y):
        return y * 2


def doubled(y):
    return y * 2


def tripled(y):
    return y * 3


def closed():
    scale = 2.0

    def body(m, x):
        return m.layers(x) * scale

    def change(_):
        nonlocal scale
        scale = 3.0

    return body, change


def by_default(m, x, levels=LEVELS):
    return m.layers(x) * len(levels)


# The body of a model, and what changes what it reads.
READS = {
    "a dictionary": (lambda m, x: m.layers(x) * SETTINGS["scale"], lambda m: SETTINGS.update(scale=3.0)),
    "a list": (lambda m, x: m.layers(x) * len(LEVELS), lambda m: LEVELS.append(2.0)),
    "a default": (by_default, lambda m: LEVELS.append(2.0)),
    "a tensor": (lambda m, x: m.layers(x) * FACTOR, lambda m: FACTOR.mul_(2)),
    "another tensor": (lambda m, x: m.layers(x) * FACTOR, lambda m: globals().update(FACTOR=torch.tensor(9.0))),
    "a namespace": (lambda m, x: m.layers(x) * FIELDS.scale, lambda m: setattr(FIELDS, "scale", 3.0)),
    "a class": (lambda m, x: m.layers(x) * Defaults.scale, lambda m: setattr(Defaults, "scale", 3.0)),
    "a function": (lambda m, x: doubled(m.layers(x)), lambda m: globals().update(doubled=tripled)),
    "a method": (lambda m, x: m.doubled(m.layers(x)), lambda m: setattr(Shared, "doubled", lambda m, y: y * 5)),
    "a class's table": (lambda m, x: m.layers(x) * m.table["scale"], lambda m: m.table.update(scale=3.0)),
    "an array": (lambda m, x: m.layers(x) * float(m.array[0]), lambda m: m.array.fill(3)),
    "slots": (lambda m, x: m.layers(x) * m.slots.scale, lambda m: setattr(m.slots, "scale", 3.0)),
    "a class in an attribute": (lambda m, x: m.layers(x) * m.kind.scale, lambda m: setattr(Defaults, "scale", 3.0)),
    "a closure": closed(),
    "a zero's sign": (lambda m, x: m.layers(x) * math.copysign(2, m.zero), lambda m: setattr(m, "zero", -0.0)),
    "a part": (lambda m, x: m.layers(x) * len([*m.children()]), lambda m: m.add_module("more", torch.nn.ReLU())),
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setitem(SETTINGS, "scale", 2.0)
    monkeypatch.setattr(FIELDS, "scale", 2.0)
    monkeypatch.setattr(Defaults, "scale", 2.0)
    monkeypatch.setattr(Shared, "doubled", Shared.doubled)
    monkeypatch.setitem(Shared.table, "scale", 2.0)
    for name in ("FACTOR", "doubled"):
        monkeypatch.setitem(globals(), name, globals()[name])
    LEVELS[:] = [1.0]


@pytest.mark.parametrize("name", READS)
def test_what_the_code_reads_is_looked_at(name):
    body, change = READS[name]
    model = Shared(body)
    model.array, model.slots, model.kind, model.zero = np.full(4, 2.0), Slots(), Defaults, 0.0
    state = State(model, PythonState(model))
    assert state.holds()
    change(model)
    assert not state.holds()


@pytest.mark.parametrize("name", ["a dictionary", "a part"])
def test_a_record_ends_with_it(name):
    body, change = READS[name]
    model, fused = made(body)
    alike(fused, model, picture())
    assert "convolutions" in records(fused)[0], records(fused)
    for each in (model, fused):
        change(each)
    alike(fused, model, picture())


def appends(m, x):
    LEVELS.append(0.0)
    return m.layers(x)


def replaces_a_buffer(m, x):
    m.calls = m.calls + 1
    return m.layers(x) * m.calls


def keeps_in_a_dictionary(m, given):
    given["y"] = m.layers(given["x"])
    return given["y"]


@pytest.mark.parametrize("body", [appends, replaces_a_buffer, keeps_in_a_dictionary])
def test_what_a_record_would_not_write_is_written_at_each_call(body):
    model, fused = made(body)
    for _ in range(4):
        mine, theirs, before = {"x": picture()}, {"x": picture()}, len(LEVELS)
        takes_all = body is keeps_in_a_dictionary
        with torch.no_grad():
            got = fused(mine if takes_all else mine["x"])
            once = len(LEVELS) - before
            wanted = model(theirs if takes_all else theirs["x"])
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)
        assert mine.keys() == theirs.keys()
        assert once == len(LEVELS) - before - once == (body is appends)
        assert type(fused.calls) is torch.Tensor
    assert all("convolutions" not in each for each in records(fused)), records(fused)


def test_hooks_of_a_first_call_are_there_once():
    """As transformers' models hook the layers whose states they answer; such a list was twice as long."""
    heard = contextvars.ContextVar("heard")

    def body(m, x):
        if not hasattr(m, "hooks"):
            m.hooks = 1
            m.two.register_forward_hook(lambda part, given, y: heard.get().append(y))
        heard.set([])
        return m.layers(x) * len(heard.get())

    model, fused = made(body)
    for _ in range(3):
        alike(fused, model, picture())
    assert len(fused.two._forward_hooks) == 1


def test_arguments_with_marks_of_their_own():
    model, fused = made(lambda m, x, by=1.0: m.layers(x) * math.copysign(getattr(x, "mark", 2.0), by))
    marked = picture()
    marked.mark = 5.0
    for call in ((picture(),), (marked,), (picture(), 0.0), (picture(), -0.0)):
        alike(fused, model, *call)


def test_marks_for_torch_compile_are_nobodys():
    """transformers' caches have them."""

    def body(m, x):
        y = m.layers(x)
        torch._dynamo.mark_static_address(y)
        return y

    model, fused = made(body)
    given = picture()
    torch._dynamo.mark_static_address(given)
    alike(fused, model, given)
    assert "convolutions" in records(fused)[0], records(fused)


def test_tangents_of_forward_mode():
    model, fused = made(lambda m, x: m.layers(x))
    alike(fused, model, picture())
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(picture(), torch.ones(1, 3, 6, 6))
        got, wanted = (torch.autograd.forward_ad.unpack_dual(each(dual)).tangent for each in (fused, model))
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)
