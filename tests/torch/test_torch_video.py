"""Causal convolutions of videos in compiled graphs: cached frames joined in front, pads that convolutions read."""

import copy
import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812
from torch_checks import error

import convdispatch.torch as ct
from bench.video_decoder import CausalConv, Decoder
from convdispatch import inference
from convdispatch.torch.compile.fused_operator import fused_convolution
from convdispatch.torch.dispatch.routing import original
from convdispatch.torch.geometry import by_axis
from convdispatch.torch.graph import inductor, report
from convdispatch.torch.graph.epilogues import use_our_operators

pytestmark = pytest.mark.computes
_aten = torch.ops.aten
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
SIDES = [
    # x, w, stride, zeros before and after each axis, dilation
    ((2, 4, 9), (6, 4, 3), (1,), (2, 0), (1,)),
    ((1, 4, 7, 6), (8, 4, 3, 3), (1, 2), (2, 1, 0, 1), (1, 1)),
    ((2, 8, 5, 6, 7), (8, 8, 3, 3, 3), (1, 1, 1), (2, 1, 1, 0, 1, 1), (1, 1, 1)),
    ((1, 8, 6, 5, 7), (4, 8, 3, 2, 3), (2, 1, 2), (0, 3, 2, 4, 0, 1), (2, 1, 1)),
]


def drawn(*shape, dtype=torch.float32, last=False, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return x.contiguous(memory_format=FORMATS[x.ndim]) if last and x.ndim in FORMATS else x


def expected(x, w, b, stride, sides, dilation):
    pads = by_axis(sides)
    return _aten.convolution.default(
        F.pad(x.double(), pads),
        w.double(),
        b.double(),
        stride,
        [0] * len(stride),
        dilation,
        False,
        [0] * len(stride),
        1,
    )


@pytest.mark.parametrize(("x", "w", "stride", "sides", "dilation"), SIDES)
@pytest.mark.parametrize("last", [False, True])
def test_the_operator_takes_zeros_by_side(x, w, stride, sides, dilation, last):
    x, w, b = drawn(*x, last=last), drawn(*w, last=last, seed=1), drawn(w[0], seed=2)
    reference = expected(x, w, b, stride, sides, dilation)
    residual = torch.randn_like(reference).float()
    before = ct.counters()["left"]
    with torch.inference_mode():
        result = fused_convolution(x, w, b, None, None, stride, sides, dilation, 1)
        activated = fused_convolution(x, w, b, residual, "relu", stride, sides, dilation, 1)
    assert ct.counters()["left"] == before
    assert error(result, reference) < 1e-5
    assert error(activated, torch.relu(reference + residual)) < 1e-5
    theirs = original("convolution", x, w, b, stride, sides, dilation, False, [0] * len(stride), 1)
    assert theirs.shape == reference.shape
    assert error(theirs, reference) < 1e-5
    traced = torch.empty_like(x, device="meta")
    fake = fused_convolution(traced, w.to("meta"), b.to("meta"), None, None, stride, sides, dilation, 1)
    assert fake.shape == reference.shape


def conv(x, w, padding=0):
    return F.conv3d(x, w, padding=padding)


def _layers(graph):
    return [
        layer
        for weights in graph._weight_sets.sets
        for form in weights.forms.values()
        for layer in form._program.layers
    ]


PADS = {
    "causal": (lambda x, w: conv(F.pad(x, (1, 1, 1, 1, 2, 0)), w), True),
    "alike": (lambda x, w: conv(F.pad(x, (1, 1, 2, 2, 0, 0)), w, (1, 0, 0)), True),
    "twice": (lambda x, w: conv(F.pad(F.pad(x, (0, 1)), (1, 0, 0, 0, 2, 0)), w), True),
    "two readers": (
        lambda x, w: (lambda p: conv(p, w) + conv(p, 2 * w, 1)[..., 1:-1, 1:-1, 1:-1])(F.pad(x, (1, 2))),
        True,
    ),
    "ones": (lambda x, w: conv(F.pad(x, (1, 1), value=1.0), w), False),
    "cropped": (lambda x, w: conv(F.pad(x, (-1, 1)), w), False),
    "channels": (lambda x, w: conv(F.pad(x[:, :7], (0, 0, 0, 0, 0, 0, 0, 1)), w), False),
    "another reader": (lambda x, w: (lambda p: conv(p, w).sum() + p.square().sum())(F.pad(x, (1, 1))), False),
    "transposed": (lambda x, w: F.conv_transpose3d(F.pad(x, (1, 1)), w), False),
}


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("values", [True, False])
def test_which_pads_convolutions_read(name, values):
    """Zeros that convolutions alone read; ``values``: the graph tells shapes, as it does but for symbolic sizes."""
    function, is_read = PADS[name]
    x, w = drawn(1, 8, 4, 6, 5), drawn(8, 8, 3, 3, 3, seed=1)
    graph = make_fx(function)(x, w)
    if not values:
        for node in graph.graph.nodes:
            node.meta = {}
    use_our_operators(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    left = [node for node in graph.graph.nodes if node.target is _aten.constant_pad_nd.default]
    assert bool(left) is not is_read
    assert error(graph(x, w), function(x.double(), w.double())) < 1e-5


CAUSAL = [
    # mode, kernel, stride, frames of a chunk, cached frames
    *itertools.product(["constant"], [(3, 3, 3)], [(1, 1, 1)], [1, 4], [0, 1, 2]),
    *itertools.product(["constant"], [(3, 3, 3)], [(2, 1, 1)], [4], [0, 1]),
    *itertools.product(["replicate", "reflect"], [(3, 3, 3)], [(1, 2, 2)], [4], [0, 2]),
    ("constant", (3, 1, 1), (1, 1, 1), 1, 2),
    ("constant", (1, 1, 1), (1, 1, 1), 4, 0),
]


class Layer(torch.nn.Module):
    """A formula before a causal convolution, whose result is a part of a longer one."""

    def __init__(self, *geometry):
        super().__init__()
        self.conv = CausalConv(8, 8, *geometry)

    def forward(self, x, cached=None):
        x = F.silu(x)
        y = self.conv(x, cached)
        return torch.cat([torch.zeros_like(y[:, :, :1]), y], 2), x[:, :, -2:].clone()


@pytest.mark.parametrize(("mode", "kernel", "stride", "frames", "count"), CAUSAL)
@pytest.mark.parametrize("engine", ["form", "operators"])
def test_causal_convolutions(mode, kernel, stride, frames, count, engine):
    torch.manual_seed(0)
    layer = Layer(kernel, stride, mode).eval().requires_grad_(False)
    compiled = torch.compile(layer, backend="convdispatch", options={"engine": engine}, dynamic=False)
    last = frames == 4 and engine == "operators"
    x, cached = drawn(1, 8, frames, 6, 5, last=last), drawn(1, 8, count, 6, 5, seed=1) if count else None
    with torch.inference_mode():
        results = [compiled(x, cached) for _ in range(2)]
        reference = copy.deepcopy(layer).double()(x.double(), None if cached is None else cached.double())
    for first, second, exact in zip(*results, reference, strict=True):
        assert torch.equal(first, second)
        assert error(first, exact) < 1e-5
    torch._dynamo.reset()


def test_any_number_of_frames():
    """Sizes that are symbols."""
    torch.manual_seed(0)
    layer = Layer((3, 3, 3)).eval().requires_grad_(False)
    compiled = torch.compile(layer, backend="convdispatch", options={"engine": "operators"}, dynamic=True)
    for frames in (3, 4, 7):
        x, cached = drawn(1, 8, frames, 6, 5), drawn(1, 8, 2, 6, 5, seed=1)
        with torch.inference_mode():
            result, exact = compiled(x, cached)[0], copy.deepcopy(layer).double()(x.double(), cached.double())[0]
        assert error(result, exact) < 1e-5
    torch._dynamo.reset()


@pytest.mark.parametrize(("norm", "mode", "chunks"), [("rms", "constant", 2), ("group", "replicate", 1)])
def test_a_decoder_in_chunks(norm, mode, chunks):
    """As forms, in which convolutions read the zeros themselves, beside float64; the same bits in a second run."""
    torch.manual_seed(0)
    decoder = Decoder((16, 8), 1, 4, norm, mode).eval().requires_grad_(False)
    compiled = torch.compile(decoder, backend="convdispatch", options={"engine": "form"}, dynamic=False)
    exact, ours, reference = copy.deepcopy(decoder).double(), None, None
    for seed in range(chunks):
        z = drawn(1, 4, 3, 5, 6, seed=seed)
        with torch.inference_mode():
            again = compiled(z, ours)
            picture, ours = compiled(z, ours)
            expected_picture, reference = exact(z.double(), reference)
        assert all(map(torch.equal, (picture, *ours), (again[0], *again[1])))
        assert error(picture, expected_picture) < 1e-5
        assert all(error(one, other) < 1e-5 for one, other in zip(ours, reference, strict=True))
    if mode == "constant":
        names = [layer.name for graph in report._backend_of(compiled).graphs for layer in _layers(graph)]
        assert names.count("convolution") >= 6 * chunks
        assert names.count("sampled") == chunks  # the upsampling; zeros that are copied round a tensor are one too
    torch._dynamo.reset()


@pytest.mark.skipif(not inductor.available("cpu"), reason="no C++ compiler")
def test_inductor_joins_in_place_and_pads_nothing():
    """One memory for cached and new frames, into which both are written; the convolution reads it and its zeros."""
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    layer = Layer((3, 3, 3)).eval().requires_grad_(False)
    compiled = torch.compile(layer, backend="convdispatch", options={"engine": "inductor"}, dynamic=False)
    x, cached = drawn(1, 8, 4, 6, 5), drawn(1, 8, 1, 6, 5, seed=1)
    with torch.inference_mode():
        result, codes = run_and_get_code(compiled, x, cached)
        exact = copy.deepcopy(layer).double()(x.double(), cached.double())
    assert error(result[0], exact[0]) < 1e-5
    call = codes[-1][codes[-1].index("def call(") :]
    joined, padded = "empty_strided_cpu((1, 8, 5, 6, 5)", "empty_strided_cpu((1, 8, 6, 8, 7)"
    assert call.count(joined) == 2  # what is read, and the result, which has a part before it
    assert padded not in call
    assert "[1, 1, 1, 0, 1, 1]" in call
    torch._dynamo.reset()


class Frame(torch.nn.Module):
    """A convolution of single frames, to whose result the video is added."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, 1)

    def forward(self, x):
        n, c, t, h, w = x.shape
        frames = x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w)
        return self.conv(F.silu(frames)).view(n, t, c, h, w).permute(0, 2, 1, 3, 4) + x


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_video_added_to_its_frames(layout, frames, monkeypatch):
    """What is added is a view of five axes, which lies otherwise than the result in one of the layouts."""
    build = inference.build
    monkeypatch.setattr(inference, "build", lambda *args, **options: build(*args, **{**options, "layout": layout}))
    torch.manual_seed(0)
    model = Frame().eval().requires_grad_(False)
    compiled = torch.compile(model, backend="convdispatch", options={"engine": "form"}, dynamic=False)
    x = drawn(1, 8, frames, 6, 5)
    with torch.inference_mode():
        assert error(compiled(x), copy.deepcopy(model).double()(x.double())) < 1e-5
    torch._dynamo.reset()
