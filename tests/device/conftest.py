"""What files of this room share."""

from __future__ import annotations

import pytest
from host_cuda import installed


@pytest.fixture
def fake(monkeypatch, device):
    """(driver, library) of two CUDA devices that are the host."""
    with installed(monkeypatch, device) as fakes:
        yield fakes
