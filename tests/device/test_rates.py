"""A device's rates: estimated by its size, measured once and kept; costs are seconds at these rates."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from typing import ClassVar

import pytest
from command_line import run_cli

from convdispatch import conv
from convdispatch.api import ConvDispatchWarning, ConvProblem, DeviceInfo, DeviceRates
from convdispatch.calls.host_call import HostCall
from convdispatch.device import rates as module
from convdispatch.device import runtime
from convdispatch.device.opencl.platforms import quota
from convdispatch.device.rates import estimate, keep, rates
from convdispatch.measurement import calibration, first_sight, peaks
from convdispatch.measurement.calibration import calibrate
from convdispatch.measurement.peaks import Variant
from convdispatch.selection.plugins.loader import plugins
from convdispatch.tools.doctor import _rates

H200 = DeviceInfo("NVIDIA H200", "nvidia", "gpu", "sm_90", compute_units=132)
CPU = DeviceInfo("a CPU", "intel", "cpu", "simd512", compute_units=2, simd_width=16)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVDISPATCH_RATES", str(tmp_path))
    rates.cache_clear()
    yield tmp_path
    rates.cache_clear()


def test_estimates_are_what_was_measured_on_two_devices_and_grow_with_size():
    assert estimate(H200).flops == pytest.approx(65e12)
    assert estimate(H200).bandwidth == pytest.approx(4.25e12)
    assert estimate(CPU).flops == pytest.approx(340e9)
    half = dataclasses.replace(H200, compute_units=66)
    assert estimate(half).flops == pytest.approx(estimate(H200).flops / 2)
    narrow = dataclasses.replace(CPU, simd_width=8)
    assert estimate(narrow).flops == pytest.approx(estimate(CPU).flops / 2)
    assert not rates(H200).measured


def test_what_is_kept_is_in_force(folder):
    found = DeviceRates(1e12, 1e11, 1e-6, measured=True)
    path = keep(H200, found)
    assert path.parent == folder
    assert rates(H200) == found
    for another in ({"compute_units": 1}, {"processor": "f6m85 avx2 1024k"}):
        assert not rates(dataclasses.replace(H200, **another)).measured


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"flops": 0, "bandwidth": 1, "launch": 1}', '{"flops": "x"}', "[" * 100000, "\x00"]
)
def test_a_damaged_file_is_said_and_estimates_hold(folder, text):
    path = keep(H200, DeviceRates(1e12, 1e11, 1e-6))
    path.write_text(text)
    rates.cache_clear()
    with pytest.warns(ConvDispatchWarning, match="calibrate measures anew"):
        assert rates(H200) == estimate(H200)


@pytest.mark.parametrize("given", [H200, CPU], ids=["gpu", "cpu"])
def test_every_cost_is_seconds_at_the_devices_rates(given):
    """A device twice as fast in everything takes half as long, whichever solver predicts."""
    local = {"local_mem_size": 227 << 10, "max_work_group_size": 1024, "max_work_item_sizes": (1024, 1024, 64)}
    device = dataclasses.replace(given, **local, global_mem_size=1 << 36, max_alloc_size=1 << 35)
    problem = ConvProblem.parse("mb4ic32ih28oc32kh3ph1")
    solvers = [s for s in plugins().solvers.values() if s.rejects(problem, device) is None]
    first = {
        s.name: (config := next(iter(s.configs(problem, device))), s.cost(problem, device, config)) for s in solvers
    }
    known = rates(device)
    keep(device, DeviceRates(known.flops * 2, known.bandwidth * 2, known.launch / 2))
    timed = {name: config for name, (config, cost) in first.items() if cost is not None}
    assert len(timed) >= 3
    for name, config in timed.items():
        cost = first[name][1]
        assert 1e-7 < cost < 1, name  # seconds, not operations
        assert plugins().solvers[name].cost(problem, device, config) == pytest.approx(cost / 2), name


def test_calibration_measures_and_keeps(device):
    info = runtime.device_info(device)
    found = calibrate(device)
    assert rates(info) == found
    assert found.measured
    assert json.loads(module.place(info).read_text())["flops"] == found.flops
    assert found.flops > 1e9
    assert found.bandwidth > 1e8
    assert 1e-8 < found.launch < 1e-2


def test_the_command_says_what_was_and_what_is(device):
    done = run_cli("calibrate", "--anyway", status=0)
    assert "GFLOP/s" in done.output
    assert "estimated before" in done.output
    assert "measured before" in run_cli("calibrate", "--anyway").output


def test_the_command_keeps_nothing_on_a_busy_machine(device, monkeypatch):
    """Two runs under load stored 119 and 170 GFLOP/s, and a choice moved."""
    from convdispatch.measurement import calibration
    from convdispatch.tools.benchmark import quiet

    monkeypatch.setattr(quiet, "load_now", lambda: 1e3)
    done = run_cli("calibrate", "--device", "cpu", status=1)
    assert "other work keeps 1000 of" in done.output
    assert "nothing is kept" in done.output

    def unsteady(device, steady=False):
        if steady:
            raise calibration.Unsteady("the device had other work: copies took 2.00 times as long as at other times")
        pytest.fail("it must be steady")

    monkeypatch.setattr(quiet, "load_now", lambda: 0.0)
    monkeypatch.setattr(calibration, "calibrate", unsteady)
    done = run_cli("calibrate")
    assert (done.exit_code, "copies took 2.00 times as long" in " ".join(done.output.split())) == (1, True)


@pytest.mark.parametrize(
    ("vendor", "arch", "units", "flops", "bandwidth"),
    [
        ("nvidia", "sm_90", 132, 65e12, 4.25e12),
        ("nvidia", "sm_80", 108, 19e12, 1.8e12),
        ("nvidia", "sm_86", 84, 53e12, 0.58e12),
        ("amd", "gfx942", 304, 79e12, 4.7e12),
        ("amd", "gfx1100", 96, 30e12, 0.84e12),
        ("intel", "xe", 512, 17e12, 0.49e12),
        ("odd", "odd", 132, 65e12, 4.25e12),
    ],
)
def test_estimates_are_of_the_devices_kind(vendor, arch, units, flops, bandwidth):
    found = estimate(DeviceInfo("a GPU", vendor, "gpu", arch, compute_units=units))
    assert found.flops == pytest.approx(flops, rel=0.05)
    assert found.bandwidth == pytest.approx(bandwidth, rel=0.05)


class Stand:
    """A child that is never started."""

    made: ClassVar[list] = []

    def __init__(self, module, setup):
        Stand.made.append(module)

    def hear(self, seconds):
        return {"done": True}

    def close(self):
        pass


@pytest.fixture
def sight(monkeypatch, folder):
    monkeypatch.setattr(first_sight, "_checked", set())
    monkeypatch.setattr(first_sight, "Child", Stand)
    monkeypatch.setattr(first_sight, "BEGIN_S", 0.0)
    Stand.made = []
    return first_sight


def started(count):
    for thread in threading.enumerate():
        if thread.name == "convdispatch-calibrate":
            thread.join(60)
    return len(Stand.made) == count


def test_a_device_seen_for_the_first_time_is_calibrated_aside_once(sight, device, monkeypatch):
    sight.seen(device)
    sight.seen(device)
    assert started(1)
    monkeypatch.setattr(first_sight, "_checked", set())  # the next process
    sight.seen(device)
    assert started(1), "tried lately"
    os.utime(module.place(runtime.device_info(device)).with_suffix(".tried"), (0, 0))
    monkeypatch.setattr(first_sight, "_checked", set())
    sight.seen(device)
    assert started(2)


def test_nothing_is_calibrated_that_is_or_where_rates_are_off(sight, device, monkeypatch):
    keep(runtime.device_info(device), DeviceRates(1e12, 1e11, 1e-6, measured=True))
    sight.seen(device)
    assert started(0)
    monkeypatch.setenv("CONVDISPATCH_RATES", "off")
    monkeypatch.setattr(first_sight, "_checked", set())
    sight.seen(device)
    assert started(0)


def test_a_call_has_its_device_seen(sight, device, queue):
    import numpy as np

    x, w = np.ones((1, 3, 7, 5), np.float32), np.ones((2, 3, 3, 2), np.float32)
    conv(x, w, queue=queue)
    assert queue.device in sight._checked


def test_a_framework_s_problem_has_its_device_seen(sight, device):
    if runtime.device_info(device).type != "cpu":
        pytest.skip("CPUs only: this door serves frameworks' problems on the host")
    HostCall(ConvProblem.parse("mb1ic3ih7iw5oc2kh3"), runtime.context(device))
    assert device in sight._checked


def roof_found(monkeypatch, device, kind, peak):
    """``peak`` is what measurements find on a device of this kind."""
    if kind == "gpu":
        gpu = dataclasses.replace(runtime.device_info(device), type=kind, vendor="nvidia")
        monkeypatch.setattr(runtime, "device_info", lambda device: gpu)
    elif runtime.device_info(device).type != "cpu":
        pytest.skip("CPUs only: their processors are what others share")
    monkeypatch.setattr(calibration, "measure_roof", lambda *given, **more: peaks.Roof("float32", peak, peak))
    monkeypatch.setattr(calibration, "_launch_seconds", lambda device: 1e-6)
    monkeypatch.setattr(calibration, "glance", lambda device: None)


@pytest.mark.parametrize(
    ("kind", "spread", "share", "single", "reason"),
    [
        ("gpu", 2.0, 1.0, 1.0, r"had other work: multiply-adds took 2\.00 times"),
        ("cpu", 1.0, 0.4, 1.0, "multiply-adds had .* of its .* processors"),
        # samples that are alike, each twice as long as a single run that another process's work did not interrupt
        ("gpu", 1.0, 1.0, 0.5, r"multiply-adds took 2\.00 times as long as one run"),
    ],
)
def test_what_other_work_disturbed_is_not_kept(device, monkeypatch, folder, kind, spread, share, single, reason):
    cores = runtime.device_info(device).compute_units * share
    roof_found(monkeypatch, device, kind, peaks.Peak(1e12, "a", 15, spread, cores, single))
    with pytest.raises(calibration.Unsteady, match=reason):
        calibrate(device, steady=True)
    assert not list(folder.glob("*.json"))
    assert calibrate(device).flops == 1e12, "asked for, it is measured as things are"


def test_a_quota_is_all_that_a_process_is_expected_to_have(device, monkeypatch, folder):
    """Half of the processors, all of them under load: a container that may use half keeps what it measured."""
    info = runtime.device_info(device)
    roof_found(monkeypatch, device, "cpu", peaks.Peak(1e12, "a", 15, 1.0, info.compute_units * 0.5))
    monkeypatch.setattr(calibration, "quota", lambda: None)
    with pytest.raises(calibration.Unsteady, match="processors"):
        calibrate(device, steady=True)
    monkeypatch.setattr(calibration, "quota", lambda: info.compute_units * 0.5)
    assert calibrate(device, steady=True).measured


@pytest.mark.parametrize(("own", "files", "processors"), [
    ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
    ("0::/a/b\n", {"cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4.0),
    ("0::/a/b\n", {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/seen/outside\n", {"cpu.max": "200000 100000\n"}, 2.0),
    ("3:cpuset:/\n1:cpu,cpuacct:/c\n0::/\n",
     {"cpu,cpuacct/c/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/c/cpu.cfs_period_us": "100000\n"}, 3.0),
    ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "words\n"}, None),
    ("", {}, None),
])  # fmt: skip
def test_a_control_group_s_quota(own, files, processors, tmp_path):
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "own").write_text(own)
    assert quota(tmp_path / "groups", tmp_path / "own") == processors


def test_a_gpu_that_others_use_is_left_alone_after_a_glance(device, monkeypatch, folder):
    """A training step goes on meanwhile: seconds of measurements that would be discarded slow it down."""
    gpu = dataclasses.replace(runtime.device_info(device), type="gpu", vendor="nvidia")
    monkeypatch.setattr(runtime, "device_info", lambda device: gpu)
    monkeypatch.setattr(peaks, "timed", lambda run, repeat=1: lambda: 1.0 if repeat == 1 else 2.0)
    variants = iter([Variant(name, 1e9, lambda: None) for name in "abc"])
    monkeypatch.setattr(peaks, "_flops", lambda *given: variants)
    with pytest.raises(calibration.Unsteady, match=r"multiply-adds took 2\.00 times as long as one run"):
        calibrate(device, steady=True)
    assert [variant.how for variant in variants] == ["b", "c"], "only one kernel ran"


def test_a_peak_says_how_a_single_run_stood_to_samples(monkeypatch):
    """A device that another process has every other moment: one run fits before it, ten do not."""

    def timed(run, repeat=1):
        return lambda: 1.0 if repeat == 1 else 2.0

    monkeypatch.setattr(peaks, "timed", timed)
    found = peaks._best(iter([Variant("a kernel", 1e9, lambda: None)]))
    assert found is not None
    assert (found.single, found.spread) == (0.5, 1.0)


def test_doctor_says_what_was_measured(device):
    info = runtime.device_info(device)
    assert _rates(info).endswith("us a launch (estimated)")
    keep(info, DeviceRates(1.5e12, 2e11, 3e-6, measured=True))
    assert _rates(info) == "1,500 GFLOP/s, 200 GB/s, 3 us a launch (measured)"
