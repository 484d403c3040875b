"""Devices found and named, queues and memory; PoCL in a process of its own, where a crash is its own."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from paths import SUPPORT

from convdispatch import NoDevice
from convdispatch.device import runtime

cl = pytest.importorskip("pyopencl")


def test_the_device_s_description(device):
    info = runtime.device_info(device)
    assert info.type in ("cpu", "gpu", "accelerator")
    assert info.vendor == info.vendor.lower()
    assert info.compute_units >= 1
    assert info.buffer_alignment >= 1
    assert info.max_alloc_size > 1 << 20
    assert runtime.device_info(device) is info
    assert runtime.probe(device) is None


def test_devices_are_found_by_vendor_type_name_and_place(device):
    info = runtime.device_info(device)
    assert runtime.find_device(device) is device
    assert runtime.find_device(info.vendor) == device
    assert runtime.device_info(runtime.find_device(info.type)).type == info.type
    assert runtime.find_device(f"{info.vendor}:{info.type}") == device
    assert runtime.find_device(f"{runtime.platforms().index(device.platform)}:0") == device.platform.get_devices()[0]
    assert runtime.find_device(f"{info.platform}:") == device


def test_an_unknown_device_lists_those_that_are_there(device):
    with pytest.raises(NoDevice, match="no OpenCL device matches 'quantum'") as caught:
        runtime.find_device("quantum")
    assert runtime.device_info(device).name in str(caught.value)


def test_the_environment_chooses(monkeypatch, device):
    monkeypatch.setenv("CONVDISPATCH_DEVICE", "quantum")
    with pytest.raises(NoDevice, match="quantum"):
        runtime.default_device()
    monkeypatch.setenv("CONVDISPATCH_DEVICE", runtime.device_info(device).vendor)
    assert runtime.default_device() == device


def test_the_simulator_is_never_the_default(monkeypatch):
    monkeypatch.delenv("CONVDISPATCH_DEVICE", raising=False)
    others = [d for d in runtime.devices() if runtime.device_info(d).vendor != "oclgrind" and runtime.probe(d) is None]
    if not others:
        pytest.skip("no OpenCL device but the simulator works")
    assert runtime.device_info(runtime.default_device()).vendor != "oclgrind"


def test_what_is_expected_is_the_default_if_intel_s_compiler_probes_it(monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_DEVICE", "cpu")
    assert runtime.expected_device() is None, "which of several a text means is known after probes"
    monkeypatch.delenv("CONVDISPATCH_DEVICE")
    expected, default = runtime.expected_device(), runtime.default_device()
    is_intel = default.platform.name.startswith("Intel") and runtime.device_info(default).type == "cpu"
    assert expected == (default if is_intel else None)
    monkeypatch.setattr(runtime, "devices", list)
    assert runtime.expected_device() is None


def test_cpu_runtimes_have_names_of_their_own():
    """PoCL and Intel report one vendor id and similar vendors; the platform tells them apart."""
    for device in runtime.devices():
        info = runtime.device_info(device)
        assert (info.vendor == "pocl") == ("Portable Computing" in info.platform)
        assert (info.vendor == "oclgrind") == ("Oclgrind" in info.platform)


def test_one_context_a_device_and_one_queue_a_thread(device):
    assert runtime.context(device) is runtime.context(device)
    mine = runtime.queue(device)
    assert runtime.queue(device) is mine
    found = []
    thread = threading.Thread(target=lambda: found.append(runtime.queue(device)))
    thread.start()
    thread.join()
    assert found[0] is not mine
    assert found[0].context == mine.context


def test_memory_is_large_enough_and_used_again(queue):
    for size in (0, 1, 5, 4096, 100_001):
        memory = runtime.allocate(queue, size)
        assert memory.size >= size
        cl.enqueue_fill_buffer(queue, memory, np.uint8(1), 0, max(size, 1))
    first = runtime.allocate(queue, 1 << 20)
    place = first.int_ptr
    del first
    assert runtime.allocate(queue, 1 << 20).int_ptr == place


def test_a_platform_that_lists_but_does_not_build_is_told_apart(monkeypatch, device):
    """As PoCL does on a machine without a linker: the probe's words come with the error."""
    name = runtime.device_info(device).vendor
    monkeypatch.setattr(runtime, "probe", lambda device: "ld: not found")
    with pytest.raises(NoDevice, match="does not work: ld: not found"):
        runtime.find_device(name)


def test_pocl_in_a_process_of_its_own(monkeypatch, full):
    """A thin table on PoCL; its compiler may abort the process, and then the last line printed names the problem."""
    found = [device for device in runtime.devices() if runtime.device_info(device).vendor == "pocl"]
    if not found or runtime.probe(found[0]) is not None:
        pytest.skip(f"PoCL does not work here: {runtime.probe(found[0]) if found else 'not installed'}")
    monkeypatch.setenv("CONVDISPATCH_DEVICE", "pocl")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.setenv("CONVDISPATCH_PLUGIN_DIR", str(SUPPORT / "naive_plugin"))
    command = [sys.executable, str(SUPPORT / "sweep.py"), "--table", "near_miss", "--table", "basic"]
    command += ["--every", "41" if full else "127", "--solver", "*", "--solver", "naive.direct"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=SUPPORT.parent)
    last = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1]
    died = f"PoCL killed the process (signal {-done.returncode}) at: {last}"
    assert done.returncode >= 0, f"{died}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    assert last.split(", ")[1:] == ["0 refused", "0 failed"], done.stdout
