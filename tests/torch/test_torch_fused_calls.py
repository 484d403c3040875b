"""convert(fuse=True): how its result may be called, changed, copied, saved, compiled again, and used by threads."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from test_torch_fused import Net, chained, in_double, near, ready  # noqa: E402 (torch is asked for first)
from threads import together  # noqa: E402
from torch_checks import forms, programs  # noqa: E402

import convdispatch.torch as ct  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_compiler")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def counted():
    torch.manual_seed(0)
    ct.reset_counters()
    with ct.enable(solver="im2col*"):  # one solver: few kernels to compile
        yield


class Tailed(Net):
    """A class that a file can name, and a body without a closure."""

    def __init__(self, tail):
        super().__init__(None, tail=tail)
        self.body = None

    def forward(self, x):
        return self.tail(self.relu(self.bn(self.conv(x)) + x))


@pytest.fixture(scope="module")
def whole():
    """A net with one form, its input and its result in float64."""
    torch.manual_seed(0)
    tail = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    model = ready(Tailed(tail))
    x = torch.randn(2, 3, 8, 8)
    with ct.enable(solver="im2col*"), torch.inference_mode():
        made = ct.convert(model, fuse=True)
        made(x)
    return model, made, x, in_double(model, x)


def test_a_plain_call_runs_by_one_form(whole):
    _, made, x, expected = whole
    assert len(forms(made)) == 1, forms(made)
    assert "2 convolutions" in forms(made)[0]
    with torch.inference_mode():
        got = made(x)
        assert ct.counters()["ours"] == 2, ct.counters()  # the linear map is one too
        assert made(x.to(memory_format=torch.channels_last)).equal(got)
        assert made(x).data_ptr() != got.data_ptr()
    assert near(got, expected)


def test_calls_that_are_not_plain_inference(whole):
    _, made, x, expected = whole
    ct.reset_counters()
    before = len(forms(made))
    given = x.clone().requires_grad_()
    y = made(given)  # gradients
    assert near(y, expected)
    y.sum().backward()
    assert given.grad.abs().sum() > 0
    assert ct.counters()["convolution_backward"] == 1
    assert len(forms(made)) == before
    with torch.no_grad():
        seen = []
        handle = made.conv.register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
        assert near(made(x), expected)
        handle.remove()
        assert seen == [(2, 3, 8, 8)]
        assert near(made(x), expected)
        assert len(seen) == 1
        dropout = made.get_submodule("tail.1").train()
        dropout.p = 0.0
        assert near(made(x), expected)
        dropout.p = 1.0
        assert near(made(x), made.tail[4].bias.double().expand(2, -1))
        dropout.eval()
        assert near(made(x), expected)
        assert near(torch.vmap(made.forward)(x[None])[0], expected)
        assert near(torch.vmap(made)(x[None])[0], expected)
        with torch.autocast("cpu"):
            assert near(made(x), expected, 2e-2)
            assert made(x).dtype is torch.bfloat16
        assert made(x).dtype is torch.float32
    primal, tangent = torch.func.jvp(made, (x,), (x,))
    theirs = torch.func.jvp(whole[0], (x,), (x,))
    assert near(primal, expected)
    assert near(tangent, theirs[1].detach().double())


def test_changed_weights_and_layers_are_seen(whole):
    model, _, x, expected = whole
    with torch.inference_mode():
        made = ct.convert(model, fuse=True)
        assert near(made(x), expected)
        with torch.inference_mode(False), torch.no_grad():
            made.tail.get_submodule("4").bias.add_(1)
        assert near(made(x), expected + 1)  # operator by operator, for it may change again
        assert not forms(made)
        assert near(made(x), expected + 1)
        assert len(forms(made)) == 1
        setattr(made.tail, "4", nn.Identity())
        assert near(made(x), in_double(model.tail[:4], model.relu(model.bn(model.conv(x)) + x)))


def test_copies_states_and_files(whole):
    model, made, x, expected = whole
    twin = copy.deepcopy(made)
    held = io.BytesIO()
    torch.save(made, held)
    held.seek(0)
    loaded = torch.load(held, weights_only=False)
    assert list(made.state_dict()) == list(model.state_dict())
    for each in (twin, loaded, pickle.loads(pickle.dumps(made))):
        assert type(each).__name__ == "Tailed"
        assert isinstance(each, Tailed)
        assert not forms(each)
        each.load_state_dict(made.state_dict())
        with torch.no_grad():
            assert near(each(x), expected)
        assert "2 convolutions" in forms(each)[0]
        assert near(each.forward(x), expected)
        assert not any(p.requires_grad for p in each.parameters())
    assert twin.conv.weight.data_ptr() != made.conv.weight.data_ptr()


def test_compilers_and_export_take_it_whole(whole):
    _, made, x, expected = whole
    after = nn.Sequential(made, nn.ReLU())
    with torch.no_grad():
        assert near(torch.compile(made, fullgraph=True, backend="aot_eager")(x), expected)
        assert near(torch.compile(after, fullgraph=True, backend="aot_eager")(x), expected.relu())
        program = torch.export.export(made, (x,))
        assert near(torch.jit.trace(made, x)(x), expected)
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("convdispatch.convolution.default") == 1
    assert near(program.module()(x), expected)
    with torch.no_grad():
        again = ct.convert(program, fuse=True)
        assert near(again(x), expected)
        assert "2 convolutions" in forms(again)[0]
        assert near(ct.convert(made, fuse=True)(x), expected)


def test_threads_share_a_form(whole):
    made, x = ct.convert(whole[0], fuse=True), whole[2]
    inputs = [x * (i + 1) for i in range(4)]
    with torch.inference_mode():
        made(x)
        ct.ready()  # forms differ in rounding: the one that stays is chosen
        expected = [made(each) for each in inputs]
    before = forms(made)

    def work(i):
        with torch.inference_mode():
            return [float((made(inputs[i]) - expected[i]).abs().max()) for _ in range(20)]

    differences = [each for thread in together(work, 4) for each in thread]
    assert max(differences) == 0, (differences, forms(made))
    assert forms(made) == before


def test_threads_compile_a_model_together():
    model, x = ready(Net(chained)), torch.randn(2, 3, 5, 6)
    made, expected = ct.convert(model, fuse=True), in_double(model, x)

    def work(_):
        with torch.no_grad():
            return near(made(x), expected)

    assert together(work, 4) == [True] * 4


def test_explain_tells_of_fused_models(whole):
    _, made, x, _ = whole
    found = ct.explain(made, x).layers
    assert [(layer.name, layer.solver) for layer in found] == [("conv", "im2col")]
    assert max(found[0].error, found[0].torch_error) < 1e-5


def test_a_form_or_its_reason_for_each_shape(monkeypatch):
    from convdispatch.torch.graph import forms as module

    monkeypatch.setattr(module, "MAX_FORMS", 1)
    model = ready(Net(lambda m, x: torch.cumsum(m.bn(m.conv(x)), 1)))
    made, x = ct.convert(model, fuse=True), torch.randn(1, 3, 4, 4)
    with torch.inference_mode():
        assert near(made(x), in_double(model, x))
        assert list(ct.fusion(made).forms) == ["the model, 1x3x4x4"]
        assert "aten.cumsum.default has no counterpart here" in forms(made)[0]
        assert near(made(x[..., :3]), in_double(model, x[..., :3]))
    assert len(made._compiled_state.backend.graphs[-1].descriptions()) == 1


class Varied(nn.Module):
    """Operators that stand between convolutions in well-known nets."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.squeeze, self.excite, self.last = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        y = F.hardswish(self.norm(F.gelu(self.stem(x))))
        b, c, h, w = y.shape
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, c, h, w)
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = torch.cat([y * gate, F.max_pool2d(y, 3, 1, 1) - y / 2], 1)
        return torch.softmax(self.last(F.avg_pool2d(y, 2, ceil_mode=True)), 1).mean((2, 3))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_other_operators_in_either_layout(layout, monkeypatch):
    from convdispatch import inference

    build = inference.build
    monkeypatch.setattr(inference, "build", lambda *given, **named: build(*given, **named | {"layout": layout}))
    model, x = ready(Varied()), torch.randn(2, 3, 7, 6)
    made = ct.convert(model, fuse=True)
    with torch.no_grad():
        assert near(made(x), in_double(model, x))
    assert [program.layout for program in programs(made)] == [layout]
