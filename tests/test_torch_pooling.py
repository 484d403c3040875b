"""Max pooling in words and sums of channels: the kernels beside PyTorch, CUDA's path on the host, fused models."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from host_cuda import contextless, install  # noqa: E402 (torch is asked for first)
from test_torch_streams import Tensors  # noqa: E402

import convdispatch.torch as ct  # noqa: E402
from convdispatch import Tensor, runtime  # noqa: E402
from convdispatch.calls.framework.fallback import Fallback  # noqa: E402
from convdispatch.device.commands import host_memory  # noqa: E402
from convdispatch.device.commands.queues import commands_of  # noqa: E402
from convdispatch.device.programs.kernels import build  # noqa: E402
from convdispatch.nn.channel_sums import channel_sums  # noqa: E402
from convdispatch.nn.pooling import max_pool_kernel  # noqa: E402
from convdispatch.nn.pooling.max_pool_kernel import Windows, max_pool_launch  # noqa: E402
from convdispatch.selection import dispatch  # noqa: E402
from convdispatch.torch.compile import pooling  # noqa: E402
from convdispatch.torch.eager import bias_gradient as sums  # noqa: E402
from convdispatch.torch.eager import cuda_stream, recorded_launches  # noqa: E402

nn, F = torch.nn, torch.nn.functional
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BITS = {2: (torch.int16, np.int16), 4: (torch.int32, np.int32)}


def numbers(shape, dtype, seed=0):
    """Numbers among which are NaN of both signs, infinities, zeros of both signs and the smallest there are."""
    torch.manual_seed(seed)
    x = torch.randn(shape).to(dtype)
    bits = torch.tensor(np.frombuffer(np.array([-1, 1], np.int64), np.int64)).to(BITS[dtype.itemsize][0])
    odd = [float("nan"), -float("inf"), float("inf"), 0.0, -0.0, -float("inf"), -float("inf")]
    odd = torch.cat([torch.tensor(odd, dtype=dtype), bits.view(dtype)])  # -1: NaN with a sign; 1: the smallest
    places = torch.randperm(x.numel())[: max(1, x.numel() // 20)]
    x.view(-1)[places] = odd[torch.arange(len(places)) % len(odd)]
    return x


def at_device(x, queue):
    held, raw = BITS[x.dtype.itemsize]
    return Tensor.from_numpy(x.contiguous().view(held).numpy().view(raw), queue)


def back(y, dtype):
    return torch.from_numpy(y.numpy()).view(dtype)


def pooled(x, kernel, stride, padding, dilation, ceil, last):
    """By the kernel; as F.max_pool2d."""
    queue, expected = runtime.queue(), F.max_pool2d(x, kernel, stride, padding, dilation, ceil)
    pairs = [(v, v) if isinstance(v, int) else tuple(v) for v in (kernel, stride or kernel, padding, dilation)]
    windows = Windows(tuple(x.shape[2:]), tuple(expected.shape[2:]), *pairs)
    name = str(x.dtype).removeprefix("torch.")
    launch = max_pool_launch(queue.context, name, *x.shape[:2], windows, last)
    given = at_device(x.permute(0, 2, 3, 1) if last else x, queue)
    shape = expected.permute(0, 2, 3, 1).shape if last else expected.shape
    y = Tensor.from_numpy(np.full(shape, 77, BITS[x.dtype.itemsize][1]), queue)
    launch(queue, (given.base_data, y.base_data))
    got = back(y, x.dtype)
    return (got.permute(0, 3, 1, 2) if last else got), expected


GEOMETRIES = [
    # kernel, stride, padding, dilation, ceil_mode, height and width
    (3, 2, 1, 1, False, (9, 8)),
    (2, None, 0, 1, False, (8, 6)),
    (2, 2, 0, 1, True, (7, 9)),
    (3, 2, 0, 1, True, (8, 8)),
    ((3, 2), (1, 3), (1, 0), (2, 1), False, (9, 10)),
    (2, 1, 1, 5, False, (6, 7)),
    ((1, 8), 1, (0, 4), 1, True, (3, 9)),
    (5, 3, 2, 2, True, (11, 13)),
    (1, 2, 0, 1, False, (5, 5)),
]


CHANNELS = (1, 2, 12, 24)
"""Each is read in vectors of another length, channels last."""


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_largest_of_each_window(geometry, dtype, last, full):
    *options, size = geometry
    nans, turn = 0, GEOMETRIES.index(geometry)
    for channels in (CHANNELS if full else CHANNELS[turn % 2 :: 2]) if last else (3,):
        x = numbers((2, channels, *size), DTYPES[dtype], channels)
        got, expected = pooled(x, *options, last)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0)), (options, channels)
        nans += int(expected.isnan().sum())
    assert nans


LARGER = """
inline int ordered(uint bits) { return (int)bits ^ ((int)bits >> 31 & 0x7fffffff); }
inline uint larger_of(uint a, uint b) {  // the upper bits are the number
  const uint inf = BITS == 16 ? INF * 0x10000u : INF;
  if ((a & 0x7fffffffu) > inf) return a;
  return (b & 0x7fffffffu) > inf || ordered(b) > ordered(a) ? b : a;
}
inline uint larger1(uint a, uint b) {
  if (BITS == 32) return larger_of(a, b);
  return larger_of(a << 16, b << 16) >> 16 | larger_of(a & 0xffff0000u, b & 0xffff0000u);
}
"""
"""What PTX's instructions do, in C."""


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(("dtype", "instruction"), max_pool_kernel._INSTRUCTIONS.items())
def test_words_as_on_nvidias_devices(monkeypatch, full, dtype, instruction, last):
    """All but the instruction itself."""
    texts = []

    def emulated(context, text):
        texts.append(text)
        body = text.index("inline uint larger1")
        return build(context, text[:body] + LARGER + text[text.index("}", body) + 1 :])

    nvidia = SimpleNamespace(vendor="nvidia", arch="sm_90")
    monkeypatch.setattr(max_pool_kernel, "device_info", lambda device: nvidia)
    monkeypatch.setattr(max_pool_kernel, "build", emulated)
    for turn, (*options, size) in enumerate(GEOMETRIES[:6]):
        for channels in (CHANNELS if full else CHANNELS[turn % 4 :: 4]) if last else (3,):
            x = numbers((2, channels, *size), DTYPES[dtype], channels)
            got, expected = pooled(x, *options, last)
            assert torch.equal(got.isnan(), expected.isnan())
            assert torch.equal(got.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0)), (options, channels)
    assert all(f'#define INSTRUCTION "{instruction}"\n' in text for text in texts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_of_nothing_but_one_number(dtype):
    for value in (-float("inf"), float("inf"), float("nan"), 0.0):
        x = torch.full((1, 8, 4, 4), value, dtype=DTYPES[dtype])
        for last in (False, True):
            got, expected = pooled(x, 3, 1, 1, 1, False, last)
            assert torch.equal(got.nan_to_num(nan=5.0), expected.nan_to_num(nan=5.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "channels"), [(1, 8), (1000, 64), (777, 24), (33, 1024), (5000, 8), (4099, 200), (130, 8 * 67)]
)
def test_sums_of_channels(dtype, rows, channels):
    queue, kind = runtime.queue(), DTYPES[dtype]
    torch.manual_seed(rows)
    g = torch.randn(rows, channels).add_(0.25).to(kind)
    sums = Tensor.from_numpy(np.full(channels, 77, BITS[kind.itemsize][1]), queue)
    give = channel_sums(queue.context, dtype, rows, channels)
    found = []
    for _ in range(2):
        give(commands_of(queue), at_device(g, queue).base_data, sums.base_data)
        found.append(back(sums, kind).clone())
    expected = g.double().sum(0)
    limit = {2: torch.finfo(kind).eps / 2, 4: 2e-6}[kind.itemsize]
    assert ((found[0].double() - expected).abs() <= limit * expected.abs() + 2e-6 * g.double().abs().sum(0)).all()
    assert torch.equal(*found)


# --- PyTorch's calls on CUDA's path ---------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch, device):
    """The driver and PyTorch's library, the host in the place of a GPU."""
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    dispatch.forget()
    driver, library = install(monkeypatch, device)
    tensors = Tensors(library.devices)
    for module in (cuda_stream, recorded_launches):
        monkeypatch.setattr(module, "library_of", lambda kind: tensors)
    yield driver, tensors
    dispatch.forget()


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_pooling_is_one_launch_and_a_graph_takes_it(fake, form):
    driver, tensors = fake
    x = torch.randn(2, 16, 9, 8).half().contiguous(memory_format=form)
    geometry = ([3], [2], [1], [1], True)
    call = pooling._Call(x, *geometry)
    driver.log.clear()
    y = call(x)
    expected = F.max_pool2d(x, 3, 2, 1, 1, True)
    assert set(driver.names()) - {"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"} == {"cuLaunchKernel"}
    assert driver.names().count("cuLaunchKernel") == 1
    assert torch.equal(y, expected)
    assert y.stride() == expected.stride()
    driver.capturing = True
    assert torch.equal(call(x), expected)
    with pytest.raises(Fallback, match="run the model once before") as left:
        pooling._Call(x[:1], *geometry)
    assert not left.value.lasting
    driver.capturing, tensors.current = False, False
    assert torch.equal(call(x), expected)
    shifted = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].as_strided(x.shape, x.stride()).copy_(x)
    with pytest.raises(Fallback, match="multiple of 16 bytes"):
        call(shifted)
    tensors.current, refused = True, contextless(driver)
    assert torch.equal(call(x), expected)
    assert refused == ["cuLaunchKernel"]


def test_what_a_pooling_leaves_to_pytorch(fake):
    x = torch.randn(1, 4, 6, 6)
    for each in (x[0], x.double(), x.to(torch.int32), x[..., ::2], x.transpose(1, 2)):
        with pytest.raises(Fallback, match="max pooling of"):
            pooling._Call(each, [2], [], [0], [1], False)
    with pytest.raises(RuntimeError, match="pad should be at most half"):
        pooling._Call(x, [2], [], [2], [1], False)
    none = pooling._Call(x[:0], [2], [], [0], [1], False)
    assert none(x[:0]).shape == (0, 4, 3, 3)


def test_kernels_that_cuda_does_not_load_are_left_once(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for CUDA's memory: system SVM only")
    _, library = install(monkeypatch, device, unlaunchable=("max_pool", "channel_sums"))
    tensors = Tensors(library.devices)
    for module in (cuda_stream, recorded_launches):
        monkeypatch.setattr(module, "library_of", lambda kind: tensors)
    x = torch.randn(1, 8, 6, 6)
    for _ in range(2):
        with pytest.raises(Fallback, match="max_pool2d cannot run on a CUDA stream: its PTX reads"):
            pooling._ours(x, [2], [], [0], [1], False, None)
    grad = torch.randn(2, 64, 64, 64).contiguous(memory_format=torch.channels_last)
    with pytest.raises(Fallback, match="channels cannot run on a CUDA stream"):
        sums._made(grad)(grad, grad)
    dispatch.forget()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_gradient_is_two_launches(fake, dtype):
    driver, tensors = fake
    grad = torch.randn(3, 64, 60, 64).to(dtype).contiguous(memory_format=torch.channels_last)
    assert sums._takes(grad)
    assert not any(map(sums._takes, (grad.contiguous(), grad[:, :63], grad[..., :2, :2], grad.double(), grad[0])))
    made, out = sums._made(grad), torch.full((64,), float("nan"), dtype=dtype)
    driver.log.clear()
    made(grad, out)
    assert driver.names().count("cuLaunchKernel") == 2
    assert len(tensors.given) == 1, "the parts' memory is PyTorch's"
    assert "cuStreamSynchronize" not in driver.names()
    expected = grad.double().sum((0, 2, 3))
    assert float((out.double() - expected).norm() / expected.norm()) < (1e-5 if dtype == torch.float32 else 4e-3)
    assert sums._made(grad) is made
    driver.capturing = True
    with pytest.raises(Fallback, match="run the model once before"):
        sums._made(grad[:2])
    assert sums._made(grad[:2], making=False) is None


# --- the operator, and fused models ---------------------------------------------------------------------------------


operator = torch.ops.convdispatch.max_pool2d.default


@pytest.mark.parametrize("geometry", [([3], [2], [1], [1], True), ([2, 3], [], [0, 1], [2, 1], False)])
def test_the_operator_is_pytorchs_with_gradients(geometry):
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    assert torch.equal(operator(x, *geometry), torch.max_pool2d(x, *geometry))
    assert torch.autograd.gradcheck(lambda t: operator(t, *geometry), (x,))
    assert torch.autograd.gradgradcheck(lambda t: operator(t, *geometry), (x,))
    given = x.detach().float().contiguous(memory_format=torch.channels_last).requires_grad_()
    assert set(torch.library.opcheck(operator, (given, *geometry)).values()) == {"SUCCESS"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.places = nn.MaxPool2d(2, return_indices=True)
        self.last = nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(2))

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x)))
        x = F.max_pool2d(x, (3, 1), 1) + torch.max_pool2d(x, (3, 1), 1, (0,))
        y, places = F.max_pool2d(x, 2, return_indices=True)
        return self.last(x) + self.places(x)[0].sum() + y.sum() + places.sum()


def test_a_converted_model_pools_as_pytorch_does():
    model, x = Net().eval(), torch.randn(2, 3, 16, 16)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))
        torch.testing.assert_close(made.forward(x), model(x))


def test_a_gradient_through_a_converted_models_pooling():
    made, x = ct.convert(Net().eval(), fuse=True), torch.randn(2, 3, 16, 16, requires_grad=True)
    made(x).sum().backward()
    assert x.grad.abs().sum() > 0
