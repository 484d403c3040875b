"""Fixtures that files of this room share: kernels in PyTorch's threads, the native call path, a process group."""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


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


@pytest.fixture
def stand_in(monkeypatch, device):
    """``enable()`` sends CPU tensors to the native path, whose driver stands for CUDA's."""
    from native_stand_in import installed

    yield from installed(monkeypatch, device)


@pytest.fixture
def parts(monkeypatch):
    """The parts of calls that Python was asked for since this was cleared."""
    from convdispatch.torch.dispatch import engine

    found, real = [], engine.cached_call
    monkeypatch.setattr(engine, "cached_call", lambda part, *rest: found.append(part) or real(part, *rest))
    return found


@pytest.fixture
def asked(here, parts):
    """``parts``, inside enable() with a solver that packs constant weights, on a CPU."""
    import convdispatch.torch as ct
    from convdispatch.torch.dispatch import native

    with ct.enable(solver="im2col*"):
        yield parts
    native.forget()


@pytest.fixture(params=["native", "python"])
def path(request, stand_in):
    """Both ways beside the driver that stands for CUDA's: all calls of the second are Python's."""
    import convdispatch.torch as ct
    from convdispatch.torch.dispatch import native

    with ct.enable(solver="im2col*"):
        native.pause(request.param == "python")
        ct.reset_counters()
        stand_in.theirs()
        yield request.param, stand_in
        native.pause(False)


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
