"""Kernels in each form: as this device gets them, and as a GPU would, which differ in how work items are counted.

Pooling behind a ReLU, reductions of neighbours, LRN.
"""

import numpy as np
import pyopencl as cl
import pytest
from as_gpu import as_gpu
from checking import compare
from small_net import normal

from convdispatch.device.programs.kernels import Launch, Programs
from convdispatch.elementwise import reduce
from convdispatch.elementwise.codegen import reduction_kernel
from convdispatch.nn import Parameter, Tape, functional
from convdispatch.nn.pooling import pooling2d
from convdispatch.tensor import Tensor

ORDER = {"nchw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1)}
BACK = {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}
WINDOWS = {  # kernel, stride, padding, dilation, ceil_mode, height, width
    "apart": (2, 2, 0, 1, False, 12, 14),
    "apart, odd": (2, 2, 0, 1, False, 13, 15),
    "apart, last cut": (2, 2, 0, 1, True, 13, 15),
    "gaps": ((2, 3), (3, 4), 0, 1, True, 13, 15),
    "gaps, dilated": (2, 3, 0, 2, False, 14, 17),
    "overlapping": (3, 2, 0, 1, False, 13, 15),
    "overlapping, last cut": (3, 2, 0, 1, True, 12, 14),
    "overlapping, padded": (3, 1, 1, 1, False, 9, 10),
    "dilated, padded": (3, 2, 1, 2, False, 13, 15),
    "large": (12, 12, 0, 1, False, 26, 27),
}
TURNS = [("as it is", "nchw"), ("as a GPU", "nhwc"), ("as it is", "nhwc"), ("as a GPU", "nchw")]


@pytest.fixture(params=["as it is", "as a GPU"])
def form(request, monkeypatch):
    """Kernels as this device gets them, and as a GPU would."""
    if request.param == "as a GPU":
        as_gpu(monkeypatch, pooling2d, reduction_kernel)
        for function in (pooling2d._launches, reduction_kernel._source):
            function.cache_clear()
        from convdispatch.elementwise import reductions

        monkeypatch.setattr(reductions, "_calls", Programs())
    yield request.param
    pooling2d._launches.cache_clear()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", WINDOWS)
def test_convolution_relu_pooling_have_torchs_gradients(queue, full, thinned, form, layout, name):
    """Each window in one form and one layout, by turns; in all four with --full."""
    thinned(TURNS[list(WINDOWS).index(name) % 4] != (form, layout))
    torch = pytest.importorskip("torch", reason="torch is not installed: gradients are checked numerically elsewhere")
    kernel, stride, padding, dilation, ceil, h, w = WINDOWS[name]
    arrays = [normal(3, 5, h, w, seed=1), normal(7, 5, 3, 3, seed=2), normal(7, seed=3)]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = torch.relu(torch.nn.functional.conv2d(*theirs, padding=1))
    z = torch.nn.functional.max_pool2d(y, kernel, stride, padding, dilation, ceil_mode=ceil)
    dz = normal(*z.shape, seed=4)
    z.backward(torch.tensor(dz))

    def lie(a):
        return Tensor.from_numpy(np.ascontiguousarray(a.transpose(ORDER[layout])) if a.ndim == 4 else a, queue)

    ours = [Parameter(lie(a)) for a in arrays]
    with Tape() as tape:
        y = functional.convolution(*ours, padding=1, activation="relu", layout=layout)
        pooled = functional.max_pool(y, kernel, stride, padding, dilation=dilation, ceil_mode=ceil, layout=layout)
    tape.backward(pooled, lie(dz))
    for mine, other in [(pooled, z.detach()), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]:
        got = mine.numpy()
        compare(got.transpose(BACK[layout]) if got.ndim == 4 else got, other.numpy(), 1e-5)


@pytest.mark.parametrize("case", ["kept", "read twice", "no relu"])
def test_a_relus_gradient_behind_a_pooling(queue, form, case):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    arrays = [normal(2, 3, 8, 8, seed=1), normal(4, 3, 3, 3, seed=2), normal(4, seed=3) - 1]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = torch.nn.functional.conv2d(*theirs, padding=1)
    y = y if case == "no relu" else torch.relu(y)
    y.retain_grad()
    z = torch.nn.functional.max_pool2d(y, 2)
    ours = [Parameter(Tensor.from_numpy(a, queue)) for a in arrays]
    activation = None if case == "no relu" else "relu"
    with Tape() as tape:
        mine = functional.convolution(*ours, padding=1, activation=activation)
        pooled = functional.max_pool(mine, 2)
        if case == "read twice":
            z, pooled = z + y[:, :, ::2, ::2], pooled + mine[:, :, ::2, ::2]
    dz = normal(*z.shape, seed=5)
    z.backward(torch.tensor(dz))
    kept = tape.backward(pooled, Tensor.from_numpy(dz, queue), keep=[mine] if case == "kept" else [])
    if case == "kept":
        compare(kept[0].numpy(), y.grad.numpy(), 1e-5)
    for a, b in zip(ours, theirs, strict=True):
        compare(a.grad.numpy(), b.grad.numpy(), 1e-5)


@pytest.mark.parametrize("operation", ["sum", "max", "mean"])
@pytest.mark.parametrize("cut", ["whole", "odd row", "not at 16 bytes", "gaps"])
def test_reductions_over_neighbours(queue, thinned, form, operation, cut):
    """Where four neighbours can be loaded at once, and just where they cannot; each cut in both forms."""
    thinned((len(cut) % 2) ^ (operation == "max") ^ (form == "as a GPU"))
    x = normal(3, 5, 8, 40)
    t = Tensor.from_numpy(x, queue)
    keys = {"whole": (), "odd row": np.s_[..., :39], "not at 16 bytes": np.s_[..., 1:37], "gaps": np.s_[:, :, ::2, 4:]}
    x, t = x[keys[cut]], t[keys[cut]] if cut != "whole" else t
    for axes in ((0, 2, 3), (3,), (1, 3), None):
        shape = tuple(1 if axes is None or a in axes else size for a, size in enumerate(x.shape))
        k = normal(*shape, seed=1)
        constants = {"k": Tensor.from_numpy(k, queue)}
        for text, given, values in (("x - k", constants, x - k), ("x", {}, x)):
            mine = reduce(operation, text, axes, x=t, **given)
            compare(mine.numpy(), getattr(np, operation)(values.astype(np.float64), axes), 1e-5)


LRN_SIZES = [1, 4, 5]
LRN_SHAPES = [(2, 3, 4, 4), (2, 8, 5, 3), (1, 21, 3, 7), (3, 67, 2, 9), (2, 64, 4, 4), (1, 32, 13, 11)]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("size", LRN_SIZES)
@pytest.mark.parametrize("shape", LRN_SHAPES)
def test_response_normalisation(queue, thinned, form, layout, size, shape):
    """Runs of channels that end with the channels, before and beyond; rows of pixels of whole vectors, and not."""
    thinned(TURNS[(LRN_SIZES.index(size) + LRN_SHAPES.index(shape)) % 4] != (form, layout))
    torch = pytest.importorskip("torch", reason="torch is not installed: gradients are checked numerically elsewhere")
    x, dy = normal(*shape), normal(*shape, seed=1)
    theirs = torch.tensor(x.astype(np.float64), requires_grad=True)
    y = torch.nn.functional.local_response_norm(theirs, size, 0.5, 0.75, 1.5)
    y.backward(torch.tensor(dy))

    def lie(a):
        return Tensor.from_numpy(np.ascontiguousarray(a.transpose(ORDER[layout])), queue)

    ours = Parameter(lie(x))
    with Tape() as tape:
        mine = functional.local_response_norm(ours, size, 0.5, 0.75, 1.5, layout=layout)
    tape.backward(mine, lie(dy))
    compare(mine.numpy().transpose(BACK[layout]), y.detach().numpy(), 1e-6)
    compare(ours.grad.numpy().transpose(BACK[layout]), theirs.grad.numpy(), 2e-6)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_groups_that_kernels_demand_are_given(queue, form, layout, monkeypatch):
    """A kernel's own group size must be passed too: some drivers refuse to guess it, others do not mind."""
    made = []

    class Seen(Launch):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(pooling2d, "Launch", Seen)
    pooling2d._launches.cache_clear()
    x = Parameter(Tensor.from_numpy(normal(2, 16, 8, 16), queue))
    with Tape():  # the gradients' kernels too
        functional.max_pool(x, 2, layout=layout)
        functional.avg_pool(x, 3, padding=1, layout=layout)
    assert len(made) >= 5
    what = cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE
    for launch in made:
        demanded = tuple(launch.kernel.bound.get_work_group_info(what, queue.device))
        given = launch.kernel.local_size
        assert not any(demanded) or (given is not None and (*given, 1, 1)[:3] == demanded), launch.kernel.name
