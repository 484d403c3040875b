"""Whether what a recorded model's code reads is the very thing that it was: by the compiled module, and without it."""

import collections
import sys
import types

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from convdispatch.device.native import loading
from convdispatch.torch.fusion import identities


class Slotted:
    __slots__ = ("gone", "x")


class Kind:
    level = 300.5


def held():
    slotted, cell = Slotted(), types.CellType(1.5)
    slotted.x = "a word"
    table = {"a": 1.5, "b": [], 3: None}
    return {
        "table": table,
        "ordered": collections.OrderedDict(a=2.5, b=3.5),
        "list": [1.5, table],
        "set": {2.5},
        "deque": collections.deque([3.5, 4.5]),
        "globals": {"f": table, "g": 1},
        "slotted": slotted,
        "cell": cell,
    }


def looked(of):
    containers = [of[name] for name in ("table", "ordered", "list", "set", "deque")]
    named = [(of["globals"], "f"), (vars(Kind), "level")]
    return identities.Identities(containers, named, [(of["slotted"], "x"), (of["cell"], "cell_contents")])


def renamed(of):
    of["table"]["c"] = of["table"].pop("b")


def other_order(of):
    of["table"]["a"] = of["table"].pop("a")


CHANGES = {
    "a value": lambda of: of["table"].update(a=2.5),
    "an equal value": lambda of: of["table"].update(a=float("1.5")),
    "another type's": lambda of: of["globals"].update(f={}),
    "a key more": lambda of: of["table"].update(z=None),
    "a key less": lambda of: of["table"].pop("a"),
    "a key's name": renamed,
    "a last key's name": lambda of: (of["table"].pop(3), of["table"].update(c=None)),
    "the order": other_order,
    "an ordered table's value": lambda of: of["ordered"].update(a=0.5),
    "a list's item": lambda of: of["list"].__setitem__(0, 2.5),
    "a list's length": lambda of: of["list"].append(1),
    "two that exchange": lambda of: of["list"].append(of["deque"].pop()),
    "a set's item": lambda of: (of["set"].clear(), of["set"].add(0.5)),
    "a deque's item": lambda of: of["deque"].rotate(),
    "a global": lambda of: of["globals"].pop("f"),
    "a slot": lambda of: setattr(of["slotted"], "x", 1),
    "a slot that is gone": lambda of: delattr(of["slotted"], "x"),
    "a cell": lambda of: setattr(of["cell"], "cell_contents", 2.5),
    "an empty cell": lambda of: delattr(of["cell"], "cell_contents"),
}


@pytest.fixture(params=["compiled", "python"])
def way(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(identities.loading, "module", lambda: None)
    elif loading.module() is None:
        pytest.skip("the compiled module is not there: python -m convdispatch.device.native.build")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(way, name):
    of = held()
    look = looked(of)
    assert look.hold()
    of["globals"]["g"] = 2  # a name that nobody reads
    assert look.hold()
    CHANGES[name](of)
    assert not look.hold()


def test_a_class_attribute_and_what_is_gone_from_the_begin(way, monkeypatch):
    of = held()
    look = looked(of)
    monkeypatch.setattr(Kind, "level", 1)
    assert not look.hold()
    assert not identities.Identities([], [({}, "f")], []).hold()
    assert not identities.Identities([], [], [(of["slotted"], "gone")]).hold()
    assert identities.Identities([], [], []).hold()


def test_nothing_is_kept_and_nothing_is_let_go(way):
    value, key = object(), "".join(["k", "ey"])
    of = {key: value}
    look = identities.Identities([of, [value]], [(of, key)], [])
    before = sys.getrefcount(value), sys.getrefcount(key)
    assert all(look.hold() for _ in range(1000))
    of[key] = None
    assert not look.hold()
    of[key] = value
    assert (sys.getrefcount(value), sys.getrefcount(key)) == before


def test_the_compiled_module_refuses_other_things():
    native = loading.module()
    if native is None:
        pytest.skip("the compiled module is not there: python -m convdispatch.device.native.build")
    for given in (([{}], []), ([()], [()]), ([{}], [[]])):
        with pytest.raises(TypeError):
            native.same_items(*given)
    with pytest.raises(TypeError):
        native.same_names([{}], ["a"], [])
    with pytest.raises(KeyError):
        native.same_names([{}], ["a"], [1])
