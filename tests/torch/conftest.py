"""Fixtures that files of this room share: kernels in PyTorch's threads, a process group."""

from __future__ import annotations

import pytest


@pytest.fixture
def here(device):
    """The device, where PyTorch's threads can run its kernels."""
    from convdispatch.device import runtime
    from convdispatch.device.commands import host_memory
    from convdispatch.device.native import loading

    if loading.module() is None:
        pytest.skip(f"no native module: {loading.unavailable()}")
    if not host_memory.has_system_svm(device) or runtime.serial_queue(device) is None:
        pytest.skip("the OpenCL runtime has no queues whose commands the giving thread computes")
    return device


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    """How many threads PyTorch uses: one, some, more than there are cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone, on gloo."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("PyTorch has no gloo here")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed
    distributed.destroy_process_group()
