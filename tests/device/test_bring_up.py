"""A device that several threads ask for is made once, and is no trap for a child that is forked meanwhile."""

from __future__ import annotations

import functools
import os
import signal
import threading

import pytest

from convdispatch import NoDevice
from convdispatch.device import background, runtime
from convdispatch.device.cuda import stream


def test_a_place_is_made_once_and_who_asks_meanwhile_waits(monkeypatch):
    go, begun, made, found = threading.Event(), threading.Event(), [], []

    @functools.lru_cache
    def make(number):
        begun.set()
        assert go.wait(600)
        made.append(number)
        return f"place {number}"

    monkeypatch.setattr(stream, "_place_of", make)
    asking = [threading.Thread(target=lambda: found.append(stream.CudaPlace.numbered(0))) for _ in range(3)]
    for each in asking:
        each.start()
    assert begun.wait(600)
    assert not found
    go.set()
    for each in asking:
        each.join(600)
    assert found == ["place 0"] * 3
    assert made == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_meanwhile_is_told_so(device, monkeypatch):
    """It has neither the thread nor what that was making, and does not wait for either."""
    go, begun = threading.Event(), threading.Event()

    @functools.lru_cache
    def make(device):
        begun.set()
        assert go.wait(600)

    monkeypatch.setattr(runtime, "_context", make)
    thread = background.start(lambda: runtime.context(device), "a test's")
    assert begun.wait(600)
    child = os.fork()
    if not child:
        signal.alarm(300)
        try:
            runtime.context(device)
        except NoDevice as error:
            os._exit(0 if "forked" in str(error) else 2)
        finally:
            os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go.set()
    thread.join(600)
    assert ended == 0
