"""Processes that end, or are interrupted, while something compiles or computes aside: with their own status."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from convdispatch.device import background

COMMON = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
import numpy as np
import convdispatch as cd
def image(k): return np.ones((1, 16 + k, 20, 20), np.float32), np.ones((32, 16 + k, 3, 3), np.float32)
"""
FEATURES = {
    "ready": """
from convdispatch.selection import async_compile
async_compile.WAIT_S = 0.0
with cd.policy(tier="ready"):
    for k in range(3):
        cd.conv(*image(k), padding=1)
""",
    "benchmark": """
import torch, convdispatch.torch as ct
ct.enable()
torch.backends.cudnn.benchmark = True
for k in range(3):
    x, w = map(torch.from_numpy, image(k))
    torch.nn.functional.conv2d(x, w)
""",
    "given up": """
from convdispatch.device import runtime
from convdispatch.measurement.compiling import StillCompiling, compiled_within
from convdispatch.selection import dispatch
from convdispatch import ConvProblem
try:
    compiled_within(lambda: dispatch.prepare(ConvProblem.parse("mb1ic16ih20oc32kh3"), runtime.context()), 0.0)
except StillCompiling:
    pass
""",
    "compilers": """
import threading
from convdispatch.device import background, runtime
from convdispatch.device.programs import compile_pool
from convdispatch.selection import dispatch
from convdispatch import ConvProblem
tasks = [
    lambda k=k: dispatch.prepare(ConvProblem.parse(f"mb1ic{16 + k}ih20oc32kh3"), runtime.context()) for k in range(6)
]
def aside():
    with compile_pool.side_by_side(runtime.default_device(), at_once=True):
        compile_pool.run(tasks)
background.start(aside, "aside")
""",
}
ENVIRONMENT = {"PYOPENCL_NO_CACHE": "1", "CONVDISPATCH_KERNEL_CACHE": "off"}


def child(monkeypatch, body, **options):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", COMMON + body], **pipes, **options)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_process_ends_while_a_feature_compiles(feature, monkeypatch, device):
    if feature == "benchmark":
        pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    process = child(monkeypatch, FEATURES[feature] + "\ntime.sleep(0.05)\nsys.exit(7)\n")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 7, said[-2000:]
    assert "Traceback" not in said


def test_an_interrupt_while_a_feature_compiles(monkeypatch, device):
    process = child(monkeypatch, FEATURES["ready"] + "\nprint('on', flush=True)\ntime.sleep(60)\n")
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in said
    assert process.returncode in (1, -signal.SIGINT, 130), said[-2000:]


ASIDE = """
from convdispatch.device import background
def work():
    print("on", flush=True)
    time.sleep({seconds})
    print("done", flush=True)
background.start(work, "aside")
time.sleep(0.2)
"""


def test_work_aside_is_waited_for(monkeypatch):
    said, _ = child(monkeypatch, ASIDE.format(seconds=0.5)).communicate(timeout=120)
    assert said == "on\ndone\n"


def test_a_second_interrupt_does_not_wait(monkeypatch):
    process = child(monkeypatch, ASIDE.format(seconds=100) + "print('ends', flush=True)\n")
    assert [process.stdout.readline() for _ in range(2)] == ["on\n", "ends\n"]
    end, status = time.monotonic() + 60, None
    while status is None and time.monotonic() < end:  # the first ones may come before the end has begun
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        status = process.poll()
    process.kill()
    process.communicate()
    assert status == 130


def test_nothing_new_begins_in_threads_that_wait_for_work(monkeypatch):
    monkeypatch.setattr(background, "_ended", True)
    with pytest.raises(SystemExit), background.at_work():
        pytest.fail("the process ends already")
    monkeypatch.setattr(background, "_ended", False)
    with background.at_work():
        assert background._under_way
    assert not background._under_way


def test_a_thread_that_raises_is_over(monkeypatch):
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    background.start(lambda: 1 / 0, "raises").join()
    assert not background._under_way


OUTLIVES = """
import threading
import numpy as np
import convdispatch as cd
from convdispatch import inference, nn
from convdispatch.device.background import Threads
w = np.ones((2, 2, 3, 3), "f")
def image(size): return np.ones((1, 2, size, size), "f")
def right(y, size): return y.shape[2:] == (size - 2, size - 2) and bool((y == 18).all())
def call():
    return right(cd.conv(image(9), w), 9)
def ready():
    with cd.policy(tier="ready"):
        return right(cd.conv(image(10), w), 10)
def transposed():
    return cd.conv_transpose(image(11), w, stride=2).shape == (1, 2, 23, 23)
def search():
    cd.find(cd.ConvProblem.parse("mb1ic2ih12oc2kh3"), budget_ms=1)
    return right(cd.conv(image(12), w), 12)
def net():
    net = inference.build(nn.Sequential(nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2)), (1, 2, 13, 13))
    return net(image(13)).shape == (1, 2, 11, 11)
def threads():
    threads = Threads(2, "late")
    return [future.result() for future in [threads.submit(lambda k=k: k) for k in (7, 0, 0)]] == [7, 0, 0]
def work():
    threading.main_thread().join()
    for each in call, ready, transposed, search, net, threads:
        print(each.__name__, each(), flush=True)
threading.Thread(target=work).start()
"""


def test_a_thread_that_outlives_the_main_thread_computes():
    """From the main thread's end on, ``concurrent.futures`` takes no work; what needs no executor goes on."""
    process = subprocess.run([sys.executable, "-c", OUTLIVES], capture_output=True, text=True)
    ways = "call", "ready", "transposed", "search", "net", "threads"
    assert process.stdout.splitlines() == [f"{way} True" for way in ways], process.stderr
    assert process.returncode == 0


def test_threads_run_in_order_and_pass_on_what_is_raised():
    order, threads = [], background.Threads(1, "in order")
    futures = [threads.submit(lambda k=k: order.append(k)) for k in range(20)]
    failing = threads.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(60)
    assert order == list(range(20))
    assert all(future.done() for future in futures)
