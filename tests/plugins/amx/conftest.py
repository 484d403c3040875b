"""Both ways in which kernels run: plain C in the place of instructions, and the instructions themselves."""

from __future__ import annotations

import pytest
from as_amx import native, plain_c


@pytest.fixture
def instructions(request, device, cpu):
    """The device, where it has the instructions of the module's solver ``NATIVE``."""
    if reason := native(device, request.module.NATIVE):
        pytest.skip(f"amx: {reason}")
    return device


@pytest.fixture
def emulated(cpu, monkeypatch):
    with plain_c(monkeypatch):
        yield


@pytest.fixture(params=["emulated", "native"])
def engine(request, cpu):
    """Both ways, the second where the device has it."""
    request.getfixturevalue("emulated" if request.param == "emulated" else "instructions")
    return request.param
