"""The cache of programs and plans: its bounds, who stays, one maker a key, no lock while a value is made."""

from __future__ import annotations

import random
import threading

import pytest

from convdispatch import InvalidArgument
from convdispatch.device.cache.bounded import MIN_RETURNS, Bounded, Budget, Families
from convdispatch.device.programs import kernels
from convdispatch.device.programs.kernels import MB, Programs


def budget(limit=8, share=4):
    return Budget(lambda: limit, lambda: share)


def cache(limit=8, share=4, **given):
    return Bounded(budget(limit, share), **given)


def ask(found: Bounded, key, made: list, nbytes: int = 1, new: bool | None = None):
    return found.make(key, lambda: (made.append(key) or f"value of {key}", nbytes), new)


def test_new_values_have_a_share_for_themselves():
    found, made = cache(), []
    ask(found, "layer", made)
    for key in range(3000):
        assert ask(found, key, made, new=True) == f"value of {key}"
        assert len(found) <= 5
    assert made == ["layer", *range(3000)]
    assert found.get("layer")
    assert [found.get(key) is not None for key in (2990, 2999)] == [False, True]


def test_the_least_recently_used_goes_first():
    found, made = cache(limit=3), []
    for key in range(3):
        ask(found, key, made)
    found.get(0)
    ask(found, 3, made)
    assert [found.get(key) is not None for key in range(4)] == [True, False, False, True]  # down to 9/10


def test_caches_of_a_budget_share_it():
    both = budget()
    one, other, made = Bounded(both), Bounded(both), []
    for key in range(8):
        ask(one, key, made)
    assert len(one) == 8
    ask(other, "key", made, nbytes=4)
    assert (both.nbytes, len(other)) == (7, 1)
    assert both.nbytes == one.nbytes + other.nbytes


def test_what_a_value_was_made_of_goes_with_it_and_not_before():
    both, gone = budget(limit=10, share=3), []
    programs, plans = Bounded(both, lambda values: gone.extend(values)), Bounded(both)

    def plan(key, *names):
        def make():
            for name in names:
                programs.make(name, lambda name=name: (name, 2), new=True)
            return key, 1

        plans.make(key, make, new=False)

    plan("a", "shared", "of a")
    plan("b", "shared", "of b")
    assert both.nbytes == 8
    assert both.new_nbytes == 0, "a plan that is not new makes its programs not new"
    for _ in range(5):
        plans.get("a")
    plan("c", "of c")
    assert plans.get("b") is None
    assert gone == ["of b"]
    assert both.nbytes == sum(each.nbytes for each in (programs, plans))
    plans.drop(lambda key: key == "a")
    assert programs.get("shared")  # for those that are made in its place
    plan("d", "of d"), plan("e", "of e")
    assert programs.get("shared")  # asked for just now
    for key in "fgh":
        plan(key, f"of {key}")
    assert "shared" in gone


def test_what_returns_several_times_is_not_new_any_more():
    found, made = cache(limit=100), []
    for turn in range(MIN_RETURNS + 1):
        for key in range(12):
            ask(found, key, made, new=True)
            assert turn == MIN_RETURNS or found.nbytes <= 4
        for key in range(4):
            ask(found, ("others", turn, key), made, new=True)
    del made[:]
    for key in (*range(12), *range(100, 3000), *range(12)):
        ask(found, key, made, new=True)
    assert made == list(range(100, 3000))


def test_what_a_fast_path_uses_is_not_the_least_recently_used():
    used = {"value of 0"}
    found, made = cache(limit=3, used=lambda value: value in used and not used.discard(value)), []
    for key in range(4):
        ask(found, key, made)
    assert [found.get(key) is not None for key in range(4)] == [True, False, False, True]


def test_what_was_added_stays_however_large():
    found, made = cache(), []
    ask(found, "large", made, nbytes=99)
    assert found.get("large")
    ask(found, "small", made)
    assert found.get("large") is None


def test_grown_values_count():
    found, made = cache(limit=10), []
    ask(found, 0, made)
    ask(found, 1, made)
    found.grow(1, 8)
    assert found.nbytes == 10
    found.grow(1, 1)
    assert (found.get(0), found.nbytes) == (None, 10)
    found.grow(1, -9)
    found.grow("none", 5)
    assert found.nbytes == 1


def test_first_sizes_of_a_family():
    known = Families(2)
    assert [known.further("layer", size) for size in (1, 2, 3, 1, 2, 3)] == [False, False, True, False, False, True]
    assert not known.further("other", 3)
    known.forget()
    assert not known.further("layer", 3)


def test_a_large_nets_training_step_is_planned_once(monkeypatch):
    """160 different convolutions, forward and both gradients, at what a call's program takes on a CPU."""
    monkeypatch.setattr(kernels.BUDGET, "_entries", set())
    monkeypatch.setattr(kernels.BUDGET, "nbytes", 0)
    monkeypatch.setattr(kernels.BUDGET, "new_nbytes", 0)
    found, made = Programs(), []
    for step in range(4):
        for key in range(480):
            name = f"layer {key}"
            Bounded.make(found, name, lambda made_in=(step, key): (made.append(made_in) or made_in, MB), False)
    assert len(made) == 480


def test_the_limit_is_a_size_in_words(monkeypatch):
    for text, nbytes in (
        ("", 1024 * MB),
        ("300", 300),
        ("2k", 2048),
        ("1.5 MiB", 3 * MB // 2),
        ("1G", 1024 * MB),
    ):
        monkeypatch.setenv("CONVDISPATCH_CACHE_LIMIT", text)
        assert kernels.cache_limit() == nbytes
    for text in ("much", "-1", "1 x"):
        monkeypatch.setenv("CONVDISPATCH_CACHE_LIMIT", text)
        with pytest.raises(InvalidArgument, match="CONVDISPATCH_CACHE_LIMIT must be a number of bytes such as 512M"):
            kernels.cache_limit()


def test_bytes_are_bounded_and_counted():
    found, made = cache(limit=20, share=10), []
    random.seed(1)
    for _ in range(500):
        ask(found, random.randrange(40), made, nbytes=random.randrange(1, 5), new=random.random() < 0.5)
        assert 0 <= found.nbytes <= 20
        assert 0 <= found._budget.new_nbytes <= 10
        assert found._budget.nbytes == found.nbytes
    found.drop()
    assert (len(found), found.nbytes, found._budget.nbytes, found._budget.new_nbytes) == (0, 0, 0, 0)


def test_putting_again_replaces():
    found = cache()
    for size in (5, 7):
        found.put("key", size, size)
    assert (found.get("key"), len(found), found.nbytes) == (7, 1, 7)


def test_one_thread_makes_a_value_and_others_get_theirs_meanwhile():
    found, made, begun, gate = cache(), [], threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert gate.wait(60)
        made.append("slow")
        return "slow", 1

    answers = []
    threads = [threading.Thread(target=lambda: answers.append(found.make("key", slow))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    assert ask(found, "other", made) == "value of other"
    gate.set()
    for thread in threads:
        thread.join(60)
    assert answers == ["slow"] * 3
    assert made == ["other", "slow"]


def test_where_the_maker_fails_the_next_one_tries():
    found, begun, gate, failed = cache(), threading.Event(), threading.Event(), []

    def fails():
        begun.set()
        assert gate.wait(60)
        raise ValueError("no")

    def first():
        try:
            found.make("key", fails)
        except ValueError as error:
            failed.append(str(error))

    one = threading.Thread(target=first)
    one.start()
    assert begun.wait(60)
    answers: list = []
    other = threading.Thread(target=lambda: answers.append(ask(found, "key", [])))
    other.start()
    gate.set()
    one.join(60)
    other.join(60)
    assert (failed, answers) == (["no"], ["value of key"])
    with pytest.raises(ZeroDivisionError):
        found.make("more", lambda: 1 / 0)
    assert found.get("more") is None


def test_what_is_dropped_while_it_is_made_is_not_kept():
    """What it was made from may be out of date; but whoever drops it while making it knows why."""
    found, begun, gate = cache(), threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert gate.wait(60)
        return "old", 1

    answers = []
    thread = threading.Thread(target=lambda: answers.append(found.make("key", slow)))
    thread.start()
    assert begun.wait(60)
    found.drop()
    gate.set()
    thread.join(60)
    assert answers == ["old"]
    assert found.get("key") is None
    assert found.make("key", lambda: (found.drop() or "mine", 1)) == "mine"
    assert found.get("key") == "mine"
