"""PyTorch's own switches under enable(): precision, determinism, its search."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

import convdispatch.torch as ct  # noqa: E402 (torch is asked for first)
from convdispatch.api.policy import current_policy  # noqa: E402

pytestmark = pytest.mark.usefixtures("counted")
F = torch.nn.functional


def test_pytorchs_switches_are_obeyed(monkeypatch):
    from convdispatch.torch.dispatch import engine

    seen = []
    stop = engine.watch(lambda part, call, tensors, geometry: seen.append(call.problem))
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
    try:
        with ct.enable():
            F.conv2d(x, w)
            torch.set_float32_matmul_precision("high")
            F.conv2d(x, w)
            F.conv2d(x.double(), w.double())
        with ct.enable(math="ieee"):
            F.conv2d(x, w)
    finally:
        stop()
        torch.set_float32_matmul_precision("highest")
    assert [problem.math for problem in seen] == ["float32", "tf32", "float32", "ieee"]


def test_cudas_switch_is_its_own():  # by torch._C: PyTorch's own test module, once imported, locks torch.backends
    from convdispatch.torch.settings import switches

    before = torch._C._get_cudnn_allow_tf32()
    try:
        for allowed in (True, False):
            torch._C._set_cudnn_allow_tf32(allowed)
            assert switches(True)[0] is allowed
    finally:
        torch._C._set_cudnn_allow_tf32(before)


def test_deterministic_algorithms_are_asked_for(monkeypatch):
    from convdispatch.selection import dispatch

    asked = []
    own = dispatch.prepare
    monkeypatch.setattr(dispatch, "prepare", lambda p, c: asked.append(current_policy().deterministic) or own(p, c))
    x, w = torch.randn(1, 4, 6, 5), torch.randn(4, 4, 3, 3)
    torch.use_deterministic_algorithms(True)
    try:
        with ct.enable():
            F.conv2d(x, w)
    finally:
        torch.use_deterministic_algorithms(False)
    with ct.enable():
        F.conv2d(x, w)
    assert asked == [True, False]


def test_benchmark_measures_in_the_background():
    from convdispatch.calls.framework import autotune
    from convdispatch.selection.records.perfdb import perfdb
    from convdispatch.torch.dispatch import engine

    torch._C._set_cudnn_benchmark(True)
    problems = []
    stop = engine.watch(lambda part, call, tensors, geometry: problems.append((call.problem, call.device)))
    try:
        with ct.enable():
            y = F.conv2d(torch.ones(1, 5, 11, 13), torch.ones(7, 5, 3, 3))
            assert autotune.drain(60)
            assert torch.equal(F.conv2d(torch.ones(1, 5, 11, 13), torch.ones(7, 5, 3, 3)), y)
    finally:
        torch._C._set_cudnn_benchmark(False)
        stop()
    from convdispatch.device import runtime
    from convdispatch.selection.records.perfdb import scope_of

    problem, device = problems[0]
    assert perfdb().lookup(problem, runtime.device_info(device), scope_of(current_policy()))
