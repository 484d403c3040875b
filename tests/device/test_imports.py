"""Large imports of CUDA's memory: a child process tries them, and what came of it is kept."""

from __future__ import annotations

import time

import numpy as np
import pyopencl as cl
import pytest
from threads import together

from convdispatch.api.errors import ConvDispatchWarning
from convdispatch.device import runtime
from convdispatch.device.cache import store
from convdispatch.device.memory import cuda_imports, shared_pool

pytestmark = pytest.mark.usefixtures("clean_memory")

LARGE = cuda_imports.USUAL + 1


@pytest.fixture
def another_process(monkeypatch, tmp_path):
    """``begin()``: as in a new process. What is kept lies in a new folder."""
    monkeypatch.setenv("CONVDISPATCH_KERNEL_CACHE", str(tmp_path / "store"))
    monkeypatch.delenv("CONVDISPATCH_LARGE_IMPORTS", raising=False)

    def begin():
        monkeypatch.setattr(cuda_imports, "_safe_by_device", {})
        store.TRIALS.forget()

    begin()
    return begin


@pytest.fixture
def outcomes(monkeypatch, another_process):
    """What the child that tries a large import ends with, one after the other."""
    made = []
    monkeypatch.setattr(cuda_imports, "_try_import", lambda device: (made.pop(0), "its last words"))
    return made


@pytest.mark.parametrize(("status", "expected"), [(0, True), (-11, False), (-6, False), (cuda_imports.REFUSED, False)])
def test_a_child_tries_large_imports_once(device, outcomes, another_process, status, expected):
    outcomes.append(status)
    assert cuda_imports.safe(device, cuda_imports.USUAL)
    assert outcomes == [status]  # nobody asked for a large one yet
    assert cuda_imports.safe(device, LARGE) is expected
    assert cuda_imports.safe(device, LARGE) is expected
    another_process()
    assert cuda_imports.safe(device, LARGE) is expected


@pytest.mark.parametrize("status", [cuda_imports.NO_MEMORY, 1, None, -9])
def test_what_says_nothing_of_the_driver_is_not_kept(device, outcomes, another_process, status):
    outcomes += [status, 0]
    with pytest.warns(ConvDispatchWarning, match="its last words.*CONVDISPATCH_LARGE_IMPORTS"):
        assert not cuda_imports.safe(device, LARGE)
    assert not cuda_imports.safe(device, LARGE)  # nor asked again in this process
    another_process()
    assert cuda_imports.safe(device, LARGE)


def test_two_threads_start_one_child(device, another_process, monkeypatch):
    started = []

    def tried(device):
        started.append(device)
        time.sleep(0.05)
        return 0, ""

    monkeypatch.setattr(cuda_imports, "_try_import", tried)
    together(lambda _: cuda_imports.safe(device, LARGE), 4)
    assert len(started) == 1


def test_a_variable_answers_instead(device, outcomes, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_LARGE_IMPORTS", "1")
    assert cuda_imports.safe(device, LARGE)


def test_the_child_says_what_went_wrong(device):
    """A real child: on a device that is not CUDA's it ends with an error and its words."""
    if runtime.cuda_devices(runtime.device_info(device)):
        pytest.skip("devices that are not CUDA's only")
    status, said = cuda_imports._try_import(device)
    assert status == 1
    assert "is not CUDA's" in said


@pytest.mark.parametrize(("command", "seconds"), [("import time; time.sleep(60)", 1), ("import os; os.abort()", 60)])
def test_a_child_that_hangs_or_crashes(device, monkeypatch, tmp_path, command, seconds):
    (tmp_path / "trial_of_imports.py").write_text(command)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(cuda_imports, "_CHILD", "trial_of_imports")
    monkeypatch.setattr(cuda_imports, "_TRIAL_S", seconds)
    monkeypatch.chdir(tmp_path)  # for the core that some systems leave
    status, said = cuda_imports._try_import(device)
    assert (status is None and "no answer" in said) if seconds == 1 else status in cuda_imports._CRASHES


def test_large_blocks_on_the_device(queue, device, another_process):
    """A block that some drivers cannot import is memory all the same."""
    large = 512 << 20
    if not runtime.cuda_devices(runtime.device_info(device)):
        pytest.skip("memory that is CUDA's too only")
    block = runtime.allocate(queue, large)
    assert (shared_pool.cuda_address(block) is not None) == cuda_imports.safe(device, large)
    cl.enqueue_fill_buffer(queue, block, np.uint8(7), 0, large)
    last = np.zeros(4, np.uint8)
    cl.enqueue_copy(queue, last, block, src_offset=large - 4)
    assert (last == 7).all()
