"""PyTorch's calls on CUDA streams, with the host in the place of a GPU: launches alone, PyTorch's memory, captures."""

import pytest
import torch
from host_cuda import contextless, install

from convdispatch import ConvDispatchError, ConvProblem, policy
from convdispatch.calls.arrays.array_library import Library
from convdispatch.calls.framework.fallback import Fallback
from convdispatch.device.commands import host_memory
from convdispatch.selection import dispatch
from convdispatch.selection.prepared import Constant
from convdispatch.torch.eager import stream_tensors

F = torch.nn.functional
PROBLEM = ConvProblem.parse("mb2ic8ih9iw8oc16kh3ph1")


class Tensors(Library):
    """PyTorch's library of arrays, whose stream is the fake device's; counts what its allocator gives."""

    def __init__(self, places):
        self.places, self.given, self.current = places, [], True

    def stream(self, tensor, number):
        def allocate(size):
            block = torch.full((size,), 0xFF, dtype=torch.uint8)
            self.given.append(size)
            return block.data_ptr(), block

        return self.places[0].stream(77, allocate)

    def is_current(self, stream):
        return self.current


@pytest.fixture
def fake(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    dispatch.forget()
    driver, library = install(monkeypatch, device)
    tensors = Tensors(library.devices)
    monkeypatch.setattr(stream_tensors, "library_of", lambda kind: tensors)
    yield driver, tensors
    dispatch.forget()


def operands(form=torch.contiguous_format):
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 9, 8).contiguous(memory_format=form), torch.randn(16, 8, 3, 3)
    return x, w.contiguous(memory_format=form), torch.randn(2, 16, 9, 8).contiguous(memory_format=form)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_weights"])
def test_a_call_is_launches_alone(fake, direction, layout):
    driver, _ = fake
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    given = list(operands(form))
    problem = PROBLEM.replace(direction=direction, layout=layout)
    place = "xwy".index(problem.written)
    shape = tuple(given[place].shape)
    call = stream_tensors.stream_call(problem, shape, form, given[0])
    given[place] = None
    driver.log.clear()
    got = call(*given)
    assert set(driver.names()) - {"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"} == {"cuLaunchKernel"}
    x, w, y = (None if t is None else t.double().requires_grad_() for t in operands())
    expected = F.conv2d(x, w, padding=1)
    if place < 2:
        expected = torch.autograd.grad(expected, (x, w)[place], y)[0]
    assert got.shape == shape
    assert got.is_contiguous(memory_format=form)
    assert (got.double() - expected).norm() <= 1e-5 * expected.norm()


def test_another_device_or_none_is_this_threads(fake):
    driver, tensors = fake
    x, w, _ = operands()
    call = stream_tensors.stream_call(PROBLEM, (2, 16, 9, 8), torch.contiguous_format, x)
    expected, pushes = call(x, w, None), driver.names().count("cuCtxPushCurrent_v2")
    tensors.current = False
    assert torch.equal(call(x, w, None), expected)
    assert driver.names().count("cuCtxPushCurrent_v2") == pushes + 1
    tensors.current = True  # as PyTorch believes; the driver knows of no context here
    refused = contextless(driver)
    assert torch.equal(call(x, w, None), expected)
    assert refused == ["cuLaunchKernel"]


def test_bias_shifted_operands_and_no_images(fake):
    x, w, _ = operands()
    bias = torch.randn(16)
    call = stream_tensors.stream_call(PROBLEM.replace(bias=True), (2, 16, 9, 8), torch.contiguous_format, x)
    shifted = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    assert shifted.data_ptr() % 16
    for each in (x, shifted, x.transpose(2, 3).contiguous().transpose(2, 3)):
        expected = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
        assert (call(each, w, None, bias).double() - expected).norm() <= 1e-5 * expected.norm()
    none = stream_tensors.stream_call(PROBLEM.replace(mb=0), (0, 16, 9, 8), torch.contiguous_format, x)
    assert none(x[:0], w, None).shape == (0, 16, 9, 8)


def test_workspaces_come_from_pytorchs_allocator(fake):
    driver, tensors = fake
    x, w, _ = operands()
    with policy(solver="im2col"):
        call = stream_tensors.stream_call(PROBLEM, (2, 16, 9, 8), torch.contiguous_format, x)
    tensors.given.clear()
    driver.log.clear()
    call(x, w, None)
    assert "cuMemAllocFromPoolAsync" not in driver.names()
    assert tensors.given or not call.prepared.workspace_size


def test_a_capture_takes_what_is_known_and_leaves_what_is_new(fake):
    driver, tensors = fake
    x, w, _ = operands()
    problem = PROBLEM.replace(constant_weights=True)
    form = torch.contiguous_format
    packed = Constant(None)
    call = stream_tensors.stream_call(problem, (2, 16, 9, 8), form, x)
    first = call(x, w, None, None, packed)
    if call.prepared.packed_size:  # a graph's own memory, where PyTorch's allocator serves one, must not hold them
        assert call.prepared.packed_size not in tensors.given
        assert "cuMemAllocFromPoolAsync" in driver.names()
    driver.capturing = True
    driver.log.clear()
    again = call(x, w, None, None, packed)
    assert torch.equal(first, again)
    assert not {"cuStreamSynchronize", "cuMemcpyAsync", "cuModuleLoadData"} & set(driver.names())
    with pytest.raises(Fallback, match="run the model once before") as left:
        stream_tensors.stream_call(problem.replace(mb=3), (3, 16, 9, 8), form, x)
    assert not left.value.lasting
    if call.prepared.packed_size:
        with pytest.raises(ConvDispatchError, match="make one before"):
            call(x, w, None, None, Constant(None))


def test_a_program_that_cuda_does_not_load_is_left_with_its_reason(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    x, _, _ = operands()

    class Every(tuple):
        def __contains__(self, name):
            return True

    _, library = install(monkeypatch, device, unlaunchable=Every())
    monkeypatch.setattr(stream_tensors, "library_of", lambda kind: Tensors(library.devices))
    with pytest.raises(Fallback, match="cannot run on a CUDA stream: its PTX reads"):
        stream_tensors.stream_call(PROBLEM, (2, 16, 9, 8), torch.contiguous_format, x)
    dispatch.forget()
