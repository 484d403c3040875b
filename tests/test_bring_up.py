"""A device that is made ready beside the caller: once, waited for by who asks meanwhile, and no trap for a fork."""

from __future__ import annotations

import functools
import os
import signal
import threading

import pytest

from convdispatch import NoDevice
from convdispatch.device import background, runtime
from convdispatch.device.cuda import stream


@pytest.fixture
def made(monkeypatch):
    """What stands for a place: made when ``go`` is set, noted in ``by``."""

    class Made:
        go, begun, by, error = threading.Event(), threading.Event(), [], None

    @functools.lru_cache
    def make(number):
        Made.begun.set()
        assert Made.go.wait(600)
        Made.by.append(threading.current_thread().name)
        if Made.error is not None:
            raise Made.error
        return f"place {number}"

    monkeypatch.setattr(stream, "_place_of", make)
    monkeypatch.setattr(stream, "_brought_up", set())
    return Made


def joined():
    for thread in threading.enumerate():
        if thread.name == "convdispatch-device":
            thread.join(600)


def test_it_is_made_once_and_who_asks_meanwhile_waits(made):
    stream.bring_up(0)
    stream.bring_up(0)
    assert made.begun.wait(600)
    found = []
    asks = threading.Thread(target=lambda: found.append(stream.place_of(0)))
    asks.start()
    assert not found
    made.go.set()
    asks.join(600)
    assert found == ["place 0"]
    assert made.by == ["convdispatch-device"]


def test_what_is_wrong_says_who_asks(made):
    made.error = NoDevice("there is none")
    made.go.set()
    stream.bring_up(0)
    joined()
    with pytest.raises(NoDevice, match="there is none"):
        stream.place_of(0)
    assert len(made.by) == 2


@pytest.mark.parametrize("works", [True, False])
def test_enable_brings_up_the_device_of_a_process_that_works_by_cuda(monkeypatch, works):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    from convdispatch import torch as ct
    from convdispatch.torch.dispatch import routing

    asked = []
    monkeypatch.setattr(routing, "bring_up", asked.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: works)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    with ct.enable():
        assert asked == [3] * works


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_meanwhile_is_told_so(device, monkeypatch):
    """It has neither the thread nor what that was making, and does not wait for either."""
    go, begun = threading.Event(), threading.Event()

    @functools.lru_cache
    def make(device):
        begun.set()
        assert go.wait(600)

    monkeypatch.setattr(runtime, "_context", make)
    background.start(lambda: runtime.context(device), "convdispatch-device")
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
    joined()
    assert ended == 0
