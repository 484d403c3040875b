"""A kind of streams is one module: an invented one runs calls, nets and PyTorch's door; nobody names CUDA's class."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest
import small_net
from invented_streams import HOME, InventedPlace
from paths import ROOT

import convdispatch as cd
from convdispatch import ConvProblem, InvalidArgument, Tensor, inference
from convdispatch.calls.arrays import interchange, known_libraries
from convdispatch.device.commands import host_memory
from convdispatch.device.places import stream
from convdispatch.selection import dispatch

NAMES_CUDA = {
    "convdispatch/api/cuda.pyi": "the header of plugins over CUDA's libraries",
    "convdispatch/device/places/stream.py": "the line of the table of kinds",
    "convdispatch/torch/dispatch/native.py": "the native call path launches by CUDA's driver alone",
    "plugins/cudnn/solver.py": "cuDNN is a library of CUDA's",
}

NAMES_CUDAS_DEVICES = {
    "dispatch/native.py": "the device types that have a native call path",
    "dispatch/quick_depthwise.py": "PyTorch's own depthwise kernel is CUDA's",
    "eager/bias_gradient.py": "a sum that was measured against PyTorch's for CUDA; elsewhere PyTorch's runs",
    "explaining.py": "times and memory of layers, measured by CUDA's events and PyTorch's statistics of CUDA's memory",
    "weights.py": "asked first, because it is the usual device with streams; others follow",
}
"""The modules of PyTorch's door that name CUDA's devices, and why another kind of streams needs no change there. A line
that asks for cuDNN's ``switches`` may name them too."""


@pytest.fixture
def invented(monkeypatch, device):
    if not host_memory.has_system_svm(device):
        pytest.skip("the host stands for the streams' memory: system SVM only")
    monkeypatch.setitem(stream.KINDS, "xpu", HOME)
    monkeypatch.setenv("CONVDISPATCH_TIER", "full")  # a loaded machine's first calls would be PyTorch's
    dispatch.forget()
    known_libraries._known.pop(XpuArray, None)
    InventedPlace.log.clear()
    yield InventedPlace
    InventedPlace.graph = None
    known_libraries._known.pop(XpuArray, None)
    dispatch.forget()


class XpuArray:
    """An array of a library with DLPack and the array API's names, on an XPU."""

    def __init__(self, values, owner=None):
        self.values, self.owner = values, owner

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    nbytes = property(lambda self: self.values.nbytes)
    device = "xpu"

    def __dlpack_device__(self):
        return 14, 0

    def __dlpack__(self, *, stream=None, **_):
        where = (14, 0, self.values.ctypes.data)
        return interchange.capsule(where, self.shape, self.values.strides, self.dtype, self.values)

    def __array_namespace__(self):
        return types.SimpleNamespace(empty=_empty, from_dlpack=_from_dlpack, float32=np.float32)


def _empty(shape, dtype, device):
    return XpuArray(np.full(shape, np.nan, dtype))


def _from_dlpack(exported):
    assert exported.__dlpack_device__() == (14, 0)
    view, owner = interchange.imported(exported.__dlpack__(stream=1))
    raw = np.frombuffer(host_memory.HostMemory.at(view.address, int(np.prod(view.shape)) * 4).mem, view.dtype)
    return XpuArray(raw.reshape(view.shape), owner)


def _integers(*shape):
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)


def test_a_call_runs_on_an_invented_stream(invented):
    x, w, bias = _integers(2, 8, 9, 7), _integers(16, 8, 3, 3), _integers(16)
    given = [XpuArray(each) for each in (x, w, bias)]
    expected = cd.conv(x, w, bias, padding=1)
    for _ in range(2):
        invented.log.clear()
        y = cd.conv(*given, padding=1)
        assert type(y) is XpuArray
        assert np.array_equal(y.values, expected)
        assert invented.log
    assert np.array_equal(
        cd.conv_backward_data(XpuArray(expected), given[1], x.shape, padding=1).values,
        cd.conv_backward_data(expected, w, x.shape, padding=1),
    )
    with pytest.raises(InvalidArgument, match="arrays on the invented device 0 go to their library's current stream"):
        cd.conv(*given, padding=1, queue=object())


def test_a_kind_that_nobody_knows_is_refused(invented, monkeypatch):
    monkeypatch.delitem(stream.KINDS, "xpu")
    with pytest.raises(InvalidArgument, match=r"got DLPack's device \(14, 0\)"):
        cd.conv(XpuArray(_integers(1, 8, 9, 7)), XpuArray(_integers(16, 8, 3, 3)))


def test_a_tensor_lies_over_its_memory(invented):
    values = _integers(2, 8, 9, 7)
    tensor = Tensor.from_dlpack(XpuArray(values))
    assert isinstance(tensor.queue, stream.Stream)
    assert tensor.__dlpack_device__() == (14, 0)
    assert np.array_equal(cd.conv(tensor, Tensor.from_dlpack(XpuArray(_integers(4, 8, 1, 1)))).numpy(),
                          cd.conv(values, _integers(4, 8, 1, 1)))  # fmt: skip


def test_a_net_runs_on_an_invented_stream(invented, queue):
    net = inference.build(small_net.net(queue), (2, 3, 16, 16), queue=queue)
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
    expected = net(x)
    got = net(XpuArray(x))
    assert type(got) is XpuArray
    assert np.allclose(got.values, expected, rtol=1e-6, atol=1e-6)
    assert invented.log


@pytest.fixture
def door(invented, monkeypatch):
    """PyTorch's library as a build for XPUs would make it; its tensors are the CPU's."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

    class Library(known_libraries.Torch):
        def stream(self, array, number):
            return super().stream(array, 0)

    library = Library(torch)
    assert (library.stream_kind, library.device_type) == ("xpu", "xpu")
    library.device_type = "cpu"
    monkeypatch.setitem(known_libraries._known, torch.Tensor, library)
    return torch


def test_pytorchs_door_captures_what_it_knows(invented, door):
    from convdispatch.calls.framework.fallback import Fallback
    from convdispatch.torch.eager import stream_tensors

    problem = ConvProblem.parse("mb2ic8ih9iw8oc16kh3ph1")
    x, w = door.from_numpy(_integers(2, 8, 9, 8)), door.from_numpy(_integers(16, 8, 3, 3))
    shape, form = (2, 16, 9, 8), door.contiguous_format
    call = stream_tensors.stream_call(problem, shape, form, x)
    assert type(stream_tensors.stream_of(x)).__name__ == "InventedStream"
    expected = door.nn.functional.conv2d(x, w, padding=1)
    assert door.equal(call(x, w, None), expected)
    invented.graph = graph = []
    out = call(x, w, None)
    with pytest.raises(Fallback, match="run the model once before"):
        stream_tensors.stream_call(problem.replace(mb=3), (3, 16, 9, 8), form, x)
    invented.graph = None
    assert graph
    for turn in range(2):
        x.mul_(turn + 2)
        out.fill_(float("nan"))
        for work in graph:
            work()
        assert door.equal(out, door.nn.functional.conv2d(x, w, padding=1))


def test_pytorchs_captures_wait_for_what_is_pending(invented, door, monkeypatch):
    from convdispatch.calls.framework import autotune
    from convdispatch.torch import captures

    said = []

    class Graph:
        def capture_begin(self):
            said.append(autotune._capturing)

        def capture_end(self):
            said.append(autotune._capturing)

    monkeypatch.setattr(door.xpu, "XPUGraph", Graph)
    captures.watch_captures()
    captures.watch_captures()
    graph = Graph()
    graph.capture_begin()
    graph.capture_end()
    assert said == [1, 1]
    assert autotune._capturing == 0
    assert captures.device_type() == "xpu"
    asked = ("is_available", "is_initialized", "is_current_stream_capturing")
    for yes in range(4):
        for place, name in enumerate(asked):
            monkeypatch.setattr(door.xpu, name, lambda answer=place < yes: answer)
        assert captures.capturing() == (yes == 3)


def test_pytorchs_door_asks_the_kind_of_streams_for_its_devices(invented, door, monkeypatch):
    """What differs between builds of PyTorch: autocast, graphs, ranks, inductor, synchronisation."""
    from convdispatch.torch import ranks
    from convdispatch.torch.compile import operators
    from convdispatch.torch.graph import inductor

    library = door.library.Library("convdispatch_invented", "DEF")
    library.define("same(Tensor x) -> Tensor")
    operators._autocasts(library, "same")
    keys = ("AutocastCPU", "AutocastXPU", "AutocastCUDA")
    kernels = [door._C._dispatch_has_kernel_for_dispatch_key("convdispatch_invented::same", key) for key in keys]
    assert kernels == [True, True, False]
    library._destroy()

    monkeypatch.setattr(inductor.importlib.util, "find_spec", lambda name: None)
    inductor.available.cache_clear()
    assert not inductor.available("xpu"), "Triton's code is needed there, and a C++ compiler does not help"
    inductor.available.cache_clear()

    asked = []
    properties = types.SimpleNamespace(uuid="the card")
    monkeypatch.setattr(door.xpu, "get_device_properties", lambda number: asked.append(number) or properties)
    monkeypatch.setattr(door.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(ranks, "_warned", set())
    store = types.SimpleNamespace(compare_set=lambda key, old, new: b"0" if "the card" in key else b"1")
    with pytest.warns(cd.ConvDispatchWarning, match="rank 0 uses device xpu:3 of this host too.*torch.xpu.set_device"):
        ranks._own_device(store, 3)
    assert asked == [3]


def test_no_module_of_pytorchs_door_names_cudas_devices():
    named = re.compile(
        r"""^(?!.*\bswitches\().*(["']cuda["']|["']CUDA["']|\bis_cuda\b|torch\.cuda\b|AutocastCUDA)""", re.M
    )
    folder = ROOT / "convdispatch/torch"
    sources = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    found = {name for name, path in sources.items() if named.search(path.read_text(encoding="utf-8"))}
    assert found - set(NAMES_CUDAS_DEVICES) == set(), "ask the kind of streams instead (captures.device_type)"


def test_no_file_outside_the_kinds_module_names_its_classes():
    """Sources outside ``device/cuda`` take any stream: they name ``Stream`` and ``StreamPlace``."""
    named = re.compile(r"CudaStream|CudaPlace|device\.cuda\.stream")
    files = [path for folder in ("convdispatch", "plugins") for path in (ROOT / folder).rglob("*.py*")]
    sources = {path.relative_to(ROOT).as_posix(): path for path in files if path.suffix in (".py", ".pyi")}
    found = {name for name, path in sources.items() if named.search(path.read_text(encoding="utf-8"))}
    found = {name for name in found if not name.startswith("convdispatch/device/cuda/")}
    assert found == set(NAMES_CUDA)
