"""The cache of programs and plans: its bounds, who stays, one maker a key, no lock while a value is made."""

from __future__ import annotations

import random
import threading

import pytest

from convdispatch.device.cache.bounded import KB, Bounded, Bounds
from convdispatch.device.programs.kernels import Programs


def cache(once=4, kept=8, nbytes=1000):
    return Bounded(Bounds(once, nbytes), Bounds(kept, nbytes))


def ask(found: Bounded, key, made: list, nbytes: int = 1):
    return found.make(key, lambda: (made.append(key) or f"value of {key}", nbytes))


def test_new_values_wait_in_a_short_line():
    found, made = cache(), []
    for key in range(3000):
        assert ask(found, key, made) == f"value of {key}"
        assert len(found) <= 4
    assert made == list(range(3000))
    assert [found.get(key) is not None for key in (2995, 2996, 2999)] == [False, True, True]


def test_what_comes_back_stays():
    """A net of more layers than the short line holds makes each plan twice at most, and then never again."""
    found, made = cache(), []
    for _ in range(5):
        for key in range(8):
            ask(found, key, made)
    assert [made.count(key) for key in range(8)] == [2, 2, 2, 2, 1, 1, 1, 1]  # the last four still wait in line
    for key in range(100, 3100):  # however many pass by
        ask(found, key, made)
    for _ in range(2):
        del made[:]
        for key in range(8):
            ask(found, key, made)
    assert made == []


def test_a_large_nets_training_step_is_planned_twice_at_most():
    """160 different convolutions, forward and both gradients, at what a call's programs are counted for on a CPU."""
    found, made = Programs(), []
    for step in range(4):
        for key in range(480):
            Bounded.make(found, key, lambda made_in=(step, key): (made.append(made_in) or made_in, 3300 * KB))
    assert max(step for step, _ in made) == 1


def test_asking_twice_in_a_row_is_no_coming_back():
    found, made = cache(), []
    for key in range(300):
        ask(found, key, made)
        ask(found, key, made)
        assert len(found) <= 4
    assert made == list(range(300))


def test_the_least_recently_used_of_those_that_came_back_goes():
    found, made = cache(once=1, kept=3), []
    for key in (*range(4), *range(3)):
        ask(found, key, made)
    assert [found.get(key) is not None for key in range(4)] == [True, True, True, True]  # 3 still waits in line
    found.get(0)
    ask(found, 4, made)
    ask(found, 3, made)  # comes back, and 1 goes for it
    assert [found.get(key) is not None for key in range(4)] == [True, False, True, True]


def test_bytes_are_bounded_and_counted():
    found, made = cache(once=100, kept=100, nbytes=10), []
    random.seed(1)
    for _ in range(500):
        ask(found, random.randrange(40), made, nbytes=random.randrange(1, 5))
        assert 0 <= found.nbytes <= 20
    found.drop()
    assert (len(found), found.nbytes) == (0, 0)
    ask(found, "large", made, nbytes=99)
    assert found.get("large")
    ask(found, "small", made)
    assert found.get("large") is None


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
