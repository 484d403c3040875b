"""What tests of plugins share."""

from __future__ import annotations

import pytest

from convdispatch.device import runtime


@pytest.fixture
def cpu(device):
    """What solvers are told of the device; the kernels are for CPUs, whatever their vectors."""
    info = runtime.device_info(device)
    if info.type != "cpu":
        pytest.skip("the kernels are for CPUs")
    return info
