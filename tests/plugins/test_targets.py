"""Kernels under every target of Intel's compiler that this machine runs, and under PoCL; what compilers get wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from paths import SUPPORT
from selftest import cases, families
from selftest import run as selftest
from selftest.run import named, run
from selftest.targets import VARIABLE, compiling_for, finding_this, runnable

from convdispatch.api.errors import InvalidArgument, NoDevice
from convdispatch.device import runtime
from convdispatch.device.opencl import platforms
from convdispatch.nn.pooling import pooling2d

SHARES = 224
"""Each target computes what is known to be hostile and one of so many shares of the rest; ``--full``: all of them."""


def device_of(vendor: str):
    try:
        return runtime.find_device(vendor)
    except NoDevice as error:
        pytest.skip(str(error)[:200])


def asked(target: str, full: bool) -> list[dict]:
    places = [*runnable(), "machine", "pocl"]
    return cases.every(1) if full else cases.selection(places.index(target), SHARES)


LEAST = (*runnable()[:1], "core-avx2")
"""Without ``--full`` the narrowest vectors and AVX2's; the machine's own are what the other tests compile for."""


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=[] if name in LEAST else [pytest.mark.full]) for name in runnable()]
)
def test_every_kernel_is_right_for_each_target(target, full):
    device = device_of("intel")
    with compiling_for(target):
        result = run(runtime.address(device), asked(target, full))
    assert result.right > len(cases.KNOWN), str(result)
    assert not result.wrong, "\n".join(result.wrong)


def test_every_kernel_is_right_under_pocl(full):
    device = device_of("pocl")
    with finding_this():
        result = run(runtime.address(device), asked("pocl", full))
    assert result.right > len(cases.KNOWN), str(result)
    assert not result.wrong, "\n".join(result.wrong)


@pytest.mark.full
def test_kernels_are_right_under_rusticl(monkeypatch):
    """Mesa's OpenCL on a processor (``RUSTICL_ENABLE=llvmpipe``). It compiles at a kernel's first launch, which takes
    minutes where much is unrolled: so few are asked."""
    device = device_of("rusticl")
    monkeypatch.setattr(selftest, "CASE_S", 900.0)
    asked = [case for case in cases.families(13) if case["options"].get("dtype") == "float32"][::12]
    asked += [{"solver": name, "problem": cases.PROBLEMS[0]} for name in ("implicitgemm.stem", "im2col")]
    with finding_this():
        result = run(runtime.address(device), asked)
    assert result.right > 2, str(result)
    assert not result.wrong, "\n".join(result.wrong)


@pytest.mark.full
@pytest.mark.parametrize("plugin", ["im2col", "implicitgemm", "winograd", "fft"])
def test_kernels_for_gpus_are_right_under_rusticl(plugin):
    """The device says that it is a GPU, so what runs is what Mesa's GPUs would run."""
    device_of("rusticl")
    environment = {**os.environ, "RUSTICL_DEVICE_TYPE": "gpu", "CONVDISPATCH_KERNEL_CACHE": "off"}
    words = [sys.executable, "-m", "convdispatch", "verify", plugin, "--level", "core", "--case", "3x3*"]
    words += ["--device", "rusticl", "--jobs", "1", "--timeout", "900"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "llvmpipe" in done.stdout


@pytest.mark.parametrize("kernel", ["nearest_rows.cl", "half_nearest.cl"])
@pytest.mark.parametrize("target", runnable())
def test_kernels_by_the_rule_are_right(target, kernel):
    """What docs/plugins/kernels.md says to write instead."""
    device_of("intel")
    done = erratum(target, kernel)
    assert done.returncode == 0, done.stderr


@pytest.mark.xfail(strict=False, reason="errata of Intel's compiler: this passes once it has none, then say so there")
@pytest.mark.parametrize("kernel", ["guarded_rows.cl", "half_guarded.cl"])
@pytest.mark.parametrize("target", runnable()[-1:])
def test_errata(target, kernel):
    """Correct kernels that 2026.2 of Intel's compiler gets wrong, or ends the process at (docs/plugins/kernels.md)."""
    device_of("intel")
    assert erratum(target, kernel).returncode == 0


def erratum(target: str, kernel: str) -> subprocess.CompletedProcess:
    """The exit status is 0 where the kernel computed right."""
    environment = {**os.environ, VARIABLE: target, "CONVDISPATCH_DEVICE": "intel", "PYOPENCL_NO_CACHE": "1"}
    words = [sys.executable, str(SUPPORT / "errata.py"), kernel, "33"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)


def test_the_cases_have_every_width_of_every_form():
    seen = {}
    for turn in cases.WIDTHS:
        for case in cases.families(turn):
            seen.setdefault((case["family"], str(case["options"])), set()).add(case["width"])
    assert all(widths == set(cases.WIDTHS) for widths in seen.values())
    shares = [named(case) for part in range(SHARES) for case in cases.selection(part, SHARES)]
    assert {named(case) for case in cases.every(1)} == set(shares)


@pytest.mark.parametrize(
    ("family", "written", "mutant"),
    [
        ("max_pool", "place < 0 || v > best || v != v", "place < 0 || v < best || v != v"),
        ("max_pool", "best = better ? v : best;", "best = v;"),
        ("avg_pool", "into += v;", "into = v;"),
    ],
)
def test_a_wrong_kernel_is_found(device, queue, monkeypatch, family, written, mutant):
    """A letter changed in a kernel's text, and some width tells."""
    if runtime.device_info(device).type != "cpu":
        pytest.skip("the text is a CPU's")
    real, changed = pooling2d.kernel_text, []

    def text(package, file):
        found = real(package, file)
        changed.append(written in found)
        return found.replace(written, mutant)

    monkeypatch.setattr(pooling2d, "kernel_text", text)
    pooling2d._launches.cache_clear()
    options = families.FAMILIES[family][1][0]
    said = [sentence for width in (13, 21) for sentence in families.run(queue, family, options, width)]
    pooling2d._launches.cache_clear()
    assert any(changed), "the kernel no longer says so"
    assert said


def test_a_question_without_an_answer_is_wrong_and_named(device, monkeypatch):
    monkeypatch.setattr(selftest, "CASE_S", 0.0)  # no answer comes in no time
    looks = [{"family": "look", "options": {"itemsize": 4}, "width": width} for width in (3, 5)]
    with finding_this():
        result = run(runtime.address(device), looks)
    assert [sentence.split(":")[0] for sentence in result.wrong] == [named(case) for case in looks]
    assert "it gave no answer" in result.wrong[0]


def test_a_pooling_has_what_pytorch_gives_at_googlenets_widths(queue):
    """The shape at which it was seen: 3x3, stride 1, padding 1."""
    from convdispatch.nn import functional
    from convdispatch.tensor import Tensor

    for width in (12, 13, 14, 15, 17, 20, 28):
        x = np.random.default_rng(width).standard_normal((2, 3, width, width)).astype(np.float32)
        wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        right = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3)).max((-1, -2))
        assert np.array_equal(functional.max_pool(Tensor.from_numpy(x, queue), 3, 1, 1).numpy(), right), width


def test_vectors_are_as_wide_as_the_target(device, monkeypatch):
    """Intel's runtime names the processor's own width; kernels are written for what it is told to compile for."""
    info = runtime.device_info(device)
    if info.type != "cpu":
        pytest.skip("vectors are a CPU's")

    def seen() -> tuple[int, str]:
        found = platforms.device_info.__wrapped__(device)
        return found.simd_width, found.arch

    monkeypatch.delenv("CL_CONFIG_CPU_TARGET_ARCH", raising=False)
    monkeypatch.delenv("CONVDISPATCH_SIMD_WIDTH", raising=False)
    own = seen()[0]
    for target, width in (("corei7", 4), ("core-avx2", 8), ("skx", own), ("unknown", own)):
        monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", target)
        assert seen()[0] == (min(own, width) if info.vendor == "intel" else own)
    for width in (4, 8, 16):
        monkeypatch.setenv("CONVDISPATCH_SIMD_WIDTH", str(width))
        assert seen() == (width, f"simd{32 * width}")
    monkeypatch.setenv("CONVDISPATCH_SIMD_WIDTH", "5")
    with pytest.raises(InvalidArgument, match="4, 8 or 16"):
        seen()
