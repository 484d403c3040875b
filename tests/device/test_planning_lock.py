"""Threads that plan take turns, and give theirs away while they wait."""

from __future__ import annotations

import threading

from convdispatch.device import background
from convdispatch.device.cache.bounded import KB, Bounded, Budget


def run(*works) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread waits for ever"


def test_one_at_a_time():
    turn, inside, most = threading.Lock(), [], []

    def work():
        for _ in range(50):
            with background.locked(turn):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    run(*[work] * 4)
    assert len(most) == 200
    assert max(most) == 1


def test_a_thread_that_waits_lets_others_work():
    turn, done = threading.Lock(), threading.Event()

    def waits():
        with background.locked(turn):
            entered.set()
            with background.unlocked():
                assert done.wait(10)
            assert turn.locked()

    def works():
        assert entered.wait(10)
        with background.locked(turn):
            done.set()

    entered = threading.Event()
    run(waits, works)
    assert not turn.locked()


def test_who_comes_back_does_not_wait_for_ever(monkeypatch):
    """The thread whose turn it is waits for the one that was aside, by means that nobody knows of."""
    monkeypatch.setattr(background, "_TURN_TIMEOUT_S", 0.05)
    turn, entered, finished = threading.Lock(), threading.Event(), threading.Event()

    def waits():
        with background.locked(turn):
            with background.unlocked():
                assert entered.wait(10)
            finished.set()

    def holds():
        with background.locked(turn):
            entered.set()
            assert finished.wait(10)

    run(waits, holds)
    assert not turn.locked()


def test_outside_of_a_turn_nothing_happens():
    with background.unlocked():
        pass


def test_waiting_for_a_value_that_another_thread_makes_gives_the_turn_away():
    """The maker needs a turn to go on: the one who waits for the value must not keep it."""
    turn, known, making = threading.Lock(), Bounded(Budget(lambda: 8 * KB, lambda: 8 * KB)), threading.Event()
    found = []

    def make():
        with background.unlocked():
            making.set()
            assert waiting.wait(10)
        return 7, 1

    def makes():
        with background.locked(turn):
            found.append(known.make("key", make))

    def waits():
        assert making.wait(10)
        with background.locked(turn):
            waiting.set()
            found.append(known.make("key", lambda: (8, 1)))

    waiting = threading.Event()
    run(makes, waits)
    assert found == [7, 7]
