"""PyTorch's tensors on a real GPU's streams; skips in words elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from threads import together

import convdispatch as cd

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device that PyTorch sees", allow_module_level=True)

SHAPES = (((4, 32, 14, 14), (64, 32, 3, 3)), ((1, 64, 28, 28), (64, 64, 1, 1)))


def _given(number=0, shapes=SHAPES[0]):
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
    return [torch.from_numpy(array).cuda(number) for array in arrays]


def _queue():
    from convdispatch.device import runtime

    return runtime.queue(runtime.find_device("nvidia"))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("solver", ["im2col", "implicitgemm.tiled", "nvidia.mma", "nvidia.wgmma"])
def test_the_bits_of_the_queue(shapes, solver):
    import pyopencl.array as cla

    x, w = _given(0, shapes)
    queue = _queue()
    with cd.policy(solver=solver, fallback=False):
        expected = cd.conv(*(cla.to_device(queue, each.cpu().numpy()) for each in (x, w)), padding=1).get()
        got = cd.conv(x, w, padding=1)
    assert np.array_equal(got.cpu().numpy(), expected)


def test_order_on_the_callers_stream():
    x, w = _given()
    expected = cd.conv(2 * x, w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            torch.cuda._sleep(1_000_000)
            doubled = x + x
            y = cd.conv(doubled, w)
            doubled.fill_(float("nan"))  # after the convolution
            assert torch.equal(y * 1, expected)


def test_captured_and_replayed_on_new_values():
    x, w = _given()
    cd.conv(x, w)
    graph, held = torch.cuda.CUDAGraph(), x.clone()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        held.copy_(x)
        y = cd.conv(held, w) + 1
    for scale in (1, 3):
        x.mul_(scale)
        graph.replay()
        assert torch.equal(y, cd.conv(x, w) + 1)


def test_threads_and_devices():
    def work(number):
        x, w = _given(number)
        with torch.cuda.device(number):
            expected = torch.nn.functional.conv2d(x.double(), w.double())
            for _ in range(50):
                y = cd.conv(x, w)
                assert y.device == x.device
                assert (y - expected).norm() <= 1e-5 * expected.norm()

    together(work, [n for n in range(torch.cuda.device_count()) for _ in range(2)])
    assert torch.cuda.current_device() == 0


def test_memory_is_flat():
    x, w = _given()

    def held(calls):
        for _ in range(calls):
            cd.conv(x, w, padding=1)
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    held(100)
    assert held(100) - held(2000) <= 0
