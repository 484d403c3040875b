"""The native call path with a library of C in the place of CUDA's driver: the same calls as by Python, without it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from native_stand_in import stand_in  # noqa: E402, F401 (torch is asked for first)

import convdispatch.torch as ct  # noqa: E402

F = torch.nn.functional


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_warm_call_is_launched_below_python(stand_in, form):  # noqa: F811
    torch.manual_seed(0)
    x = torch.randn(2, 8, 9, 8).contiguous(memory_format=form)
    w = torch.randn(16, 8, 3, 3).contiguous(memory_format=form)
    bias = torch.randn(16)
    expected = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    with ct.enable(), torch.no_grad():
        for call in range(3):
            stand_in.driver.log.clear()
            stand_in.launched.clear()
            got = F.conv2d(x, w, bias, padding=1)
            assert (got.double() - expected).norm() <= 1e-5 * expected.norm()
            assert got.is_contiguous(memory_format=form)
            assert bool(stand_in.launched) == (call > 0)
