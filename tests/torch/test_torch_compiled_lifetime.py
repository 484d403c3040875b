"""From a compiled model's making to its end: lazy and parametrized layers, training between calls, copies, files,
forks; and what a model that is gone leaves behind: nothing."""

import contextlib
import copy
import ctypes
import gc
import io
import os
import pickle
import resource
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch
from threads import together
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_checks import error, forms, in_double, right, with_statistics
from torch_small import Body

import convdispatch.torch as ct
from convdispatch.api.errors import InvalidArgument
from convdispatch.inference import form_benchmark
from convdispatch.torch import dynamo_frames
from convdispatch.torch.graph import conversion, inductor
from convdispatch.torch.graph import forms as forms_module
from convdispatch.torch.graph.forms import Form, GraphForms

nn = torch.nn
DOORS = {
    "convert": lambda model: ct.convert(model, fuse=True),
    "backend": lambda model: torch.compile(model, backend="convdispatch"),
}
MB = 1 << 20


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Conv2d(width, 4, 1)

    def forward(self, x):
        return self.two(self.norm(self.one(x)).relu())


class Breaking(Net):
    def forward(self, x):
        y = self.one(x)
        torch._dynamo.graph_break()
        return self.two(self.norm(y).relu())


def sequence(width=8):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 4, 1))


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    monkeypatch.setattr(inductor, "available", lambda device: False)
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture(params=DOORS)
def door(request):
    return DOORS[request.param]


def picture(size=8):
    return torch.randn(1, 3, size, size)


def original(compiled):
    return getattr(compiled, "_orig_mod", compiled)


def same(one, other, size=8):
    x = picture(size)
    with torch.no_grad():
        assert error(one(x), other(x)) < 1e-5


# --- what becomes of a model between its calls ----------------------------------------------------------------------


def test_lazy_layers(door):
    """They take their sizes at the first call; a converted model's weights do not learn, so it must have them."""
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyConv2d(4, 1)).eval()
    if door is DOORS["backend"]:
        compiled = door(model)
        with torch.no_grad():
            compiled(picture())
    else:
        with torch.no_grad():
            model(picture())
        compiled = door(model)
    assert type(model[0]) is nn.Conv2d
    for size in (8, 9):
        same(compiled, copy.deepcopy(model), size)


def test_lazy_layers_without_sizes_are_named():
    with pytest.raises(InvalidArgument, match="call it once"):
        ct.convert(nn.Sequential(nn.LazyConv2d(8, 3)).eval(), fuse=True)


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_layers(door, norm):
    model = Net().eval()
    getattr(nn.utils.parametrizations, norm)(model.one)
    compiled = door(copy.deepcopy(model))
    same(compiled, model)
    for each in (compiled, model):
        with torch.no_grad():
            part = original(each).one.parametrizations.weight
            (part.original1 if norm == "weight_norm" else part.original).mul_(torch.linspace(1, 2, 3).view(1, 3, 1, 1))
    for _ in range(2):
        same(compiled, model)


def test_steps_between_calls(door):
    """Of an optimizer, and of a moving average that takes the model's place."""
    model = Net().eval()
    compiled = door(copy.deepcopy(model))
    for each in (compiled, model):
        each.requires_grad_(True)
    mean = [torch.optim.swa_utils.AveragedModel(original(each)) for each in (compiled, model)]
    steps = [torch.optim.Adam(each.parameters(), lr=1e-2, eps=1e-2) for each in (compiled, model)]
    same(compiled, model)
    for _ in range(3):
        x = picture()
        for each, step, average in zip((compiled, model), steps, mean, strict=True):
            each(x).square().sum().backward()
            step.step()
            step.zero_grad()
            average.update_parameters(original(each))
        x = picture()
        with torch.no_grad():
            assert error(compiled(x), model(x)) < 1e-4
            assert error(mean[0](x), mean[1](x)) < 1e-4
    for each, average in zip((compiled, model), mean, strict=True):
        original(each).load_state_dict(average.module.state_dict())
    with torch.no_grad():
        assert error(compiled(x), model(x)) < 1e-4


def test_compiled_twice(door):
    model = Net().eval()
    first = door(copy.deepcopy(model))
    same(first, model)
    second = door(original(first))
    for _ in range(2):
        same(second, model)
        same(first, model)
    with torch.no_grad():
        original(second).two.weight.mul_(2)
        model.two.weight.mul_(2)
    same(second, model)


def _saved(model):
    place = io.BytesIO()
    torch.save(model, place)
    place.seek(0)
    return torch.load(place, weights_only=False)


COPIES = {
    "deep": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "saved": _saved,
}


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize("how", COPIES)
@torch.no_grad()
def test_copies_and_files(how, called):
    """They hold the model alone, of its own class, and are compiled anew."""
    model, x = Net().eval(), picture()
    compiled = ct.convert(model, fuse=True)
    if called:
        right(compiled, model, x)
    made = COPIES[how](compiled)
    assert type(made).__name__ == "Net"
    assert isinstance(made, Net)
    assert not forms(made)
    assert list(made.state_dict()) == list(model.state_dict())
    assert not any(p.requires_grad for p in made.parameters())
    made.load_state_dict(compiled.state_dict())
    for _ in range(2):
        right(made, model, x)
    assert "2 convolutions" in forms(made)[0]
    right(made.forward, model, x)
    assert made.one.weight.data_ptr() != compiled.one.weight.data_ptr()
    made.two.weight.mul_(2)
    right(compiled, model, x)
    assert error(made(x), model(x)) > 0.1
    shallow = copy.copy(compiled)  # which has the same parameters
    compiled.two.bias.add_(1)
    assert error(shallow(x), compiled(x)) < 1e-6
    assert error(compiled(x), model(x)) > 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("called", [True, False])
def test_a_forked_child_calls_what_its_parent_converted(door, called):
    model = Net().eval()
    compiled, x = door(copy.deepcopy(model)), picture()
    with torch.no_grad():
        wanted = model(x)
        if called:
            compiled(x)
    child = os.fork()
    if not child:  # nothing of the test runs on in the child
        right = False
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                right = error(compiled(x), wanted) < 1e-5
        finally:
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    same(compiled, model)


class Nested(nn.Module):
    """Parts that are compiled by themselves, for Dynamo leaves a loop with a break in it to Python."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Net(), sequence()])

    def forward(self, x):
        results = []
        for part in self.parts:
            results.append(part(x) * float(x.sum()))
        return sum(results)


def test_dynamo_does_not_look_on_where_a_parts_state_is_made(monkeypatch):
    """It would compile the standard library's code below, and fail where that changes what Dynamo reads."""
    compiled, seen, finalize = ct.convert(Nested().eval(), fuse=True), [], weakref.finalize

    def watched(of, *given):
        if isinstance(of, nn.Module):
            seen.append(dynamo_frames.looks_on())
        return finalize(of, *given)

    monkeypatch.setattr(conversion.weakref, "finalize", watched)
    with torch.no_grad():
        compiled(picture())
    assert seen == [None] * 3


# --- calls of several threads, and calls that are more than inference -----------------------------------------------


class Tailed(nn.Module):
    """A net with one form, and what other nets have behind their convolutions."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        tail = nn.MaxPool2d(3, 2, 1), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)
        self.relu, self.tail = nn.ReLU(inplace=True), nn.Sequential(*tail)

    def forward(self, x):
        return self.tail(self.relu(self.bn(self.conv(x)) + x))


@pytest.fixture
def whole():
    """A net, the converted one, an input and its result in float64."""
    ct.reset_counters()
    with ct.enable(solver="im2col*"):  # one solver: few kernels to compile
        model, x = with_statistics(Tailed()), torch.randn(2, 3, 8, 8)
        with torch.no_grad():
            yield model, ct.convert(model, fuse=True), x, in_double(model, x)


def near(got, wanted, limit=1e-5):
    assert got.shape == wanted.shape
    assert error(got, wanted) < limit


def test_a_plain_call_runs_by_one_form(whole, monkeypatch):
    monkeypatch.setattr(form_benchmark, "SAMPLE_S", 0.02)  # at other times of tests it is 0, and chance decides
    _, made, x, expected = whole
    with torch.inference_mode():
        made(x)
        assert len(forms(made)) == 1, forms(made)
        assert "2 convolutions" in forms(made)[0]
        ct.reset_counters()
        got = made(x)
        assert ct.counters()["ours"] == 2, ct.counters()  # the linear map is one too
        assert made(x.to(memory_format=torch.channels_last)).equal(got)
        assert made(x).data_ptr() != got.data_ptr()
    near(got, expected)


def test_calls_that_are_not_plain_inference(whole):
    model, made, x, expected = whole
    with torch.enable_grad():
        given = x.clone().requires_grad_()
        near(y := made(given), expected)
        y.sum().backward()
        primal, tangent = torch.func.jvp(made, (x,), (x,))
        near(primal, expected)
        near(tangent, torch.func.jvp(model, (x,), (x,))[1])
    assert given.grad.abs().sum() > 0
    assert ct.counters()["convolution_backward"] == 1
    assert not forms(made)
    seen = []
    handle = made.conv.register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
    near(made(x), expected)
    handle.remove()
    assert seen == [(2, 3, 8, 8)]
    near(made(x), expected)
    assert len(seen) == 1
    dropout = made.get_submodule("tail.1").train()
    for p, wanted in ((0.0, expected), (1.0, made.tail[4].bias.double().expand(2, -1))):
        dropout.p = p
        near(made(x), wanted)
    dropout.eval()
    near(made(x), expected)
    near(torch.vmap(made.forward)(x[None])[0], expected)
    near(torch.vmap(made)(x[None])[0], expected)
    with torch.autocast("cpu"):
        near(made(x), expected, 2e-2)
        assert made(x).dtype is torch.bfloat16
    assert made(x).dtype is torch.float32


def test_changed_weights_are_packed_at_the_second_call(whole):
    _, made, x, expected = whole
    with torch.inference_mode():
        near(made(x), expected)
        with torch.inference_mode(False), torch.no_grad():
            made.tail.get_submodule("4").bias.add_(1)
        near(made(x), expected + 1)  # operator by operator, for it may change again
        assert not forms(made)
        near(made(x), expected + 1)
        assert len(forms(made)) == 1


def test_compilers_and_export_take_it_whole(whole):
    _, made, x, expected = whole
    near(torch.compile(made, fullgraph=True, backend="aot_eager")(x), expected)
    near(torch.compile(nn.Sequential(made, nn.ReLU()), fullgraph=True, backend="aot_eager")(x), expected.relu())
    program = torch.export.export(made, (x,))
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("convdispatch.convolution.default") == 1
    near(program.module()(x), expected)
    again = ct.convert(program, fuse=True)
    near(again(x), expected)
    assert "2 convolutions" in forms(again)[0]
    near(ct.convert(made, fuse=True)(x), expected)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_threads_share_a_form(whole, is_compiled):
    """One that was compiled before, whose layout stays then; or that the threads compile together."""
    _, made, x, expected = whole
    inputs, wanted = [x] * 4, [expected] * 4
    if is_compiled:
        made(x)
        ct.ready()  # forms differ in rounding: the one that stays is chosen
        inputs = [x * (i + 1) for i in range(4)]
        wanted = [made(each) for each in inputs]
    before = forms(made)

    def work(i):
        with torch.no_grad():
            return [error(made(inputs[i]), wanted[i]) for _ in range(20)]

    differences = [each for thread in together(work, 4) for each in thread]
    assert max(differences) <= (0 if is_compiled else 1e-5), (differences, forms(made))
    assert forms(made) == before or not is_compiled


def test_explain_tells_of_fused_models(whole):
    _, made, x, _ = whole
    (found,) = ct.explain(made, x).layers
    assert (found.name, found.solver) == ("conv", "im2col")
    assert max(found.error, found.torch_error) < 1e-5


def test_a_form_or_its_reason_for_each_shape(monkeypatch):
    monkeypatch.setattr(forms_module, "MAX_FORMS", 1)
    model = with_statistics(
        Body(lambda m, x: torch.cumsum(m.bn(m.conv(x)), 1), conv=nn.Conv2d(3, 3, 3), bn=nn.BatchNorm2d(3))
    )
    made, x = ct.convert(model, fuse=True), torch.randn(1, 3, 4, 4)
    with torch.no_grad():
        right(made, model, x)
        assert list(ct.fusion(made).forms) == ["the model, 1x3x4x4"]
        assert "aten.cumsum.default has no counterpart here" in forms(made)[0]
        right(made, model, x[..., :3])
    assert len(made._compiled_state.backend.graphs[-1].descriptions()) == 1


# --- what a model that is gone leaves -------------------------------------------------------------------------------

KINDS = {"net": Net, "sequence": sequence, "breaks": Breaking, "layer": lambda width=8: nn.Conv2d(3, width, 3)}


def left():
    """Forms, graphs with weights and modes of fake tensors that are alive."""
    gc.collect()
    found = [0, 0, 0]
    for each in gc.get_objects():
        kind = type(each)
        found[0] += kind is Form
        found[1] += kind is GraphForms and bool(each._weight_sets.sets)
        found[2] += kind is FakeTensorMode
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_gone_leaves_nothing(door, kind):
    before = left()
    model = KINDS[kind]().eval()
    compiled = door(model)
    with torch.no_grad():
        for size in (8, 9, 10):  # the second makes graphs with symbols for sizes
            compiled(picture(size))
    assert left()[0] > before[0]
    assert left()[2] <= before[2], "a graph holds no fake tensors"
    held = [weakref.ref(compiled), *map(weakref.ref, compiled.parameters()), *map(weakref.ref, model.parameters())]
    del compiled, model
    gc.collect()
    assert [each() for each in held] == [None] * len(held)
    assert all(now <= then for now, then in zip(left(), before, strict=True))  # what earlier tests left may go, too


def test_models_of_which_parts_live_on_keep_their_forms(door):
    model = sequence().eval()
    compiled = door(model)
    with torch.no_grad():
        compiled(picture())
    before = left()
    assert left() == before
    assert before[0] > 0
    del model
    assert left() == before


def test_models_in_turn(door):
    """Each has 8 MB of weights, which a form packs once more.

    What stays of Python's objects is PyTorch's own: Dynamo keeps 0.23 MB a model (texts of guards, frames of traces,
    metrics), as much for ``torch.compile`` with AOTAutograd and a back end that only calls the graph.
    """

    def turn():
        compiled = door(sequence(width=1 << 16).eval())
        with torch.no_grad():
            compiled(picture(3))
        del compiled
        gc.collect()

    def memory():
        """Resident bytes, without holes of malloc's heap: glibc keeps 4 MB a model in some, and returns them here."""
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    for _ in range(4):  # what is imported and compiled in the background comes with the first
        turn()
    before = memory()
    for _ in range(12):
        turn()
    assert memory() - before < 32 * MB
    tracemalloc.start()
    try:
        for _ in range(5):
            turn()
        traced = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert traced < 4 * MB, "Python's objects; tensors are not among them"
